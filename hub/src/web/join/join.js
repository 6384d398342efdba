// The join page: starts the dedicated worker, shows what it reports, tells it what happens to the page. It computes nothing.

import { bytes, count, element, micros } from "/assets/format.js";

const at = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);
const token = decodeURIComponent(location.hash.slice(1));

/** The latest report, flat; tests read it. */
window.moexStatus = { phase: "starting" };

// ---- who this tab is ----------------------------------------------------------------------------------------------

const MAX_TABS = 64;
const RELOAD_PATIENCE_MILLIS = 3000;

/** Resolves to whether this tab now holds the lock of `slot`; it does until it is closed. */
function hold(slot, options) {
  return new Promise((resolve) => {
    const held = (lock) => {
      resolve(lock !== null);
      return lock && new Promise((release) => addEventListener("pagehide", release));
    };
    navigator.locks.request(`moex-worker-${slot}`, options, held).catch(() => resolve(false));
  });
}

/** A number no other open tab of this browser has: a reloaded tab gets its own again, a new one the first that is free. */
async function claimSlot() {
  const mine = sessionStorage.getItem("moex.slot");
  if (mine !== null && (await hold(mine, { signal: AbortSignal.timeout(RELOAD_PATIENCE_MILLIS) }))) return mine;
  for (let slot = 0; slot < MAX_TABS; slot += 1) {
    if (await hold(slot, { ifAvailable: true })) return slot;
  }
  throw new Error("Too many tabs of this browser are workers already.");
}

/** The stable id of this tab's slot. Without locks, which insecure pages lack, the tab has an id of its own. */
async function workerId() {
  const [store, key] = navigator.locks ? [localStorage, `moex.worker.${await claimSlot()}`] : [sessionStorage, "moex.worker"];
  if (navigator.locks) sessionStorage.setItem("moex.slot", key.split(".").at(-1));
  let id = store.getItem(key);
  if (!/^[0-9a-f]{32}$/.test(id ?? "")) {
    id = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    store.setItem(key, id);
  }
  return id;
}

/** "512MiB" or "4GiB" in bytes; null for anything else. */
function parseMemory(text) {
  const [, number, unit] = /^(\d+(?:\.\d+)?)\s*([KMG]iB)$/.exec(text ?? "") ?? [];
  return unit ? Math.floor(number * { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 }[unit]) : null;
}

// ---- the worker ---------------------------------------------------------------------------------------------------

let worker = null;
let device = query.get("device") ?? "auto";
let setback = "";

async function start() {
  stop();
  if (!token) return refuse("This address has no token. Open the whole join address that the hub prints, with everything after the #.");
  if (typeof WebAssembly !== "object") return refuse("This browser has no WebAssembly, so it cannot compute.");
  const starting = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  worker = starting;
  starting.onmessage = ({ data }) => worker === starting && report(JSON.parse(data));
  starting.onerror = ({ message }) => worker === starting && report({ phase: "crashed", note: message || "it did not load" });
  tell(document.visibilityState);
  try {
    const options = { hub: location.origin, token, worker: await id, device, memory_budget_bytes: memory() };
    starting.postMessage({ options });
  } catch (error) {
    refuse(error.message);
  }
}

function stop() {
  worker?.terminate();
  worker = null;
}

const tell = (visibility) => worker?.postMessage({ visibility });

const refuse = (note) => report({ phase: "stopped", note });

function report(message) {
  const { status, ...rest } = message;
  window.moexStatus = { ...window.moexStatus, ...status, ...rest, device };
  if (message.phase === "crashed" && device === "auto") {
    device = "wasm";
    setback = `The GPU failed (${message.note}), so this tab goes on without it.`;
    start();
  } else if (message.phase === "crashed" || message.phase === "stopped") {
    stop();
  }
  show(window.moexStatus);
}

// ---- what is shown ------------------------------------------------------------------------------------------------

const STATES = {
  joining: ["warn", "Joining"],
  syncing: ["warn", "Loading experts"],
  serving: ["good", "Serving"],
  paused: ["warn", "Paused while this tab is hidden"],
  draining: ["warn", "Leaving"],
  closed: ["warn", "Not connected; trying again"],
};

function stateOf({ phase, state }) {
  if (phase === "starting") return ["warn", "Testing this device"];
  if (phase === "connecting") return STATES.closed;
  if (phase === "connected") return STATES[state] ?? ["warn", state];
  return ["bad", "Not joined"];
}

/** What stands in the way, or what this tab does without, in plain words: the cause that explains the others comes first. */
function noticeOf({ phase, note, problem, backend, keeps_blocks: keepsBlocks }) {
  if (phase === "stopped") return note;
  if (phase === "crashed") return `The worker failed: ${note}. Reload this page to try again.`;
  if (!window.isSecureContext) {
    return "This address is not secure (neither https nor localhost), so the browser gives it no GPU and no storage: it computes on the CPU and loads its experts anew at each visit.";
  }
  const parts = [setback, note, phase === "connecting" ? (problem ?? "The hub does not answer.") : ""];
  if (backend === "wasm-simd" && !navigator.gpu && device === "auto") parts.push("This browser has no WebGPU, so it computes on the CPU.");
  if (phase === "connected" && !keepsBlocks) parts.push("This browser gives no storage: experts are loaded anew at each visit.");
  return parts.filter(Boolean).join(" ");
}

function factsOf(s) {
  return {
    Model: s.model,
    "Computes on": s.backend === "wasm-simd" ? s.adapter : s.adapter && `${s.adapter} (${[s.backend, ...s.features].join(", ")})`,
    Experts: s.model && `${count(s.blocks_resident)} of ${count(s.blocks_assigned)} held${s.blocks_failed ? `, ${count(s.blocks_failed)} failed` : ""}`,
    Memory: s.model && `${bytes(s.bytes_resident)} of ${bytes(memory())}`,
    Downloaded: s.model && bytes(s.bytes_downloaded),
    "Requests served": s.model && `${count(s.answers)} (${count(s.rows)} rows)${s.errors ? `, ${count(s.errors)} refused` : ""}`,
    Latency: s.answers ? `${micros(s.latency_p50_micros)}, at worst ${micros(s.latency_p99_micros)}` : "",
    Worker: s.worker,
  };
}

/** Sets the text only when it is new, so that a screen reader says it once. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function show(status) {
  const [tone, words] = stateOf(status);
  at("state").className = `state ${tone}`;
  setText(at("state"), words);
  const notice = noticeOf(status) ?? "";
  at("notice").hidden = !notice;
  at("notice").classList.toggle("bad", tone === "bad");
  setText(at("notice"), notice);
  at("progress").value = status.blocks_assigned ? status.blocks_resident / status.blocks_assigned : 0;
  for (const [name, value] of Object.entries(factsOf(status))) {
    if (!facts.has(name)) facts.set(name, newFact(name));
    const [term, text] = facts.get(name);
    term.hidden = text.hidden = !value;
    setText(text, value || "");
  }
}

/** The cells of each fact, in the order of the list. */
const facts = new Map();

function newFact(name) {
  const cells = [element("dt", "", name), element("dd")];
  at("facts").append(...cells);
  return cells;
}

// ---- what happens to the page -------------------------------------------------------------------------------------

/** A phone or desk that sleeps takes its worker with it: ask it to stay awake while it is looked at. */
function stayAwake() {
  if (document.visibilityState === "visible") navigator.wakeLock?.request("screen").catch(() => {});
}

document.addEventListener("visibilitychange", () => {
  tell(document.visibilityState);
  stayAwake();
});
document.addEventListener("freeze", () => tell("frozen"));
document.addEventListener("resume", () => tell(document.visibilityState));
addEventListener("pagehide", () => tell("leaving"));
addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
addEventListener("hashchange", () => location.reload());

/** Phones end a tab that takes much more. */
const DEFAULT_MEMORY = /Mobi/.test(navigator.userAgent) ? 2 ** 29 : 2 ** 30;
const memory = () => parseMemory(query.get("memory")) ?? Number(localStorage.getItem("moex.memory") ?? DEFAULT_MEMORY);
at("memory").value = memory();
at("memory").addEventListener("change", ({ target }) => {
  query.delete("memory");
  localStorage.setItem("moex.memory", target.value);
  start();
});
at("restart").addEventListener("click", start);

const id = workerId();
stayAwake();
start();
