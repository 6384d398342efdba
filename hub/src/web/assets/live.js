// What the hub counts, as rates over the last minutes. The counts and the moments between them are the hub's own: how long
// the network or this page took for a look changes nothing.

import { lineChart } from "./chart.js";
import { bytes, count, micros, percent, plural } from "./format.js";

const SPAN_SECONDS = 300;
/** A page just opened shows its few looks in a span of their own. */
const LEAST_SPAN_SECONDS = 30;
const RECENT_SECONDS = 60;

const perSecond = (format) => (value) => `${format(value)}/s`;
const short = (value) => (value < 10 ? value.toFixed(1) : count(value));

/** Shows the charts in `root` and the sentence above them in `words`. */
export function liveCharts({ root, words }) {
  const tokens = lineChart("Tokens", [""], perSecond(short));
  const latency = lineChart("A layer’s latency", ["half within", "95\u00a0% within"], micros);
  const traffic = lineChart("Bytes", ["sent", "received"], perSecond(bytes));
  const hedges = lineChart("Hedges", [""], perSecond(short));
  root.append(...[tokens, latency, traffic, hedges].map((chart) => chart.root));
  /** The last minutes' looks, the oldest first. */
  let looks = [];

  function add(status) {
    const look = lookOf(status);
    // A hub that began anew counts from zero.
    if (looks.length > 0 && look.seconds < looks.at(-1).seconds) looks = [];
    if (looks.length > 0 && look.seconds === looks.at(-1).seconds) return;
    looks.push(look);
    while (looks[0].seconds < look.seconds - SPAN_SECONDS) looks.shift();
    show(status);
  }

  function show({ engine, totals }) {
    const times = looks.slice(1).map(({ seconds }) => seconds);
    const between = (value) => looks.slice(1).map((look, index) => value(look, looks[index], look.seconds - looks[index].seconds));
    const rate = (name) => between((now, before, seconds) => (now[name] - before[name]) / seconds);
    // The percentiles are those of the last layers: where there was none since the last look they say nothing new.
    const ofLayers = (name) => between((now, before) => (now.layers > before.layers ? now[name] : null));
    const span = Math.min(SPAN_SECONDS, Math.max(LEAST_SPAN_SECONDS, looks.at(-1).seconds - looks[0].seconds));
    tokens.show(times, [rate("tokens")], span);
    latency.show(times, [ofLayers("p50"), ofLayers("p95")], span);
    traffic.show(times, [rate("sent"), rate("received")], span);
    hedges.show(times, [rate("hedges")], span);

    const first = recent();
    const steps = engine.step_micros - first.stepMicros;
    const waited = percent(engine.waited_micros - first.waitedMicros, steps);
    const bubble = steps > 0 ? `; in the last minute ${waited} of the engine’s time went by waiting for experts` : "";
    const requests = `${plural(engine.requests_running, "answer")} being written, ${count(engine.requests_waiting)} waiting`;
    const text = `${requests}${bubble}. ${plural(totals.layers, "layer")} computed since the hub started.`;
    if (words.textContent !== text) words.textContent = text;
  }

  /** The look of a minute ago, or the oldest. */
  const recent = () => looks.find(({ seconds }) => seconds >= looks.at(-1).seconds - RECENT_SECONDS);

  /** The share of the (row, expert) pairs of the last minute that a worker computed, or null if there were none. */
  function recentShare(id) {
    if (looks.length === 0) return null;
    const [first, last] = [recent(), looks.at(-1)];
    const added = (who) => (last.rows.get(who) ?? 0) - (first.rows.get(who) ?? 0);
    const all = [...last.rows.keys()].reduce((sum, who) => sum + added(who), 0);
    return all > 0 ? added(id) / all : null;
  }

  return { add, recentShare };
}

function lookOf({ at_micros: at, engine, totals, workers, hub }) {
  return {
    seconds: at / 1e6,
    tokens: engine.tokens,
    stepMicros: engine.step_micros,
    waitedMicros: engine.waited_micros,
    layers: totals.layers,
    p50: totals.layer_p50_micros,
    p95: totals.layer_p95_micros,
    sent: totals.bytes_sent,
    received: totals.bytes_received,
    hedges: totals.hedges,
    rows: new Map([...workers.map(({ id, rows }) => [id, rows]), ["hub", hub.rows]]),
  };
}
