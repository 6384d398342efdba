// How messages look: a question, and an answer with its thoughts, what it cost, and what can be done about it.

import { copies } from "./copy.js";
import { element } from "./format.js";

/** A question's box. */
export function userBox(text) {
  const box = element("div", "message user");
  box.append(element("div", "text", text));
  return box;
}

/**
 * An answer's box: `root`, and `show(message)` that makes it look like the message.
 * `actions` are functions: `again` and `edit`, offered under an answer that did not end well; null where that is past.
 */
export function answerBox(actions) {
  const root = element("div", "message assistant");
  const thought = element("details");
  const thoughtTitle = element("summary");
  const thoughtText = element("div", "text");
  const text = element("div", "text");
  const end = element("div", "end");
  thought.append(thoughtTitle, thoughtText);
  root.append(thought, text, end);
  let state = "";

  function show(message) {
    const isWriting = message.state === "writing";
    thought.hidden = !message.reasoning;
    setText(thoughtText, message.reasoning ?? "");
    setText(text, message.content);
    if (state === message.state) return;
    state = message.state;
    root.classList.toggle("writing", isWriting);
    thought.open = isWriting;
    thoughtTitle.textContent = isWriting ? "Thinking" : "Thought";
    end.replaceChildren(...(isWriting ? [] : ending(message)));
  }

  function ending(message) {
    if (message.state === "failed") return [notice(message.note)];
    const row = element("div", "meta");
    row.append(element("span", "", message.note));
    if (message.content) {
      const copy = button("Copy", () => {});
      copies(copy, () => message.content);
      row.append(copy);
    }
    if (message.state === "stopped") row.append(...offers());
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

  function offers() {
    if (!actions) return [];
    return [button("Try again", actions.again), button("Edit the question", actions.edit)];
  }

  return { root, show };
}

export function button(label, pressed) {
  const made = element("button", "", label);
  made.type = "button";
  made.addEventListener("click", pressed);
  return made;
}

/** Text that grows is added to: a screen reader and a selection keep what they have. */
function setText(node, text) {
  const shown = node.textContent;
  if (shown === text) return;
  if (shown && text.startsWith(shown)) node.append(text.slice(shown.length));
  else node.textContent = text;
}
