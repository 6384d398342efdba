// The map of experts: a row a layer, a column an expert, and for each how often the router chose it lately or how many
// workers hold it. The hottest are named in words below.

import { count, element, percent } from "./format.js";
import { getJson } from "./hub.js";

const POLL_MILLIS = 3000;
/** A small model's cells need not fill the page. */
const MAX_CELL_PIXELS = 26;
const N_NAMED = 5;

/** Shows the map in the elements of its section, from now on. */
export function expertMap({ section, canvas, words, hottest, byLoad, cell }) {
  let map = null;

  async function look() {
    try {
      map = await getJson("/api/swarm/experts");
      section.hidden = map.layers.length === 0;
      show();
    } catch {
      // The page says elsewhere that the hub does not answer, and what was seen last stays.
    }
    setTimeout(look, POLL_MILLIS);
  }

  function show() {
    if (!map || map.layers.length === 0) return;
    const { layers, replicas } = map;
    const columns = Math.max(...layers.map(({ load }) => load.length));
    const all = layers.flatMap(({ load }) => load);
    const total = all.reduce((sum, load) => sum + load, 0);
    draw(canvas, layers, columns, byLoad.checked ? loadColours(Math.max(...all, 1)) : holderColours(replicas));
    canvas.style.maxWidth = `${columns * MAX_CELL_PIXELS}px`;
    const unused = all.filter((load) => load === 0).length;
    const single = layers.flatMap(({ holders }) => holders).filter((n) => n < replicas).length;
    const used = total > 0 ? `${count(all.length - unused)} of ${count(all.length)} were chosen lately` : "nothing was asked lately";
    const text = `${count(layers.length)} layers of ${count(columns)} experts: ${used}; ${count(single)} have fewer workers than wanted.`;
    if (words.textContent !== text) words.textContent = text;
    canvas.setAttribute("aria-label", `Map of experts by layer. ${text}`);
    hottest.replaceChildren(...(total > 0 ? named(layers, total) : []));
  }

  canvas.addEventListener("pointermove", (event) => {
    if (!map) return;
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const row = map.layers[Math.floor(((event.clientY - top) / height) * map.layers.length)];
    const expert = Math.floor(((event.clientX - left) / width) * canvas.width);
    if (row?.load[expert] === undefined) return;
    const held = row.holders[expert];
    cell.textContent = `Layer ${row.layer}, expert ${expert}: ${count(row.load[expert])} rows lately, held by ${held || "no"} worker${held === 1 ? "" : "s"}`;
  });
  canvas.addEventListener("pointerleave", () => (cell.textContent = ""));
  section.addEventListener("change", show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  look();
}

/** One pixel an expert; the page's style makes them larger. */
function draw(canvas, layers, columns, colour) {
  canvas.width = columns;
  canvas.height = layers.length;
  canvas.style.aspectRatio = `${columns} / ${layers.length}`;
  const context = canvas.getContext("2d");
  layers.forEach(({ load, holders }, row) => {
    load.forEach((rows, expert) => {
      context.fillStyle = colour(rows, holders[expert]);
      context.fillRect(expert, row, 1, 1);
    });
  });
}

const colours = (names) => {
  const style = getComputedStyle(document.documentElement);
  return names.map((name) => style.getPropertyValue(name).trim());
};

/** From cold to hot by the root of the load, or the few hottest would be all that is seen. */
function loadColours(most) {
  const [cold, hot] = colours(["--raised", "--hot"]);
  const mixed = new Map();
  return (rows) => {
    const part = Math.round(100 * Math.sqrt(rows / most));
    if (!mixed.has(part)) mixed.set(part, `color-mix(in oklab, ${hot} ${part}%, ${cold})`);
    return mixed.get(part);
  };
}

function holderColours(replicas) {
  const [none, few, enough] = colours(["--raised", "--warn", "--good"]);
  return (_, n) => (n === 0 ? none : n < replicas ? few : enough);
}

function named(layers, total) {
  const all = layers.flatMap(({ layer, load }) => load.map((rows, expert) => ({ layer, expert, rows })));
  all.sort((a, b) => b.rows - a.rows);
  return all.slice(0, N_NAMED).map(({ layer, expert, rows }) =>
    element("li", "", `layer ${layer}, expert ${expert}: ${count(rows)} rows, ${percentOf(rows, total)} of all`),
  );
}

const percentOf = (part, whole) => (part / whole < 0.01 ? `${((100 * part) / whole).toFixed(2)}\u00a0%` : percent(part, whole));
