// Takes a text of Markdown apart into blocks: paragraphs, headings, code, lists, quotes, tables. What is in a line is left
// to markdown-inline.js.
//
// It is Markdown as models write it, not all of CommonMark: no indented code, no underlined headings, no HTML, no
// definitions of links. Whatever the text, the time it takes is bounded by its length times the depth of what it nests.

/** Quotes and lists within each other beyond this are shown as they are written. */
const MAX_DEPTH = 12;
const MAX_COLUMNS = 64;

const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t](.*))?$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|(\d{1,9})[.)])([ \t]+|$)/;
const TASK = /^\[([ xX])\][ \t]+/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*(?:\|[ \t]*)?$/;

/** The blocks of a text, each with the `source` it was read from. */
export const blocksOf = (text) => read(text.replace(/\r\n?/g, "\n").split("\n"), 0);

function read(lines, depth) {
  const blocks = [];
  let at = 0;
  const take = (block, end) => {
    blocks.push({ ...block, source: lines.slice(at, end).join("\n") });
    at = end;
  };
  while (at < lines.length) {
    const line = lines[at];
    if (line.trim() === "") at += 1;
    else if (FENCE.test(line)) take(...code(lines, at));
    else if (HEADING.test(line)) take(heading(line), at + 1);
    else if (RULE.test(line)) take({ kind: "rule" }, at + 1);
    else if (QUOTE.test(line) && depth < MAX_DEPTH) take(...quote(lines, at, depth));
    else if (ITEM.test(line) && depth < MAX_DEPTH) take(...list(lines, at, depth));
    else if (isTable(lines, at)) take(...table(lines, at));
    else take(...paragraph(lines, at, depth));
  }
  return blocks;
}

function heading(line) {
  const [, marks, text] = HEADING.exec(line);
  // Marks at its end close it, for looks.
  return { kind: "heading", level: marks.length, text: (text ?? "").trim().replace(/(^|[ \t])#+$/, "").trim() };
}

/** Up to the fence that closes it, or to the text's end while that has not come. */
function code(lines, at) {
  const [, indent, fence, info] = FENCE.exec(lines[at]);
  const closes = new RegExp(`^ {0,3}${fence[0] === "`" ? "`" : "~"}{${fence.length},} *$`);
  const inner = new RegExp(`^ {0,${indent.length}}`);
  let end = at + 1;
  while (end < lines.length && !closes.test(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).map((line) => line.replace(inner, "")).join("\n");
  return [{ kind: "code", language: info.trim().split(/\s+/)[0], text }, Math.min(end + 1, lines.length)];
}

function quote(lines, at, depth) {
  let end = at;
  const inner = [];
  for (; end < lines.length; end += 1) {
    // A paragraph in a quote may go on without the mark.
    const goesOn = end > at && inner.at(-1).trim() !== "" && !begins(lines, end, depth) && lines[end].trim() !== "";
    if (!QUOTE.test(lines[end]) && !goesOn) break;
    inner.push(lines[end].replace(QUOTE, ""));
  }
  return [{ kind: "quote", blocks: read(inner, depth + 1) }, end];
}

function list(lines, at, depth) {
  const [, , mark, number] = ITEM.exec(lines[at]);
  const isSame = (line) => {
    const found = ITEM.exec(line);
    return found !== null && !RULE.test(line) && found[2].at(-1) === mark.at(-1);
  };
  const items = [];
  let isLoose = false;
  let end = at;
  while (end < lines.length && isSame(lines[end])) {
    const [whole, indent, , , space] = ITEM.exec(lines[end]);
    // Five spaces and more are of the item's own text.
    const width = space.length > 4 || space === "" ? whole.trimEnd().length + 1 : whole.length;
    const first = lines[end].slice(Math.min(width, lines[end].length));
    const task = TASK.exec(first);
    const inner = [task ? first.slice(task[0].length) : first];
    end += 1;
    let hasGap = false;
    for (; end < lines.length; end += 1) {
      const line = lines[end].replace(/^\t+/, (tabs) => "    ".repeat(tabs.length));
      const leading = line.length - line.trimStart().length;
      if (line.trim() === "") {
        hasGap = true;
        inner.push("");
        continue;
      }
      const isInside = leading >= Math.min(width, indent.length + 2);
      if (!isInside && (hasGap || begins(lines, end, depth))) break;
      if (isInside && hasGap && leading < width + 4 && !ITEM.test(line.slice(Math.min(leading, width)))) isLoose = true;
      inner.push(line.slice(Math.min(leading, width)));
      hasGap = false;
    }
    if (hasGap && end < lines.length && isSame(lines[end])) isLoose = true;
    items.push({ task: task ? task[1] !== " " : null, blocks: read(inner, depth + 1) });
  }
  return [{ kind: "list", isOrdered: number !== undefined, start: Number(number ?? 1), isLoose, items }, end];
}

const isTable = (lines, at) =>
  lines[at].includes("|") &&
  at + 1 < lines.length &&
  DELIMITERS.test(lines[at + 1]) &&
  lines[at + 1].includes("-") &&
  cells(lines[at]).length === cells(lines[at + 1]).length;

function table(lines, at) {
  const head = cells(lines[at]);
  const align = cells(lines[at + 1]).map((cell) => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    return left && right ? "center" : right ? "right" : "";
  });
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|") && lines[end].trim() !== ""; end += 1) {
    const found = cells(lines[end]).slice(0, head.length);
    rows.push([...found, ...Array(head.length - found.length).fill("")]);
  }
  return [{ kind: "table", align, head, rows }, end];
}

/** A row's cells; a bar behind a backslash or in code is none of the table's. */
function cells(line) {
  const found = line.trim().replace(/^\|/, "").match(/(?:\\.|`[^`]*`|[^|\\]|\\$)+|\|/g) ?? [];
  const row = [];
  let isCell = false;
  for (const part of found) {
    if (part === "|") {
      if (!isCell) row.push("");
      isCell = false;
    } else {
      row.push(part.trim().replaceAll("\\|", "|"));
      isCell = true;
    }
  }
  return row.slice(0, MAX_COLUMNS);
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !begins(lines, end, depth)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trim()).join("\n");
  return [{ kind: "paragraph", text }, end];
}

/** Whether another block begins here although no empty line comes before it. */
function begins(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  if (depth < MAX_DEPTH && (QUOTE.test(line) || ITEM.test(line))) return true;
  return isTable(lines, at);
}
