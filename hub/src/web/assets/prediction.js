// What the latency model predicts beside what is measured, and what would help: all of it computed by the hub.

import { setText } from "./facts.js";
import { count, element, micros } from "./format.js";

/** A part as "+20 %", "-3 %", "no change". */
function signed(part) {
  const percent = Math.round(100 * part);
  if (percent === 0) return "no change";
  return `${percent > 0 ? "+" : "\u2212"}${count(Math.abs(percent))}\u00a0%`;
}

const rate = (tokens) => `${tokens < 10 ? tokens.toFixed(1) : count(tokens)}/s`;

/** Shows `prediction` in `words`, the rows of `table`, `advice` and the items of `list`. */
export function showPrediction({ words, table, advice, list }, prediction) {
  const { reason, tokens_per_second: tokens, layer_micros: layer } = prediction;
  const isKnown = !reason;
  table.hidden = !isKnown;
  advice.hidden = !isKnown;
  list.hidden = !isKnown;
  if (!isKnown) {
    setText(words, reason);
    return;
  }
  const own = Math.round(100 * prediction.hub_share);
  setText(words, `From each worker\u2019s latency and share of the work, over the last ${count(prediction.steps)} steps; the hub\u2019s own work is ${own}\u00a0% of their time.`);
  fill(table.tBodies[0], [
    ["Tokens while computing", rate(tokens.predicted), rate(tokens.measured), signed(tokens.difference)],
    ["A layer on average", micros(layer.predicted), micros(layer.measured), signed(layer.difference)],
  ]);
  setText(advice, prediction.advice);
  fillList(list, prediction.what_ifs);
}

/** Cells change in place, so that a selection stays. */
function fill(body, rows) {
  rows.forEach((cells, at) => {
    const row = body.rows[at] ?? body.insertRow();
    cells.forEach((text, column) => {
      let cell = row.cells[column];
      if (!cell) {
        cell = element(column === 0 ? "th" : "td");
        if (column === 0) cell.scope = "row";
        row.append(cell);
      }
      setText(cell, text);
    });
  });
}

function fillList(list, whatIfs) {
  while (list.children.length > whatIfs.length) list.lastChild.remove();
  whatIfs.forEach(({ change, gain }, at) => {
    let item = list.children[at];
    if (!item) {
      item = element("li");
      item.append(element("span", "change"), element("span", "gain"));
      list.append(item);
    }
    setText(item.children[0], change);
    setText(item.children[1], signed(gain));
    item.children[1].className = `gain ${gain >= 0.01 ? "better" : gain <= -0.01 ? "worse" : ""}`;
  });
}
