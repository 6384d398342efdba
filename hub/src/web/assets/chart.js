// A small line chart of the last minutes: what it shows in words, its newest value, and the line.

import { element } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 72;

/**
 * A chart under `title`. `lines` names its lines in the order of their values; `format(value)` writes one.
 * `show(times, values, spanSeconds)`: `times` in seconds up to now, ascending, and for each line its values at them, null
 * where nothing was measured.
 */
export function lineChart(title, lines, format) {
  const root = element("figure", "chart");
  const caption = element("figcaption");
  const now = element("span", "now");
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const paths = lines.map((_, index) => svg("path", { class: `line line-${index}`, "vector-effect": "non-scaling-stroke" }));
  const scale = element("div", "scale");
  const most = element("span");
  const span = element("span");
  caption.append(element("span", "name", title), now);
  picture.append(svg("path", { class: "base", d: `M0 ${HEIGHT - 0.5}H${WIDTH}`, "vector-effect": "non-scaling-stroke" }), ...paths);
  scale.append(span, most);
  root.append(caption, picture, scale);

  function show(times, values, spanSeconds) {
    const last = times.at(-1) ?? 0;
    const known = values.flat().filter((value) => value !== null);
    const top = Math.max(...known, 0);
    const x = (time) => WIDTH * (1 - (last - time) / spanSeconds);
    const y = (value) => HEIGHT - 2 - (top > 0 ? (HEIGHT - 4) * (value / top) : 0);
    paths.forEach((path, index) => path.setAttribute("d", line(times, values[index], x, y)));
    const words = lines.map((name, index) => {
      const value = newest(values[index]);
      return `${name ? `${name} ` : ""}${value === null ? "-" : format(value)}`;
    });
    now.replaceChildren(...words.map((word, index) => element("span", lines[index] && `key key-${index}`, word)));
    most.textContent = known.length ? `most ${format(top)}` : "nothing measured yet";
    span.textContent = spanSeconds < 90 ? `last ${Math.round(spanSeconds)} s` : `last ${Math.round(spanSeconds / 60)} min`;
    picture.setAttribute("aria-label", `${title}: ${words.join(", ")}; ${most.textContent} in the last minutes`);
  }

  return { root, show };
}

const newest = (values) => values.at(-1) ?? values.findLast((value) => value !== null) ?? null;

/** A line with gaps where nothing was measured. */
function line(times, values, x, y) {
  let path = "";
  let isDown = false;
  times.forEach((time, index) => {
    const value = values[index];
    if (value !== null) path += `${isDown ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}${isDown ? "" : "h0"}`;
    isDown = value !== null;
  });
  return path;
}

function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
