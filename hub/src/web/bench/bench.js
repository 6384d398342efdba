// The bench page: measures this browser as a worker, one thing after another, and shows each.

import { copies } from "/assets/copy.js";
import { setText, showFacts } from "/assets/facts.js";
import { bytes, count } from "/assets/format.js";
import { threadCount } from "/join/threads.js";
import { LAYER, copyRate, expertTimes } from "./cpu.js";
import { measureGpu } from "./gpu.js";

const at = (id) => document.getElementById(id);
const WEIGHTS = LAYER.nExperts * LAYER.blockBytes;
/** Multiplications for a row. */
const PRODUCTS = LAYER.nExperts * 3 * LAYER.hidden * LAYER.inner;
const PROMPT_ROWS = 16;
/** As much as a tab lends where it is not told how much. */
const LENT_BYTES = 2 ** 29;
/** Batches are measured for so long, of which the first part is not counted: the browser compiles meanwhile. */
const MILLIS = 1500;
const WARM_UP = 0.2;

let facts = [];

const rate = (n) => `${(n / 1e9).toFixed(1)} GB/s`;
const millis = (n) => (n < 0.1 ? `${(n * 1e3).toPrecision(2)} µs` : `${n.toFixed(n < 10 ? 2 : 0)} ms`);

/** Adds what was measured. */
function tell(...pairs) {
  facts = [...facts, ...pairs];
  showFacts(at("facts"), facts);
}

const median = (times) => [...times].sort((a, b) => a - b)[times.length >> 1];

/** The median time of a batch, measured for about as long on a phone as on a workstation. */
async function batchMillis(nThreads, nRows) {
  const [first] = await expertTimes({ nThreads, nRows, nBatches: 1 });
  const nBatches = Math.min(400, Math.max(5, Math.ceil(MILLIS / Math.max(first, 0.1))));
  const times = await expertTimes({ nThreads, nRows, nBatches });
  return median(times.slice(Math.floor(times.length * WARM_UP)));
}

async function roundTrip() {
  const times = [];
  for (let turn = 0; turn < 21; turn += 1) {
    const start = performance.now();
    await fetch("/health", { cache: "no-store" });
    times.push(performance.now() - start);
  }
  return median(times);
}

async function onCpu() {
  const copied = copyRate();
  const nThreads = threadCount(LENT_BYTES);
  for (const n of nThreads > 1 ? [1, nThreads] : [1]) {
    const took = await batchMillis(n, 1);
    const read = (WEIGHTS * 1e3) / took;
    tell([`a layer on ${n === 1 ? "one thread" : `${n} threads`}`, `${millis(took)}: ${rate(read)} of weights${n === 1 ? `, memory is copied at ${rate(copied)}` : ""}`]);
  }
  const prompt = await batchMillis(nThreads, PROMPT_ROWS);
  tell([`${PROMPT_ROWS} rows of a prompt`, `${millis(prompt)}: ${count((2 * PRODUCTS * PROMPT_ROWS) / prompt / 1e6)} billion operations/s`]);
}

async function onGpu() {
  const gpu = await measureGpu();
  if (gpu.lacks) return tell(["GPU", gpu.lacks]);
  tell(
    ["GPU", `${gpu.name}, bindings of ${bytes(gpu.bindingBytes)}${gpu.isSoftware ? ". It is software: a tab computes on the CPU instead" : ""}`],
    ["GPU, asked and answered", millis(gpu.askMillis)],
    ["GPU, memory read", `${rate(gpu.readRate)}: a layer's experts take ${millis((WEIGHTS * 1e3) / gpu.readRate)} at least`],
    ["GPU, 8-bit products", gpu.productRate ? `${count((2 * gpu.productRate) / 1e9)} billion operations/s` : "WGSL has no dot product of bytes here"],
  );
}

const STEPS = [
  ["the way to the hub", async () => tell(["to the hub and back", millis(await roundTrip())])],
  ["the CPU", onCpu],
  ["the GPU", onGpu],
];

async function measure() {
  facts = [];
  at("facts").replaceChildren();
  at("start").disabled = true;
  at("copy").hidden = true;
  at("trouble").hidden = true;
  at("progress").hidden = false;
  const memory = navigator.deviceMemory ? `, ${navigator.deviceMemory} GiB of memory or more` : "";
  tell(["device", `${navigator.hardwareConcurrency || "?"} cores${memory}`]);
  try {
    for (const [index, [what, step]] of STEPS.entries()) {
      setText(at("state"), `Measuring ${what}`);
      at("progress").value = index / STEPS.length;
      await step();
    }
    setText(at("state"), "Measured");
    at("copy").hidden = false;
  } catch (error) {
    setText(at("state"), "Stopped");
    setText(at("trouble"), `The measurement stopped: ${error.message ?? error}`);
    at("trouble").hidden = false;
  }
  at("progress").hidden = true;
  at("start").disabled = false;
  setText(at("start"), "Measure again");
}

/** The result as lines of text. */
function text() {
  const day = new Date().toISOString().slice(0, 10);
  return [`moex bench, ${day}`, navigator.userAgent, ...facts.map(([name, value]) => `${name}: ${value}`)].join("\n");
}

at("start").addEventListener("click", measure);
copies(at("copy"), text);
