// Numbers and names as people read them.

export const count = (n) => Math.round(n).toLocaleString("en");

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return `${n < 10 && unit > 0 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

/** How long a text is in a file. */
export const textBytes = (text) => bytes(new Blob([text]).size);

/** Microseconds as "-", "0.42 ms", "17 ms", "1.2 s". */
export function micros(n) {
  if (!n) return "-";
  if (n >= 1e6) return `${(n / 1e6).toFixed(1)} s`;
  return n < 1e4 ? `${(n / 1e3).toFixed(2)} ms` : `${count(n / 1e3)} ms`;
}

export const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)}\u00a0%` : "-");

/** A worker by what a person recognises: the name it was given, or its adapter and the start of its id. */
export const workerName = (worker) => worker.name || `${worker.adapter || worker.kind} (${worker.id.slice(0, 6)})`;

/** Creates an element with text; text from outside never becomes markup. */
export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}
