// The chat page: the open conversation, the composer, and what happens to both.

import { newAnswer, write } from "./answer.js";
import * as conversations from "./conversations.js";
import { fileShelf } from "./files.js";
import { showHealth } from "./health.js";
import { historyList } from "./history.js";
import { getJson } from "./hub.js";
import { askForKey } from "./key.js";
import "./lend.js";
import { answerBox, questionBox } from "./message.js";
import { refusalOf, refuse } from "./refusal.js";
import { options, withSystem } from "./settings.js";
import { ofTab } from "./store.js";
import { append, choose, path, shown, takeBack, versions } from "./thread.js";

/** How often a growing answer is written down. */
const SAVE_MILLIS = 400;
const DRAFT = "moex.draft";

const at = (id) => document.getElementById(id);
const prompt = at("prompt");

let current = conversations.lastOpen() ?? conversations.create();
/** The answer being written: its conversation, its message, and how to stop it. */
let run = null;
/** Set once the page is on its way out. */
let isLeft = false;

// ---- asking -------------------------------------------------------------------------------------------------------

/** Asks a question after the message at `parent`. One that the hub refuses is given to `refused(question, error)`. */
function ask(question, parent, refused) {
  refuse("");
  const conversation = current;
  const { leaf } = conversation;
  append(conversation, { role: "user", ...question }, parent);
  const message = append(conversation, newAnswer());
  return answer(message, (error) => {
    takeBack(conversation, 2, leaf);
    // Its reader may have gone elsewhere.
    if (conversation !== current) return;
    redraw();
    refused(question, error);
  });
}

/** Answers the question of the answer at `place` once more: beside that answer, or in its place if it failed. */
function again(place) {
  if (run) return;
  // The button that was pressed goes with the answer it belongs to. A finger's keyboard would hide the new one.
  if (matchMedia("(hover: hover)").matches) prompt.focus();
  const old = current.messages[place];
  if (old.state !== "failed" || place !== current.leaf) return answer(append(current, newAnswer(), old.parent));
  current.messages[place] = { ...newAnswer(), parent: old.parent };
  return answer(current.messages[place]);
}

/** Writes an answer, the last message shown, and keeps every state on the way: a reload may come at any moment. */
async function answer(message, refused) {
  const conversation = current;
  const stop = new AbortController();
  const messages = withSystem(shown(conversation).slice(0, -1));
  run = { conversation, message, stop, box: null };
  keep(conversation);
  list.refresh(current.id);
  show();

  let saved = performance.now();
  const changed = () => {
    following(() => run.box?.show(message));
    if (performance.now() - saved < SAVE_MILLIS) return;
    saved = performance.now();
    keep(conversation);
  };
  const error = await write(message, messages, options(), stop.signal, changed);
  // A page that is left fails its requests, which is no failure of the answer's: as it was last written down it stays.
  if (isLeft) return;
  const { box } = run;
  run = null;
  if (error?.isRefusal && refused) {
    refused(error);
  } else {
    following(() => box?.show(message));
  }
  keep(conversation);
  list.refresh(current.id);
  reflect();
  if (error?.status === 401 && (await askForKey()) && conversation === current) again(current.leaf);
}

/** Puts a question back where it can be changed, and says why it was not taken. */
function refuseQuestion({ content, files }, error) {
  refuseInWords(error);
  edit(content);
  shelf.put(files);
}

/** The same for one that was asked in place of another. */
function refuseEdit(place, { content }, error) {
  refuseInWords(error);
  boxAt(place)?.edit(content);
}

function refuseInWords(error) {
  const isFirst = current.messages.length === 0;
  const anew = {
    label: "Ask in a new chat",
    go() {
      open(conversations.create());
      submit(prompt.value.trim());
    },
  };
  refuse(...refusalOf(error, isFirst, anew));
}

/** Puts a text into the composer, before what stands there. */
function edit(text) {
  prompt.value = [text, prompt.value].filter((part) => part.trim()).join("\n\n");
  grow();
  prompt.focus();
}

function submit(text) {
  if (run || (!text && shelf.isEmpty())) return;
  prompt.value = "";
  grow();
  ask({ content: text, files: shelf.take() }, current.leaf, refuseQuestion);
}

/** Writes a conversation down, and says so if the browser does not keep it. One that was deleted meanwhile stays so. */
function keep(conversation) {
  const isKept = conversation.isDeleted || conversations.save(conversation);
  at("unkept").hidden = isKept;
}

// ---- showing ------------------------------------------------------------------------------------------------------

function open(conversation) {
  current = run?.conversation.id === conversation.id ? run.conversation : conversations.mended(conversation);
  conversations.noteOpen(current);
  refuse("");
  list.refresh(current.id);
  show();
  prompt.focus();
}

/** Shows the open conversation, and its end. */
function show() {
  redraw();
  at("scroll").scrollTop = at("scroll").scrollHeight;
}

function redraw() {
  at("welcome").hidden = current.messages.length > 0;
  at("heading").hidden = current.messages.length === 0;
  at("conversation").replaceChildren(...path(current).map(boxOf));
  reflect();
}

function boxOf(place) {
  const message = current.messages[place];
  const all = versions(current, place);
  const index = all.indexOf(place);
  const steps = all.length > 1 ? { at: index, of: all.length, step: (by) => turnTo(all[index + by], by) } : null;
  if (message.role === "user") return questionBox(message, (text) => askAnew(place, text), steps);
  const editQuestion = () => boxAt(message.parent)?.edit(current.messages[message.parent].content);
  const box = answerBox({ again: () => again(place), edit: editQuestion }, steps);
  box.show(message);
  if (run?.message === message) run.box = box;
  return box.root;
}

/** The box of the message at `place`, if it is shown. */
const boxAt = (place) => at("conversation").children[path(current).indexOf(place)];

/** Asks the question at `place` in other words; the first stays, as another version. */
function askAnew(place, content) {
  if (run || !content) return;
  const { parent, files = [] } = current.messages[place];
  ask({ content, files }, parent, (question, error) => refuseEdit(place, question, error));
  prompt.focus();
}

/** Shows another version of a message, with what followed it. */
function turnTo(place, by) {
  if (run) return;
  choose(current, place);
  keep(current);
  redraw();
  const arrows = [...boxAt(place).querySelectorAll(".versions button:not(:disabled)")];
  (arrows.find(({ dataset }) => Number(dataset.step) === by) ?? arrows[0])?.focus();
}

/** Changes the page and stays at the end of the conversation if the reader was there. */
function following(change) {
  const scroll = at("scroll");
  const atEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
  change();
  if (atEnd) scroll.scrollTop = scroll.scrollHeight;
}

function reflect() {
  // What would change the conversation waits until the answer has ended.
  at("conversation").classList.toggle("busy", run !== null);
  at("send").hidden = run !== null;
  at("stop").hidden = run === null;
  at("send").disabled = prompt.value.trim() === "" && shelf.isEmpty();
  at("new").disabled = current.messages.length === 0;
}

function grow() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
  ofTab.write(DRAFT, prompt.value);
  reflect();
}

// ---- controls -----------------------------------------------------------------------------------------------------

const shelf = fileShelf(
  { list: at("files"), input: at("file-input"), pick: at("attach"), dropOn: document.body },
  { changed: reflect, refuse },
);

const list = historyList(
  { panel: at("chats"), toggle: at("chats-button"), shade: at("shade"), items: at("chat-list"), none: at("no-chats"), undo: at("undo") },
  {
    open,
    deleted(id) {
      if (run?.conversation.id === id) {
        run.conversation.isDeleted = true;
        run.stop.abort();
      }
      if (current.id === id) open(conversations.create());
      else list.refresh(current.id);
    },
    restored: open,
  },
);

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit(prompt.value.trim());
});

prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("composer").requestSubmit();
  } else if (event.key === "ArrowUp" && prompt.value === "" && !run) {
    const last = path(current).findLast((place) => current.messages[place].role === "user");
    if (last === undefined) return;
    event.preventDefault();
    boxAt(last).edit(current.messages[last].content);
  }
});

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open], :popover-open")) return;
  if (event.key === "Escape") run?.stop.abort();
  if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    open(conversations.create());
  }
});

at("stop").addEventListener("click", () => run?.stop.abort());
prompt.addEventListener("input", grow);

at("examples").addEventListener("click", ({ target }) => {
  if (target instanceof HTMLButtonElement && !run) ask({ content: target.textContent, files: [] }, current.leaf, refuseQuestion);
});

for (const id of ["new", "new-in-list"]) {
  at(id).addEventListener("click", () => {
    open(conversations.create());
    list.close();
  });
}

conversations.watch((id) => {
  if (id === current.id && !run) {
    const there = conversations.read(id);
    if (there) current = conversations.mended(there);
    show();
  }
  list.refresh(current.id);
});

// What was written since the last look at the clock.
addEventListener("pagehide", () => {
  if (run) keep(run.conversation);
  isLeft = true;
});
// The way back may lead to the page as it was, whose requests are gone.
addEventListener("pageshow", ({ persisted }) => persisted && location.reload());

conversations.mended(current);
conversations.noteOpen(current);
prompt.value = ofTab.read(DRAFT) ?? "";
grow();
list.refresh(current.id);
show();
showHealth({ state: at("health"), model: at("model") });
// A hub that wants a key says so before a question is written for nothing.
getJson("/v1/models").catch((error) => error.status === 401 && askForKey());
