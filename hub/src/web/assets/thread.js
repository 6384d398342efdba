// The messages of a conversation as a tree, kept in one list: a question that was changed and an answer that was written
// again stand beside the first, and none is lost. Each message names the one before it by its place in the list, and the
// conversation's `leaf` is the last of those shown; -1 is before the first.

/** Adds a message after `parent`, shows it last, and returns it. */
export function append(conversation, message, parent = conversation.leaf) {
  message.parent = parent;
  conversation.messages.push(message);
  conversation.leaf = conversation.messages.length - 1;
  return message;
}

/** Takes the `n` messages added last away again, and shows what was shown before. */
export function takeBack(conversation, n, leaf) {
  conversation.messages.splice(-n);
  conversation.leaf = leaf;
}

/** The places of the messages from the first to the one at `last`. */
export function path(conversation, last = conversation.leaf) {
  const places = [];
  for (let at = last; at >= 0; at = conversation.messages[at].parent) places.push(at);
  return places.reverse();
}

/** The messages that are shown. */
export const shown = (conversation) => path(conversation).map((at) => conversation.messages[at]);

/** The places of all that stand where the message at `at` stands: itself, and what it is another version of. */
export function versions(conversation, at) {
  const { parent } = conversation.messages[at];
  return [...conversation.messages.keys()].filter((other) => conversation.messages[other].parent === parent);
}

/** Shows the message at `at` with what was written after it last. */
export function choose(conversation, at) {
  for (let next = at; next >= 0; next = conversation.messages.findLastIndex(({ parent }) => parent === conversation.leaf)) {
    conversation.leaf = next;
  }
}

/** Whether each message follows one that is before it, as `append` leaves them. */
export function isWhole({ messages, leaf }) {
  const isPlace = (at, end) => Number.isInteger(at) && at >= -1 && at < end;
  return isPlace(leaf, messages.length) && messages.every(({ parent }, at) => isPlace(parent, at));
}
