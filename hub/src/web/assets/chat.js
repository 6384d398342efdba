// The chat page: the open conversation, the composer, and what happens to both.

import { newAnswer, write } from "./answer.js";
import * as conversations from "./conversations.js";
import { count, element, plural } from "./format.js";
import { historyList } from "./history.js";
import { getJson } from "./hub.js";
import { askForKey } from "./key.js";
import "./lend.js";
import { answerBox, button, userBox } from "./message.js";
import { ofTab } from "./store.js";

const HEALTH_MILLIS = 3000;
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

function ask(text) {
  refuse("");
  current.messages.push({ role: "user", content: text });
  return answer();
}

/** Answers the last question, and writes down every state on the way: a reload may come at any moment. */
async function answer() {
  const conversation = current;
  const messages = conversation.messages.slice();
  const message = newAnswer();
  const stop = new AbortController();
  conversation.messages.push(message);
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
  if (error?.isRefusal) {
    conversation.messages.splice(-2);
    refuseQuestion(conversation, messages.at(-1).content, error);
  } else {
    following(() => box?.show(message));
  }
  keep(conversation);
  list.refresh(current.id);
  reflect();
  if (error?.status === 401 && (await askForKey()) && conversation === current && !run) again();
}

/** Asks the last question once more, in place of the answer that it got. */
function again() {
  current.messages.pop();
  return answer();
}

function options() {
  const asked = { chat_template_kwargs: { enable_thinking: at("thinking").checked } };
  const temperature = at("temperature").valueAsNumber;
  return Number.isNaN(temperature) ? asked : { ...asked, temperature };
}

/** Puts a question that the hub refused back where it can be changed, unless its reader has gone elsewhere. */
function refuseQuestion(conversation, text, error) {
  if (conversation !== current) return;
  const isTooLong = error.code === "context_length_exceeded" || error.status === 413;
  const isFirst = conversation.messages.length === 0;
  const way = isFirst ? "Shorten it and send it again." : "Shorten it, or ask in a new chat: what was said before counts too.";
  refuse(isTooLong ? `This is too long. ${error.message} ${way}` : error.message, isTooLong && !isFirst);
  edit(text);
  show();
}

/** Says above the composer why its text was not taken. */
function refuse(words, inNewChat = false) {
  at("refused").hidden = words === "";
  at("refused").replaceChildren(element("span", "", words));
  if (!inNewChat) return;
  at("refused").append(
    button("Ask in a new chat", () => {
      open(conversations.create());
      submit(prompt.value.trim());
    }),
  );
}

/** Puts a text into the composer, before what stands there. */
function edit(text) {
  prompt.value = [text, prompt.value].filter((part) => part.trim()).join("\n\n");
  grow();
  prompt.focus();
}

function submit(text) {
  if (!text || run) return;
  prompt.value = "";
  grow();
  ask(text);
}

/** Writes a conversation down, and says so if the browser does not keep it. One that was deleted meanwhile stays so. */
function keep(conversation) {
  const isKept = conversation.isDeleted || conversations.save(conversation);
  at("unkept").hidden = isKept;
}

// ---- showing ------------------------------------------------------------------------------------------------------

function open(conversation) {
  current = run?.conversation.id === conversation.id ? run.conversation : mended(conversation);
  conversations.noteOpen(current);
  refuse("");
  list.refresh(current.id);
  show();
  prompt.focus();
}

/** The same with an end under each answer: one that has none was cut off, or another tab writes it. */
function mended(conversation) {
  const { messages } = conversation;
  if (messages.at(-1)?.role === "user") messages.push(newAnswer());
  for (const message of messages) {
    if (message.state !== "writing") continue;
    message.state = "failed";
    message.note = "This answer did not end: its page was closed, or it is being written in another tab.";
  }
  return conversation;
}

/** Shows the open conversation from its beginning. */
function show() {
  at("welcome").hidden = current.messages.length > 0;
  at("conversation").replaceChildren(...current.messages.map(boxOf));
  at("scroll").scrollTop = at("scroll").scrollHeight;
  reflect();
}

function boxOf(message, index) {
  if (message.role === "user") return userBox(message.content);
  const isLast = index === current.messages.length - 1;
  const box = answerBox(isLast ? { again: () => run || again(), edit: editLast } : null);
  box.show(message);
  if (run?.message === message) run.box = box;
  return box.root;
}

/** Takes the last question and its answer back into the composer. */
function editLast() {
  if (run) return;
  const [question] = current.messages.splice(-2);
  keep(current);
  list.refresh(current.id);
  show();
  edit(question.content);
}

/** Changes the page and stays at the end of the conversation if the reader was there. */
function following(change) {
  const scroll = at("scroll");
  const atEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
  change();
  if (atEnd) scroll.scrollTop = scroll.scrollHeight;
}

function reflect() {
  at("send").hidden = run !== null;
  at("stop").hidden = run === null;
  at("send").disabled = prompt.value.trim() === "";
  at("new").disabled = current.messages.length === 0;
}

function grow() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
  ofTab.write(DRAFT, prompt.value);
  reflect();
}

async function showHealth() {
  try {
    const health = await getJson("/health", [503]);
    at("model").textContent = health.model ?? "the model";
    const ready = health.status === "ok";
    at("health").className = `state ${ready ? "good" : "warn"}`;
    at("health").textContent = inWords(health, ready);
  } catch {
    at("health").className = "state bad";
    at("health").textContent = "hub not reachable";
  }
}

function inWords({ phase, percent, workers, coverage }, ready) {
  if (ready) return `ready, ${workers ? plural(workers, "worker") : "no worker yet"}`;
  if (!coverage) return ["getting ready", phase, percent && `${percent}\u00a0%`].filter(Boolean).join(", ");
  return `waiting for workers: ${count(coverage.covered)} of ${count(coverage.blocks)} experts held`;
}

// ---- controls -----------------------------------------------------------------------------------------------------

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
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) run?.stop.abort();
});

at("stop").addEventListener("click", () => run?.stop.abort());
prompt.addEventListener("input", grow);

at("examples").addEventListener("click", ({ target }) => {
  if (target instanceof HTMLButtonElement && !run) ask(target.textContent);
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
    if (there) current = mended(there);
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

mended(current);
conversations.noteOpen(current);
prompt.value = ofTab.read(DRAFT) ?? "";
grow();
list.refresh(current.id);
show();
showHealth();
setInterval(showHealth, HEALTH_MILLIS);
// A hub that wants a key says so before a question is written for nothing.
getJson("/v1/models").catch((error) => error.status === 401 && askForKey());
