// The threads of a worker that computes on the CPU: further workers with the same module, each with a memory of its own. This
// file starts them, carries the bundle's calls to them, and notices when one dies.

const MIB = 2 ** 20;
const MAX_THREADS = 8;
/** A thread takes a few MiB besides its experts: less memory than this for each is not worth one more. */
const MIN_MEMORY = 64 * MIB;
const START_PATIENCE_MILLIS = 20_000;
/** A thread that has not answered for so many ticks is dead. Ticks do not pass while a page is frozen; computing a prompt on a slow phone takes a few. */
const TICK_MILLIS = 1000;
const PATIENCE_TICKS = 30;

/** How many threads are right for this device: all its cores but one for the page, of two both. */
export function threadCount(memoryBytes) {
  const cores = navigator.hardwareConcurrency || 1;
  const free = cores > 2 ? cores - 1 : cores;
  return Math.max(1, Math.min(free, MAX_THREADS, Math.floor(memoryBytes / MIN_MEMORY)));
}

/**
 * Starts `count` threads, each with `options` for its engine and its store; resolves to those that came up. `died` is called with
 * words when one dies later, `ended` for each that is no more, for whatever reason.
 */
export async function startThreads(count, bundle, options, died, ended = () => {}) {
  const starting = Array.from({ length: count }, () => new Thread(ended).start({ bundle, ...options }, died));
  const started = await Promise.allSettled(starting);
  return started.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
}

class Thread {
  #worker = null;
  /** What to do with the answer of each call under way, by its number. */
  #calls = new Map();
  #number = 0;
  #ticking = null;
  #silentTicks = 0;
  /** One that does not start is done without. */
  #died = () => {};
  #ended;

  constructor(ended) {
    this.#ended = ended;
  }

  /** Resolves to this thread once it is up; `died` is called if it dies after that. */
  async start(options, died) {
    this.#worker = new Worker(new URL("thread.js", import.meta.url), { type: "module" });
    this.#worker.onmessage = ({ data }) => this.#hear(data);
    this.#worker.onerror = ({ message }) => this.#die(message || "it did not load");
    this.#worker.onmessageerror = () => this.#die("a message was lost");
    const late = new Promise((_, reject) => setTimeout(reject, START_PATIENCE_MILLIS, new Error("it takes too long")));
    try {
      await Promise.race([this.call("start", [options]), late]);
      this.#died = died;
      return this;
    } catch (error) {
      this.end();
      throw error;
    }
  }

  /** Resolves to the result of a method of the thread's engine; arrays are given away, not copied. */
  call(method, parameters) {
    if (!this.#worker) return Promise.reject(new Error("a thread of this tab has ended"));
    return new Promise((resolve, reject) => {
      this.#number += 1;
      this.#calls.set(this.#number, { resolve, reject });
      this.#worker.postMessage({ number: this.#number, method, parameters }, buffersOf(parameters));
      this.#ticking ??= setInterval(() => this.#tick(), TICK_MILLIS);
    });
  }

  /** Ends the thread; what waits for it fails. */
  end() {
    if (!this.#worker) return;
    this.#worker.terminate();
    this.#worker = null;
    this.#rest();
    for (const { reject } of this.#calls.values()) reject(new Error("a thread of this tab has ended"));
    this.#calls.clear();
    this.#ended();
  }

  /** An answer, or, a text, the last words of a thread that stops. */
  #hear(data) {
    this.#silentTicks = 0;
    if (typeof data === "string") return this.#die(data);
    const call = this.#calls.get(data.number);
    if (!call) return;
    this.#calls.delete(data.number);
    if (this.#calls.size === 0) this.#rest();
    if (data.error === undefined) call.resolve(data.result);
    else call.reject(new Error(data.error));
  }

  /** While something is awaited, the thread must show from time to time that it is there. */
  #tick() {
    this.#silentTicks += 1;
    if (this.#silentTicks > PATIENCE_TICKS) return this.#die("it no longer answers");
    this.#worker.postMessage({});
  }

  #rest() {
    clearInterval(this.#ticking);
    this.#ticking = null;
    this.#silentTicks = 0;
  }

  #die(words) {
    if (!this.#worker) return;
    this.end();
    this.#died(words);
  }
}

/** The buffers of typed arrays among these. */
export const buffersOf = (values) => values.filter((value) => ArrayBuffer.isView(value)).map(({ buffer }) => buffer);
