// Shows a growing text of Markdown as a page's own nodes. Nothing in the text becomes markup: tags are shown as they are
// written, a link leads to http or https alone, and an image is a link, since a page asks nobody else for anything.

import { copies } from "./copy.js";
import { element } from "./format.js";
import { blocksOf } from "./markdown-blocks.js";
import { inline } from "./markdown-inline.js";

/** A box that shows Markdown: `show(text)` draws what changed since the text before, and leaves the rest as it stands. */
export function markdownView(root) {
  /** What is shown, in order: the block's source and its node. */
  let shown = [];

  function show(text) {
    const blocks = levelled(blocksOf(text));
    let same = 0;
    while (same < shown.length && same < blocks.length && shown[same].source === blocks[same].source) same += 1;
    // A block of code that grows keeps its node, and so its button and what is selected in it.
    if (same === shown.length - 1 && grows(shown[same], blocks[same])) {
      shown[same].node.querySelector("code").append(blocks[same].text.slice(shown[same].block.text.length));
      shown[same] = { ...shown[same], block: blocks[same], source: blocks[same].source };
      same += 1;
    }
    for (const { node } of shown.slice(same)) node.remove();
    const more = blocks.slice(same).map((block) => ({ block, source: block.source, node: nodeOf(block) }));
    root.append(...more.map(({ node }) => node));
    shown = [...shown.slice(0, same), ...more];
  }

  return { show };
}

/** Headings as deep as they say, but none that skips a level: who listens to a page finds the way by them. */
function levelled(blocks) {
  // The page has the first level to itself.
  let last = 1;
  const visit = (block) => {
    if (block.kind === "heading") block.level = last = Math.min(block.level + 1, last + 1, 6);
    block.blocks?.forEach(visit);
    block.items?.forEach((item) => item.blocks.forEach(visit));
  };
  blocks.forEach(visit);
  return blocks;
}

function grows(before, block) {
  return (
    before.block.kind === "code" &&
    block?.kind === "code" &&
    before.block.language === block.language &&
    block.text.startsWith(before.block.text)
  );
}

function nodeOf(block) {
  switch (block.kind) {
    case "code":
      return codeNode(block);
    case "heading":
      return withInline(element(`h${block.level}`), block.text);
    case "rule":
      return element("hr");
    case "quote":
      return withBlocks(element("blockquote"), block.blocks);
    case "list":
      return listNode(block);
    case "table":
      return tableNode(block);
    default:
      return withInline(element("p"), block.text);
  }
}

function withInline(node, text) {
  node.append(inline(text));
  return node;
}

function withBlocks(node, blocks) {
  node.append(...blocks.map(nodeOf));
  return node;
}

function codeNode({ language, text }) {
  const box = element("div", "code");
  const bar = element("div", "code-bar");
  const body = element("pre");
  const code = element("code");
  const copy = element("button", "", "Copy");
  copy.type = "button";
  copy.setAttribute("aria-label", "Copy the code");
  // Appended even if empty, so that what comes is added to a text.
  code.append(text);
  copies(copy, () => code.textContent);
  // Wider than the page it scrolls, which a keyboard can do only where the focus can be.
  scrolls(body, language ? `Code, ${language}` : "Code");
  bar.append(element("span", "", language), copy);
  body.append(code);
  box.append(bar, body);
  return box;
}

function listNode({ isOrdered, start, isLoose, items }) {
  const list = element(isOrdered ? "ol" : "ul");
  if (isOrdered && start !== 1) list.start = start;
  for (const { task, blocks } of items) {
    const item = element("li");
    if (task !== null) {
      const box = element("input");
      box.type = "checkbox";
      box.checked = task;
      box.disabled = true;
      box.setAttribute("aria-label", task ? "done" : "to do");
      item.className = "task";
      item.append(box);
    }
    for (const block of blocks) {
      if (block.kind === "paragraph" && !isLoose) item.append(withInline(element("span", "line"), block.text));
      else item.append(nodeOf(block));
    }
    list.append(item);
  }
  return list;
}

function tableNode({ align, head, rows }) {
  const box = element("div", "table");
  const table = element("table");
  const row = (cells, tag) => {
    const made = element("tr");
    cells.forEach((text, index) => {
      const cell = withInline(element(tag), text);
      if (tag === "th") cell.scope = "col";
      if (align[index]) cell.style.textAlign = align[index];
      made.append(cell);
    });
    return made;
  };
  const top = element("thead");
  const body = element("tbody");
  top.append(row(head, "th"));
  body.append(...rows.map((cells) => row(cells, "td")));
  table.append(top, body);
  box.append(table);
  scrolls(box, "Table");
  return box;
}

function scrolls(node, name) {
  node.tabIndex = 0;
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", name);
}
