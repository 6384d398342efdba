// What stands above the composer when a question or a file was not taken: why, and what can be done.

import { element } from "./format.js";
import { button } from "./message.js";

const box = document.getElementById("refused");

/** Says why; `way` is { label, go } of a button beside it. No words take it away. */
export function refuse(words, way = null) {
  box.hidden = words === "";
  box.replaceChildren(element("span", "", words));
  if (way) box.append(button(way.label, way.go));
}

/** What to say of the hub's refusal: words, and `anew` where a new conversation would help. */
export function refusalOf(error, isFirst, anew) {
  const isTooLong = error.code === "context_length_exceeded" || error.status === 413;
  if (!isTooLong) return [error.message];
  const way = isFirst ? "Shorten it and send it again." : "Shorten it, or ask in a new chat: what was said before counts too.";
  return [`This is too long. ${error.message} ${way}`, isFirst ? null : anew];
}
