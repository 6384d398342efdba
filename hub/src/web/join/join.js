// The join page: asks the hub for its terms, starts the dedicated worker when its visitor says so, shows what that reports and
// tells it what happens to the page. It computes nothing.
//
// `#TOKEN` is the hub's. `?auto` lends without asking, as a tab does whose visitor lent here before; `?embed` is the short form
// for a frame of the chat page; `?device=wasm|gpu`, `?threads=2`, `?memory=512MiB` and `?store=4GiB` overrule what the page would choose.

import { bytes, element } from "/assets/format.js";
import { releaseSlot, settings, workerKey } from "./identity.js";
import { CONNECT_MILLIS, costsOf, factsOf, lacksOf, mainFacts, span, stateOf, troubleOf } from "./words.js";

const at = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);
// Behind a comma stands what native workers know the hub by.
const token = decoded(location.hash.slice(1).split(",")[0]);

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The latest report, flat; tests read it. */
window.moexStatus = { phase: "checking" };

/** What the page itself knows: the hub's terms once it has them, and what its visitor wants. */
let terms = null;
let battery = null;
let isPaused = false;
let worker = null;
/** Counts starts and ends: one that was overtaken while it waited gives up. */
let starts = 0;
let device = query.get("device") ?? "auto";
/** How many threads a worker on the CPU has; null where the worker chooses. */
let threads = Number(query.get("threads")) || null;
let setback = "";
/** Since when there is no connection. */
let connectingSince = 0;

// ---- memory -------------------------------------------------------------------------------------------------------

const MIB = 2 ** 20;
const MEMORY_STEPS = [128, 256, 512, 1024, 2048, 4096, 8192].map((mib) => mib * MIB);
const DEFAULT_MEMORY = defaultMemory();
/** WebAssembly has addresses for 4 GiB, and the worker needs some besides the experts. */
const MAX_WASM_MEMORY = 3072 * MIB;
/** A GPU with less room than this is left alone. */
const LEAST_GPU_MEMORY = 256 * MIB;
/** What the GPU turned out to have room for. */
let gpuRoom = Infinity;

/** A quarter of what the device has, at most 2 GiB, which most cards hold too; 1 GiB where the browser does not say, as on plain http. */
function defaultMemory() {
  // Phones end a tab that takes much more.
  if (/Mobi/.test(navigator.userAgent)) return 512 * MIB;
  return Math.min(((navigator.deviceMemory ?? 4) / 4) * 1024, 2048) * MIB;
}

/** "512MiB" or "4GiB" in bytes; null for anything else. */
function parseMemory(text) {
  const [, number, unit] = /^(\d+(?:\.\d+)?)\s*([KMG]iB)$/.exec(text ?? "") ?? [];
  return unit ? Math.floor(number * { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 }[unit]) : null;
}

const isOnCpu = () => device === "wasm" || !navigator.gpu;
const chosenMemory = () => parseMemory(query.get("memory")) ?? (Number(settings.read("memory")) || DEFAULT_MEMORY);
const memory = () => Math.min(chosenMemory(), isOnCpu() ? MAX_WASM_MEMORY : gpuRoom);

// ---- the hub's terms ----------------------------------------------------------------------------------------------

const TERMS_RETRY_MILLIS = 2000;
const TERMS_TIMEOUT_MILLIS = 10_000;
const WRONG_TOKEN =
  "The token in this link is wrong or outdated. Ask the person who runs the hub for its current join link, or copy it from the hub's terminal.";

/** Asks the hub what joining means: the terms; null if it does not say; throws words if the token is wrong. */
async function askTerms() {
  let answer = null;
  try {
    const headers = { Authorization: `Bearer ${token}` };
    answer = await fetch("/api/terms", { headers, cache: "no-store", signal: AbortSignal.timeout(TERMS_TIMEOUT_MILLIS) });
    if (answer.ok) return await answer.json();
  } catch {
    // No answer is not a no.
  }
  if (answer?.status === 401) throw new Error(WRONG_TOKEN);
  return null;
}

/** Asks until there is an answer or somebody lends without. */
async function learnTerms() {
  for (;;) {
    terms = await askTerms();
    if (terms || worker) return show();
    await new Promise((resolve) => setTimeout(resolve, TERMS_RETRY_MILLIS));
  }
}

// ---- the worker ---------------------------------------------------------------------------------------------------

/** This tab's key while it lends: the same worker on another device. */
let key = null;

/** Lends from now on, in place of any worker there is. */
async function lend() {
  stop();
  const start = starts;
  window.moexStatus = { phase: "starting" };
  show();
  try {
    // A wrong token is said before the device is tested, and by a hub that was restarted as by the first.
    terms = (await askTerms()) ?? terms;
    key ??= workerKey();
    const ownKey = await key;
    if (start !== starts) return;
    const starting = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    worker = starting;
    starting.onmessage = ({ data }) => worker === starting && report(JSON.parse(data));
    starting.onerror = ({ message }) => worker === starting && report({ phase: "crashed", note: message || "it did not load" });
    tell();
    const options = {
      hub: location.origin,
      token,
      key: ownKey,
      name: at("name").value.trim(),
      device,
      // Whoever asks for `?device=auto` has even such a one measured.
      skips_emulated: device === "auto" && !query.has("device"),
      memory_budget_bytes: memory(),
      store_bytes: parseMemory(query.get("store")) ?? undefined,
      threads: threads ?? undefined,
    };
    starting.postMessage({ options });
    stayAwake();
  } catch (error) {
    if (start !== starts) return;
    key = null;
    refuse(error.message);
  }
}

function fallBack(words) {
  device = "wasm";
  setback = words;
}

function stop() {
  starts += 1;
  worker?.terminate();
  worker = null;
  awake?.release().catch(() => {});
  awake = null;
}

/** Tells the worker whether it may compute: a page that is hidden or paused gets no work. */
function tell(visibility = isPaused ? "hidden" : document.visibilityState) {
  worker?.postMessage({ visibility });
}

/** Whether the GPU gave no memory, by the worker's words: some browsers say so, others lose the GPU, which one more try is worth. */
function hadNoRoom(note) {
  const isLost = note.includes("cannot serve the hub's model: the GPU was lost");
  return note.includes("too little memory") || (isLost && gpuRoom === Infinity);
}

const refuse = (note) => report({ phase: "stopped", note });

function report(message) {
  const { status, setback: found, ...rest } = message;
  if (found) fallBack(found);
  if (rest.phase === "connecting" && window.moexStatus.phase !== "connecting") {
    connectingSince = Date.now();
    setTimeout(show, CONNECT_MILLIS);
  }
  window.moexStatus = { ...window.moexStatus, ...status, ...rest, device };
  if (rest.phase === "crashed" && rest.lost_thread && threads !== 1) {
    threads = 1;
    setback = `A thread of this tab stopped (${rest.note.replace(/\.$/, "")}), so it computes on one.`;
    return lend();
  }
  if (rest.phase === "crashed" && !isOnCpu() && hadNoRoom(rest.note) && memory() > LEAST_GPU_MEMORY) {
    const wanted = memory();
    gpuRoom = wanted / 2;
    setback = `The GPU has no room for ${bytes(wanted)}, so this tab lends ${bytes(gpuRoom)}.`;
    return lend();
  }
  if (rest.phase === "crashed" && device === "auto") {
    fallBack(`The GPU cannot be used here (${rest.note.replace(/\.$/, "")}), so this tab computes on the CPU.`);
    return lend();
  }
  if (rest.phase === "crashed" || rest.phase === "stopped") stop();
  show();
}

// ---- what is shown ------------------------------------------------------------------------------------------------

/** Sets the text only when it is new, so that a screen reader says it once. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function showPairs(list, pairs) {
  const told = pairs.filter(([, words]) => words);
  while (list.childElementCount > 2 * told.length) list.lastElementChild.remove();
  while (list.childElementCount < 2 * told.length) list.append(element("dt"), element("dd"));
  told.flat().forEach((words, index) => setText(list.children[index], words));
}

function show() {
  const status = { ...window.moexStatus, isPaused, setback, device: query.get("device") ?? "auto" };
  const waited = Date.now() - connectingSince;
  const isLending = worker !== null || status.phase === "starting";
  const [tone, words] = stateOf(status, waited);
  at("state").className = `state ${tone}`;
  setText(at("state"), words);
  document.title = `${isLending ? words.split(":")[0] : "Lend this device"} \u00b7 moex`;
  const trouble = troubleOf(status, waited) ?? "";
  at("trouble").hidden = !trouble;
  at("trouble").classList.toggle("bad", tone === "bad");
  setText(at("trouble"), trouble);
  at("progress").hidden = !isLending || !status.blocks_assigned || status.blocks_resident === status.blocks_assigned;
  at("progress").value = status.blocks_assigned ? status.blocks_resident / status.blocks_assigned : 0;
  at("lend").hidden = isLending;
  at("lend").disabled = !token || status.phase === "starting";
  at("pause").hidden = at("stop").hidden = at("window").hidden = at("settings-note").hidden = !isLending;
  setText(at("pause"), isPaused ? "Resume" : "Pause");
  const facts = isLending ? factsOf(status, memory()) : [];
  showPairs(at("facts"), query.has("embed") ? mainFacts(facts) : facts);
  document.body.classList.toggle("lending", isLending);
  showPairs(at("costs"), costsOf(terms, memory(), battery));
  const lacks = lacksOf(status);
  at("lacks").replaceChildren(...(lacks.length ? [notice(lacks.join(" "))] : []));
  setText(at("memory-text"), bytes(memory()));
  at("memory").setAttribute("aria-valuetext", bytes(memory()));
}

/** The same node while the words are the same. */
function notice(words) {
  const shown = at("lacks").firstElementChild;
  return shown?.textContent === words ? shown : element("p", "notice", words);
}

// ---- what happens to the page -------------------------------------------------------------------------------------

/** A phone or desk that sleeps takes its worker with it: it stays awake while it lends and is looked at. */
let awake = null;
async function stayAwake() {
  if (!worker || isPaused || document.visibilityState !== "visible") return;
  try {
    awake = (await navigator.wakeLock?.request("screen")) ?? null;
  } catch {
    // A battery that is low, for one.
  }
}

let hiddenAt = 0;
document.addEventListener("visibilitychange", () => {
  tell();
  if (document.visibilityState === "hidden") {
    hiddenAt = Date.now();
  } else if (worker && hiddenAt) {
    const away = span(Date.now() - hiddenAt);
    setText(at("hidden-note"), `This tab was hidden for ${away} and got no work meanwhile. To lend while you do something else, keep it in sight: in a window of its own, or on a split screen.`);
    at("hidden-note").hidden = false;
  }
  stayAwake();
});
document.addEventListener("freeze", () => tell("frozen"));
document.addEventListener("resume", () => tell());
addEventListener("pagehide", () => tell("leaving"));
addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
addEventListener("hashchange", () => location.reload());

// ---- what its visitor does ----------------------------------------------------------------------------------------

at("lend").addEventListener("click", () => {
  settings.write("lend", "yes");
  lend();
});
at("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  tell();
  if (isPaused) awake?.release().catch(() => {});
  stayAwake();
  show();
});
function leave() {
  stop();
  releaseSlot();
  key = null;
  isPaused = false;
  at("hidden-note").hidden = true;
  window.moexStatus = { phase: "idle" };
  show();
}
at("stop").addEventListener("click", () => {
  settings.write("lend", null);
  leave();
});
at("window").addEventListener("click", () => {
  const address = new URL(location.href);
  address.searchParams.set("auto", "");
  if (window.open(address, "_blank", "popup,width=460,height=720")) leave();
  else refuse("The browser opened no window: allow this page to open one, or drag its tab out of the tab bar.");
});

at("name").value = settings.read("name") ?? "";
at("name").addEventListener("change", ({ target }) => {
  settings.write("name", target.value.trim() || null);
  if (worker) lend();
});

at("memory").max = MEMORY_STEPS.length - 1;
const nearest = MEMORY_STEPS.findIndex((step) => step >= chosenMemory());
at("memory").value = nearest < 0 ? MEMORY_STEPS.length - 1 : nearest;
at("memory").addEventListener("input", ({ target }) => {
  query.delete("memory");
  if (gpuRoom < Infinity) setback = "";
  gpuRoom = Infinity;
  settings.write("memory", MEMORY_STEPS[target.value]);
  show();
});
at("memory").addEventListener("change", () => worker && lend());

document.body.classList.toggle("embedded", query.has("embed"));
at("chat-link").hash = at("swarm-link").hash = location.hash;
navigator.getBattery?.().then((found) => {
  battery = found;
  for (const change of ["levelchange", "chargingchange"]) found.addEventListener(change, show);
  show();
}, () => {});

if (!token) {
  refuse("This address has no token. Open the whole join link that the hub prints, with everything after the #.");
} else if (typeof WebAssembly !== "object") {
  refuse("This browser has no WebAssembly, so it cannot compute: open this link in a current Chrome, Edge, Firefox or Safari.");
} else if (query.has("auto") || settings.read("lend")) {
  lend();
} else {
  window.moexStatus = { phase: "idle" };
  show();
  learnTerms().catch((error) => refuse(error.message));
}
