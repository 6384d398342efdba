// What the join page says: states, reasons, figures. It knows no page and no worker: status in, words out.

import { bytes, count, micros } from "/assets/format.js";

/** How long a connection may take before the page says that there is none. */
export const CONNECT_MILLIS = 3000;

const STATES = {
  joining: ["warn", "Joining"],
  syncing: ["warn", "Loading experts"],
  serving: ["good", "Lending: this device computes for the hub"],
  paused: ["warn", "Paused while this tab is hidden"],
  draining: ["warn", "Leaving"],
  closed: ["warn", "Not connected; trying again"],
};

/** The tone of the state and its words. `waited` is how long there has been no connection, in milliseconds. */
export function stateOf({ phase, state, isPaused }, waited) {
  if (phase === "idle") return ["", "Not lending"];
  if (phase === "checking") return ["warn", "Asking the hub"];
  if (phase === "starting") return ["warn", "Testing this device"];
  if (phase === "connecting") return waited < CONNECT_MILLIS ? STATES.joining : STATES.closed;
  if (phase === "connected") {
    if (isPaused && (state === "paused" || state === "serving")) return ["warn", "Paused by you"];
    return STATES[state] ?? ["warn", state];
  }
  return ["bad", "Not lending"];
}

/** What stands in the way, in plain words with the remedy; "" if nothing does. */
export function troubleOf({ phase, note, problem }, waited) {
  if (phase === "stopped") return note;
  if (phase === "crashed") return `The worker failed: ${note}. Reload this page to try again.`;
  if (phase !== "connecting" || waited < CONNECT_MILLIS) return "";
  return `${problem ?? "The hub does not answer."} This tab keeps trying; what it has loaded stays.`;
}

/** What this tab does without, and what would give it: a sentence each. */
export function lacksOf({ note, backend, setback, keeps_blocks: keepsBlocks, phase, device }) {
  const lacks = setback ? [setback] : [];
  if (!window.isSecureContext) {
    lacks.push(
      "This address is not secure (neither https nor localhost). The browser gives it no GPU, keeps nothing for the next visit and lets the screen go dark: it computes on the CPU and loads its experts anew at each visit.",
      "What would help: whoever runs the hub starts it with --lan, and you open the https address that it shows.",
    );
    return lacks;
  }
  if (!setback && device === "auto" && !navigator.gpu) lacks.push("This browser has no WebGPU, so this tab computes on the CPU. A current Chrome, Edge or Safari has it.");
  else if (!setback && backend === "wasm-simd" && note) lacks.push(`${note} This tab computes on the CPU.`);
  if (phase === "connected" && !keepsBlocks) {
    lacks.push("This browser gives no storage (a private window?): experts are loaded again at each visit.");
  }
  return lacks;
}

/** What lending gives and costs, before anything is decided: pairs of a name and words. `terms` is the hub's, or null. */
export function costsOf(terms, memoryBytes, battery) {
  const total = terms ? terms.blocks * terms.model.block_bytes : Infinity;
  const weights = bytes(Math.min(memoryBytes, total));
  const again = window.isSecureContext ? "once; they are kept for your next visit" : "at each visit";
  const costs = [
    ["Gives", terms ? `a share of ${terms.model.name}'s experts, computed for everyone who asks this hub` : "a share of the model's experts, computed for everyone who asks this hub"],
    ["Memory", `up to ${weights} while it lends`],
    ["Download", `up to ${weights} of experts, ${again}`],
  ];
  if (terms) {
    const { n_layers: layers, hidden, n_experts_per_token: chosen } = terms.model;
    // A row of f16 to this device, and one back for each expert that was chosen, with what the hub checks it by.
    const answer = 2 * hidden + terms.product_bytes;
    costs.push(["Traffic", `up to ${bytes(layers * (2 * hidden + chosen * answer))} for each word-piece that the hub reads or writes`]);
  }
  costs.push(["Power", powerOf(battery)]);
  return costs;
}

function powerOf(battery) {
  const use = "the screen stays on and the processor works whenever someone asks";
  if (!battery) return `${use}: plug a phone or laptop in`;
  const level = `${Math.round(100 * battery.level)}\u00a0%`;
  return battery.charging ? `${use}; it is plugged in (${level})` : `${use}. On battery (${level}): plug it in`;
}

/** Facts while it lends: pairs of a name and words, in order; those without words are left out. */
export function factsOf(s, memoryBytes) {
  return [
    ["Model", s.model],
    ["Computes on", s.backend === "wasm-simd" ? s.adapter : s.adapter && `${s.adapter} (${[s.backend, ...s.features].join(", ")})`],
    ["Experts", s.model && `${count(s.blocks_resident)} of ${count(s.blocks_assigned)} held${s.blocks_failed ? `, ${count(s.blocks_failed)} failed` : ""}`],
    ["Memory", s.model && `${bytes(s.bytes_resident)} of ${bytes(memoryBytes)}`],
    ["Downloaded", s.model && `${bytes(s.bytes_downloaded)} of experts`],
    ["Traffic", s.bytes_received && `${bytes(s.bytes_received)} in, ${bytes(s.bytes_sent)} out`],
    ["Requests served", s.model && `${count(s.answers)} (${count(s.rows)} rows)${s.errors ? `, ${count(s.errors)} refused` : ""}`],
    ["Latency", s.answers ? `${micros(s.latency_p50_micros)}, at worst ${micros(s.latency_p99_micros)}` : ""],
    ["Worker", s.worker?.slice(0, 8)],
  ];
}

/** Those of them that a small frame has room for. */
export const mainFacts = (facts) => facts.filter(([name]) => ["Experts", "Traffic", "Requests served"].includes(name));

/** A time as "5 s" or "3 min". */
export const span = (millis) => (millis < 90_000 ? `${Math.max(1, Math.round(millis / 1000))} s` : `${Math.round(millis / 60_000)} min`);
