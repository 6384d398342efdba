// The list of conversations beside the chat: opens, deletes, and takes a deletion back.

import { list, read, remove, restore } from "./conversations.js";
import { element } from "./format.js";
import { button } from "./message.js";

const UNDO_MILLIS = 10_000;
/** Above this width the list stands beside the chat; below, it lies over it. */
const BESIDE = matchMedia("(min-width: 64rem)");

/** `on` has `open(conversation)`, `deleted(id)` and `restored(conversation)`. */
export function historyList({ panel, toggle, shade, items, none, undo }, on) {
  let deleted = null;
  let timer = 0;

  function refresh(currentId) {
    const conversations = list();
    none.hidden = conversations.length > 0;
    items.replaceChildren(
      ...conversations.map((conversation) => {
        const item = element("li");
        const open = button(conversation.title || "Untitled", () => {
          on.open(read(conversation.id) ?? conversation);
          if (!BESIDE.matches) show(false);
        });
        open.className = "open";
        open.title = `${conversation.title}\n${new Date(conversation.updated).toLocaleString()}`;
        if (conversation.id === currentId) open.setAttribute("aria-current", "true");
        const bin = button("✕", () => erase(conversation));
        bin.className = "bin";
        bin.setAttribute("aria-label", `Delete “${conversation.title}”`);
        bin.title = "Delete";
        item.append(open, bin);
        return item;
      }),
    );
  }

  function erase(conversation) {
    deleted = read(conversation.id) ?? conversation;
    remove(conversation.id);
    const back = button("Undo", () => {
      restore(deleted);
      undo.hidden = true;
      on.restored(deleted);
      if (!BESIDE.matches) show(false);
    });
    undo.replaceChildren(element("span", "", `Deleted “${conversation.title}”.`), back);
    undo.hidden = false;
    clearTimeout(timer);
    timer = setTimeout(() => (undo.hidden = true), UNDO_MILLIS);
    on.deleted(conversation.id);
    back.focus();
  }

  function show(isOpen) {
    panel.hidden = !isOpen;
    shade.hidden = !isOpen;
    toggle.setAttribute("aria-expanded", String(isOpen));
    if (isOpen && !BESIDE.matches) (items.querySelector("[aria-current]") ?? panel.querySelector("button"))?.focus();
  }

  toggle.addEventListener("click", () => show(panel.hidden));
  shade.addEventListener("click", () => show(false));
  panel.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || BESIDE.matches) return;
    event.stopPropagation();
    show(false);
    toggle.focus();
  });
  BESIDE.addEventListener("change", () => show(BESIDE.matches));
  show(BESIDE.matches);
  return { refresh, close: () => !BESIDE.matches && show(false) };
}
