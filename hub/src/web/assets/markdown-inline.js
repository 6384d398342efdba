// What stands in a line of Markdown, as nodes: code, emphasis, links. Emphasis is found as CommonMark finds it, by runs of
// marks that open and close; the time is that of the line's length.

import { element } from "./format.js";

/** Emphasis within emphasis beyond this is shown as it is written. */
const MAX_DEPTH = 12;
/** A longer run of marks is a drawing and no emphasis. */
const MAX_RUN = 6;

const BACKTICKS = /`+/g;
const SPECIAL = /[\\`*_~[\]!<]|https?:\/\//g;
const MARKS = /\*+|_+|~+/y;
const ANGLE = /<(https?:\/\/[^\s<>]{1,2000})>/y;
const BARE = /https?:\/\/[^\s<>"`]{1,2000}/y;
const TARGET = /\(\s{0,9}(?:<([^<>\n]{0,2000})>|((?:[^\s()]|\([^\s()]{0,200}\)){0,2000}))(?:\s{1,9}"([^"]{0,300})")?\s{0,9}\)/y;
const BREAKING = /[\s]/;
const PUNCTUATION = /[\p{P}\p{S}]/u;

/** The line's nodes in a fragment. */
export function inline(text) {
  const root = document.createDocumentFragment();
  const marks = [];
  const brackets = [];
  const runs = lastRuns(text);
  let plain = "";
  let at = 0;

  const flush = () => {
    if (plain) root.append(plain);
    plain = "";
  };
  const matches = (pattern) => {
    pattern.lastIndex = at;
    return pattern.exec(text);
  };

  while (at < text.length) {
    const found = matches(SPECIAL);
    if (!found) break;
    plain += text.slice(at, found.index);
    at = found.index;
    const sign = text[at];
    if (sign === "\\") {
      const next = text[at + 1] ?? "";
      plain += next && next.charCodeAt(0) < 128 && PUNCTUATION.test(next) ? next : `\\${next}`;
      at += 2;
    } else if (sign === "`") {
      const code = codeAt(text, at, runs);
      if (code.text === null) {
        plain += "`".repeat(code.length);
      } else {
        flush();
        root.append(element("code", "", code.text));
      }
      at += code.length;
    } else if (sign === "*" || sign === "_" || sign === "~") {
      const [run] = matches(MARKS);
      const mark = run.length <= MAX_RUN && markAt(text, at, run);
      if (mark && (mark.opens || mark.closes)) {
        flush();
        mark.node = document.createTextNode(run);
        root.append(mark.node);
        marks.push(mark);
      } else {
        plain += run;
      }
      at += run.length;
    } else if (sign === "[" || (sign === "!" && text[at + 1] === "[")) {
      flush();
      const node = document.createTextNode(sign === "[" ? "[" : "![");
      root.append(node);
      brackets.push({ node, n_marks: marks.length });
      at += node.length;
    } else if (sign === "]") {
      at += 1;
      const target = brackets.length > 0 && matches(TARGET);
      const opened = brackets.pop();
      const href = target && web(target[1] ?? target[2]);
      if (!href) {
        plain += "]";
        continue;
      }
      flush();
      // A link has no links within.
      brackets.length = 0;
      emphasise(marks.splice(opened.n_marks));
      wrap(link(href), opened.node, null);
      opened.node.remove();
      at += target[0].length;
    } else if (sign === "<") {
      const found = matches(ANGLE);
      const href = found && web(found[1]);
      if (href) {
        flush();
        root.append(withText(link(href), found[1]));
        at += found[0].length;
      } else {
        plain += "<";
        at += 1;
      }
    } else if (sign === "h") {
      const address = trimmed(matches(BARE)?.[0] ?? "");
      const href = brackets.length === 0 && web(address);
      if (href) {
        flush();
        root.append(withText(link(href), address));
      } else {
        plain += address || "h";
      }
      at += address.length || 1;
    } else {
      plain += sign;
      at += 1;
    }
  }
  plain += text.slice(at);
  flush();
  emphasise(marks);
  root.normalize();
  return root;
}

// ---- code ---------------------------------------------------------------------------------------------------------

/** Where the last run of so many backticks begins: what opens after it is closed by nothing. */
function lastRuns(text) {
  const last = new Map();
  BACKTICKS.lastIndex = 0;
  for (const { 0: run, index } of text.matchAll(BACKTICKS)) last.set(run.length, index);
  return last;
}

/** The code that begins at `at`, or null with the length of the backticks that open none. */
function codeAt(text, at, lastRuns) {
  BACKTICKS.lastIndex = at;
  const { length } = BACKTICKS.exec(text)[0];
  if ((lastRuns.get(length) ?? -1) <= at) return { text: null, length };
  for (let run = BACKTICKS.exec(text); run; run = BACKTICKS.exec(text)) {
    if (run[0].length !== length) continue;
    const inner = text.slice(at + length, run.index).replaceAll("\n", " ");
    // A space on either side stands for backticks within.
    const isPadded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() !== "";
    return { text: isPadded ? inner.slice(1, -1) : inner, length: run.index + length - at };
  }
  return { text: null, length };
}

// ---- links --------------------------------------------------------------------------------------------------------

/** The address if it is one of the web, else null: no script, no file, nothing of this hub. */
function web(address) {
  try {
    const url = new URL(address);
    return ["http:", "https:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(href) {
  const made = element("a");
  made.href = href;
  // Its text is the model's; this is where it leads.
  made.title = href;
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  return made;
}

function withText(node, text) {
  node.append(text);
  return node;
}

/** An address without the punctuation of the sentence that it stands in. */
function trimmed(address) {
  let end = address.length;
  const count = (sign) => address.slice(0, end).split(sign).length - 1;
  while (end > 0) {
    const last = address[end - 1];
    if (last === ")" && count(")") <= count("(")) break;
    if (!".,:;!?'*_~)]".includes(last)) break;
    end -= 1;
  }
  return address.slice(0, end);
}

// ---- emphasis -----------------------------------------------------------------------------------------------------

/** A run of marks, and whether it can open or close by what stands beside it. */
function markAt(text, at, run) {
  const sign = run[0];
  if (sign === "~" && run.length !== 2) return null;
  const before = text[at - 1] ?? " ";
  const after = text[at + run.length] ?? " ";
  const isOpen = !BREAKING.test(after) && (!PUNCTUATION.test(after) || BREAKING.test(before) || PUNCTUATION.test(before));
  const isClosed = !BREAKING.test(before) && (!PUNCTUATION.test(before) || BREAKING.test(after) || PUNCTUATION.test(after));
  // Within a word an underscore is a letter.
  const opens = isOpen && (sign !== "_" || !isClosed || PUNCTUATION.test(before));
  const closes = isClosed && (sign !== "_" || !isOpen || PUNCTUATION.test(after));
  return { sign, left: run.length, length: run.length, opens, closes };
}

/** Sets what stands between marks that open and close, innermost first. */
function emphasise(marks) {
  /** Marks that may still be closed: the last is the nearest. */
  const open = [];
  /** For each kind of closing mark, how many of `open` are known to be none of its own. */
  const searched = new Map();
  for (const mark of marks) {
    const kind = `${mark.sign}${mark.opens}${mark.length % 3}`;
    while (mark.closes && mark.left > 0) {
      const from = searched.get(kind) ?? 0;
      let index = open.length - 1;
      while (index >= from && (open[index].sign !== mark.sign || clash(open[index], mark))) index -= 1;
      if (index < from) {
        searched.set(kind, open.length);
        break;
      }
      // Those in between have nothing left to close them.
      open.length = index + 1;
      for (const [other, n] of searched) searched.set(other, Math.min(n, index));
      const opener = open[index];
      const size = mark.sign === "~" || (opener.left >= 2 && mark.left >= 2) ? 2 : 1;
      if (depthBetween(opener.node, mark.node) >= MAX_DEPTH) break;
      shorten(opener, size);
      shorten(mark, size);
      wrap(element(mark.sign === "~" ? "del" : size === 2 ? "strong" : "em"), opener.node, mark.node);
      if (opener.left === 0) open.pop();
    }
    if (mark.opens && mark.left > 0) open.push(mark);
  }
}

/** How deep a wrapped node nests. */
const depths = new WeakMap();

function depthBetween(from, to) {
  let depth = 0;
  for (let node = from.nextSibling; node && node !== to; node = node.nextSibling) depth = Math.max(depth, depths.get(node) ?? 0);
  return depth;
}

/** CommonMark's rule of three: `*foo**bar*` is one emphasis. */
function clash(opener, closer) {
  const mayBeBoth = (opener.opens && opener.closes) || (closer.opens && closer.closes);
  return mayBeBoth && (opener.length + closer.length) % 3 === 0 && (opener.length % 3 !== 0 || closer.length % 3 !== 0);
}

function shorten(mark, size) {
  mark.left -= size;
  mark.node.data = mark.node.data.slice(size);
}

/** Moves what stands between two nodes into a new one, which takes its place; without an end, all that follows. */
function wrap(made, from, to) {
  depths.set(made, 1 + depthBetween(from, to));
  while (from.nextSibling && from.nextSibling !== to) made.append(from.nextSibling);
  from.after(made);
}
