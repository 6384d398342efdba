// Text files that go with a question: chosen or dropped, read here, and sent as a part of its text.

import { bytes, element, textBytes } from "./format.js";
import { button } from "./message.js";

const MAX_FILES = 8;
const MAX_BYTES = 256 << 10;

/**
 * The files beside a composer: `take()` gives them away, `put(files)` brings them back. `changed()` is called after each
 * change, and `refuse(words)` when a file is not taken.
 */
export function fileShelf({ list, input, pick, dropOn }, { changed, refuse }) {
  let files = [];

  function show() {
    list.hidden = files.length === 0;
    list.replaceChildren(...files.map(itemOf));
    changed();
  }

  function itemOf(file) {
    const item = element("li");
    const off = button("✕", () => {
      files = files.filter((other) => other !== file);
      show();
      (list.querySelector("button") ?? pick).focus();
    });
    off.setAttribute("aria-label", `Remove ${file.name}`);
    item.append(element("span", "", `${file.name}, ${textBytes(file.text)}`), off);
    return item;
  }

  async function add(chosen) {
    refuse("");
    for (const file of chosen) {
      const why = files.length >= MAX_FILES ? `A question takes ${MAX_FILES} files.` : await read(file);
      if (why) refuse(why);
    }
    show();
  }

  /** Reads a file, or says why it is not taken. */
  async function read(file) {
    if (file.size > MAX_BYTES) return `“${file.name}” has ${bytes(file.size)}; a file may have ${bytes(MAX_BYTES)}.`;
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) return `“${file.name}” is no text.`;
      files.push({ name: file.name, text });
      return "";
    } catch {
      return `“${file.name}” is no text.`;
    }
  }

  pick.addEventListener("click", () => input.click());
  input.addEventListener("change", async () => {
    await add([...input.files]);
    // The same file can be chosen again.
    input.value = "";
  });
  dropOn.addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
  dropOn.addEventListener("drop", (event) => {
    if (event.dataTransfer.files.length === 0) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });

  return {
    isEmpty: () => files.length === 0,
    take() {
      const taken = files;
      files = [];
      show();
      return taken;
    },
    put(more) {
      files = [...more, ...files].slice(0, MAX_FILES);
      show();
    },
  };
}

/** A question with its files as the model reads it: each between fences that it does not contain. */
export function withFiles(content, files) {
  const parts = files.map(({ name, text }) => {
    const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...parts, content].filter(Boolean).join("\n\n");
}
