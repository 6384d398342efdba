// The time that this browser's CPU takes for the experts of some rows, as a worker computes them: on some threads, one of which is
// the page's own. A thread's part of the experts is in its own memory.

import { fetchBundle, instantiate } from "/join/bundle.js";
import { startThreads } from "/join/threads.js";

/** The experts that a row of Qwen3-30B-A3B has in a layer. A test compares the numbers with the crates'. */
export const LAYER = { nExperts: 8, hidden: 2048, inner: 768, blockBytes: 2433024, format: 771 };
const IS_INT8 = 1;
/** In f32. */
const ONE = 0x3f800000;

/** The milliseconds of each batch of `nRows` rows, all of which chose the same experts, on `nThreads` threads. */
export async function expertTimes({ nThreads, nRows, nBatches }) {
  const { nExperts, hidden, inner, blockBytes, format } = LAYER;
  const bundle = await fetchBundle();
  const own = new (await instantiate(bundle)).TabThread("", "", "");
  const died = (words) => { throw new Error(words); };
  const others = await startThreads(nThreads - 1, bundle, { hub: "", token: "", worker: "" }, died);
  try {
    if (others.length !== nThreads - 1) throw new Error("not all threads start");
    const call = (thread, method, parameters) => (thread ? others[thread - 1].call(method, parameters) : own[method](...parameters));

    const threads = Array.from({ length: nThreads }, (_, thread) => thread);
    // The words of `worker-wasm/src/threads/message.rs`.
    const plan = [IS_INT8, hidden, inner, Math.ceil(nExperts / nThreads), nRows, nExperts * nRows, format];
    for (const thread of threads) await call(thread, "plan", [new Uint32Array(plan)]);
    const slots = threads.map(() => 0);
    for (let expert = 0; expert < nExperts; expert += 1) {
      // As f16 these bytes are a small number, and any bytes are codes.
      await call(expert % nThreads, "load", [slots[expert % nThreads]++, format, new Uint8Array(blockBytes).fill(0x2c)]);
    }

    const rows = Array.from({ length: nRows * hidden }, (_, at) => ONE + (at % hidden));
    const pairs = Array.from({ length: nRows }, (_, row) => [row, ONE]).flat();
    const batchOf = (n) => Array.from({ length: n }, (_, slot) => [slot, nRows, ...pairs]).flat();
    // With products, which a hub asks for to check answers.
    const batches = slots.map((n) => new Uint32Array([1, rows.length, ...rows, ...batchOf(n)]));
    const times = [];
    for (let batch = 0; batch < nBatches; batch += 1) {
      const start = performance.now();
      const asked = Promise.all(threads.slice(1).map((thread) => call(thread, "compute", [batches[thread].slice()])));
      // Whoever fails first is heard.
      asked.catch(() => {});
      call(0, "compute", [batches[0]]);
      await asked;
      times.push(performance.now() - start);
      // The page stays alive on a slow phone.
      if (batch % 8 === 7) await new Promise((resolve) => setTimeout(resolve));
    }
    return times;
  } finally {
    others.forEach((thread) => thread.end());
  }
}

/** Bytes a second that one thread reads and writes elsewhere: the best of some copies of 32 MiB. */
export function copyRate() {
  const [from, to] = [new Uint8Array(2 ** 25).fill(1), new Uint8Array(2 ** 25)];
  let best = Infinity;
  for (let turn = 0; turn < 8; turn += 1) {
    const start = performance.now();
    to.set(from);
    best = Math.min(best, performance.now() - start);
  }
  return (2 * from.length * 1e3) / best;
}
