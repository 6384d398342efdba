// How messages look: a question with its files, and an answer with its thoughts, what it cost, and what can be done about
// either. Versions of the same message are stepped through by arrows.

import { copies } from "./copy.js";
import { element, textBytes } from "./format.js";
import { markdownView } from "./markdown.js";

/**
 * A question's box. `askAnew(text)` asks it in other words; `versions` is { at, of, step(by) }, or null for the only one.
 * `root.edit(text)` opens it for changes.
 */
export function questionBox(message, askAnew, versions) {
  const root = element("div", "turn");
  const box = element("div", "message user");
  const files = (message.files ?? []).map(fileNode);
  box.append(...files, element("div", "text", message.content));
  const row = element("div", "actions");
  const edit = changing(button("Edit", () => root.edit(message.content)));
  edit.setAttribute("aria-label", "Edit the question");
  row.append(...arrows(versions), edit);
  root.append(box, row);

  root.edit = (text) => {
    const form = editor(text, askAnew, () => {
      form.replaceWith(box);
      row.hidden = false;
      edit.focus();
    });
    box.replaceWith(form);
    row.hidden = true;
    form.querySelector("textarea").focus();
  };
  return root;
}

/**
 * An answer's box: `root`, and `show(message)` that makes it look like the message.
 * `actions` are functions: `again` writes it once more, `edit` opens its question. `versions` are as a question's.
 */
export function answerBox(actions, versions) {
  const root = element("div", "message assistant");
  const thought = element("details");
  const thoughtTitle = element("summary");
  const thoughtText = element("div", "text");
  const text = element("div", "text markdown");
  const end = element("div", "end");
  const markdown = markdownView(text);
  thought.append(thoughtTitle, thoughtText);
  root.append(thought, text, end);
  let state = "";

  function show(message) {
    const isWriting = message.state === "writing";
    thought.hidden = !message.reasoning;
    setText(thoughtText, message.reasoning ?? "");
    markdown.show(message.content);
    if (state === message.state) return;
    state = message.state;
    root.classList.toggle("writing", isWriting);
    thought.open = isWriting;
    thoughtTitle.textContent = isWriting ? "Thinking" : "Thought";
    end.replaceChildren(...(isWriting ? [] : ending(message)));
  }

  function ending(message) {
    if (message.state === "failed") return [notice(message.note), ...arrowRow()];
    const row = element("div", "meta");
    row.append(element("span", "", message.note), ...arrows(versions));
    if (message.content) {
      const copy = button("Copy", () => {});
      copy.setAttribute("aria-label", "Copy the answer");
      copies(copy, () => message.content);
      row.append(copy);
    }
    if (message.state === "stopped") row.append(...offers());
    else row.append(changing(button("Regenerate", actions.again)));
    return [row];
  }

  function arrowRow() {
    if (!versions) return [];
    const row = element("div", "meta");
    row.append(...arrows(versions));
    return [row];
  }

  function notice(words) {
    const made = element("div", "notice bad");
    made.setAttribute("role", "alert");
    const row = element("span", "offers");
    row.append(...offers());
    made.append(element("span", "", words), row);
    return made;
  }

  const offers = () => [button("Try again", actions.again), button("Edit the question", actions.edit)].map(changing);

  return { root, show };
}

export function button(label, pressed) {
  const made = element("button", "", label);
  made.type = "button";
  made.addEventListener("click", pressed);
  return made;
}

/** Marks what cannot be used while an answer is written. */
function changing(node) {
  node.classList.add("changing");
  return node;
}

/** The steps to the versions before and after, or nothing where there is only one. */
function arrows(versions) {
  if (!versions) return [];
  const { at, of, step } = versions;
  const group = changing(element("span", "versions"));
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Versions");
  const arrow = (sign, label, by) => {
    const made = button(sign, () => step(by));
    made.setAttribute("aria-label", label);
    made.dataset.step = by;
    made.disabled = at + by < 0 || at + by >= of;
    return made;
  };
  group.append(
    arrow("‹", "Version before", -1),
    element("span", "", `${at + 1}/${of}`),
    arrow("›", "Version after", 1),
  );
  return [group];
}

function fileNode({ name, text }) {
  const node = element("details", "file");
  const body = element("pre", "", text);
  body.tabIndex = 0;
  body.setAttribute("role", "group");
  body.setAttribute("aria-label", name);
  node.append(element("summary", "", `${name}, ${textBytes(text)}`), body);
  return node;
}

/** A field with the text, to be sent or left. */
function editor(text, send, cancel) {
  const form = element("form", "editor");
  const field = element("textarea");
  const row = element("div", "row");
  const ask = element("button", "primary", "Send");
  field.value = text;
  field.rows = Math.min(12, Math.max(2, text.split("\n").length));
  field.setAttribute("aria-label", "The question");
  ask.type = "submit";
  row.append(button("Cancel", cancel), ask);
  form.append(field, row);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(field.value.trim());
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      cancel();
    }
  });
  return form;
}

/** Text that grows is added to: a screen reader and a selection keep what they have. */
function setText(node, text) {
  const shown = node.textContent;
  if (shown === text) return;
  if (shown && text.startsWith(shown)) node.append(text.slice(shown.length));
  else node.textContent = text;
}
