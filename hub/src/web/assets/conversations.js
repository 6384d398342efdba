// The conversations that this browser keeps, each under a key of its own, so that tabs do not write over each other's.
//
// A conversation is { id, title, updated, messages, leaf }; which message follows which is thread.js's. A message has its
// `parent` and is the user's, { role, content, files } with a list of { name, text }, or the assistant's:
//   { role, content, reasoning, state, note }, where `state` is one of
//   "writing"  an answer under way; found in storage, its page was closed before it ended
//   "done"     with what it cost in `note`
//   "stopped"  by the user
//   "failed"   with the reason in `note`

import { newAnswer } from "./answer.js";
import { ofBrowser, ofTab } from "./store.js";
import { append, isWhole } from "./thread.js";

const PREFIX = "moex.chat.";
const OPEN = "moex.open-chat";
const TITLE_CHARS = 60;

/** A conversation without messages; it is kept once it has one. */
export const create = () => ({ id: newId(), title: "", updated: 0, messages: [], leaf: -1 });

/** 64 random bits; pages of plain http have no `crypto.randomUUID`. */
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Writes it, and says whether the browser keeps it. One without messages is not kept. */
export function save(conversation) {
  if (conversation.messages.length === 0) {
    remove(conversation.id);
    return true;
  }
  conversation.title = titleOf(conversation.messages);
  conversation.updated = Date.now();
  return restore(conversation);
}

/** Writes it as it is, as after a deletion that was not meant. */
export const restore = (conversation) => ofBrowser.write(PREFIX + conversation.id, JSON.stringify(conversation));

export const remove = (id) => ofBrowser.remove(PREFIX + id);

/** The conversation, or null if there is none or its text is damaged. */
export function read(id) {
  try {
    const conversation = JSON.parse(ofBrowser.read(PREFIX + id));
    if (conversation?.id !== id || !Array.isArray(conversation.messages) || !conversation.messages.every(isMessage)) return null;
    // Those of earlier versions of this page are a list, each message after the one before it.
    conversation.leaf ??= conversation.messages.length - 1;
    conversation.messages.forEach((message, at) => (message.parent ??= at - 1));
    return isWhole(conversation) ? conversation : null;
  } catch {
    return null;
  }
}

const isMessage = (message) =>
  ["user", "assistant"].includes(message?.role) && typeof message.content === "string" && isFiles(message.files ?? []);

const isFiles = (files) =>
  Array.isArray(files) && files.every((file) => typeof file?.name === "string" && typeof file.text === "string");

/** The conversation with an end under each answer: one that has none was cut off, or another tab writes it. */
export function mended(conversation) {
  const { messages, leaf } = conversation;
  if (messages[leaf]?.role === "user") append(conversation, newAnswer());
  for (const message of messages) {
    if (message.state !== "writing") continue;
    message.state = "failed";
    message.note = "This answer did not end: its page was closed, or it is being written in another tab.";
  }
  return conversation;
}

/** All of them, the latest first. */
export function list() {
  const ids = ofBrowser.keys().filter((key) => key.startsWith(PREFIX)).map((key) => key.slice(PREFIX.length));
  return ids.map(read).filter(Boolean).sort((a, b) => b.updated - a.updated);
}

/** The one that this tab had open, so that a reload changes nothing. */
export function lastOpen() {
  const id = ofTab.read(OPEN);
  return id === null ? null : read(id);
}

/** Makes it the one that a reload of this tab opens. */
export const noteOpen = (conversation) => ofTab.write(OPEN, conversation.id);

/** Calls `change(id)` when another tab of this browser writes or deletes a conversation. */
export function watch(change) {
  addEventListener("storage", ({ key }) => {
    if (key === null) change(null);
    else if (key.startsWith(PREFIX)) change(key.slice(PREFIX.length));
  });
}

function titleOf(messages) {
  const first = messages.find(({ role }) => role === "user");
  const words = (first?.content || first?.files?.[0]?.name || "").replace(/\s+/g, " ").trim();
  const chars = [...words];
  return chars.length > TITLE_CHARS ? `${chars.slice(0, TITLE_CHARS - 1).join("").trimEnd()}…` : words;
}
