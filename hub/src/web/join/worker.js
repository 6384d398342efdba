// The dedicated worker: loads the bundle, hands it its options, its store and what the page sees. What computes is in the bundle.

import { fetchBundle, instantiate } from "/join/bundle.js";
import { openStore } from "/join/store.js";
import { startThreads, threadCount } from "/join/threads.js";

// Browsers have subgroups behind a feature that wgpu does not ask for; the kernels use them where the device has them. And
// they name a GPU by fields that wgpu does not read.
const requestDevice = globalThis.GPUAdapter?.prototype.requestDevice;
if (requestDevice) {
  GPUAdapter.prototype.requestDevice = function (descriptor = {}) {
    const wanted = [...(descriptor.requiredFeatures ?? [])];
    if (this.features.has("subgroups")) wanted.push("subgroups");
    const { description, vendor, architecture } = this.info ?? {};
    self.gpuName = description || [vendor, architecture].filter(Boolean).join(" ");
    return requestDevice.call(this, { ...descriptor, requiredFeatures: wanted });
  };
}

// Counted where the browser makes them, for the report: none may come once the worker serves.
self.gpuBuffersCreated = 0;
const createBuffer = globalThis.GPUDevice?.prototype.createBuffer;
if (createBuffer) {
  GPUDevice.prototype.createBuffer = function (descriptor) {
    self.gpuBuffersCreated += 1;
    return createBuffer.call(this, descriptor);
  };
}

// What rows and results cost, beside the weights: counted where they pass, told once a second.
const TRAFFIC_MILLIS = 1000;
const traffic = { bytes_received: 0, bytes_sent: 0 };
let told = 0;
self.WebSocket = class extends WebSocket {
  constructor(...address) {
    super(...address);
    this.addEventListener("message", ({ data }) => (traffic.bytes_received += data.byteLength ?? data.length));
  }

  send(message) {
    traffic.bytes_sent += message.byteLength;
    super.send(message);
  }
};
setInterval(() => {
  const total = traffic.bytes_received + traffic.bytes_sent;
  if (total !== told) self.postMessage(JSON.stringify(traffic));
  told = total;
}, TRAFFIC_MILLIS);

// A turn of the event loop, which comes sooner than any timer: the bundle waits for a GPU in such.
const turns = new MessageChannel();
const waiting = [];
turns.port1.onmessage = () => waiting.shift()();
self.moexTurn = () =>
  new Promise((resolve) => {
    waiting.push(resolve);
    turns.port2.postMessage(null);
  });

/** Whether the only GPU is one that the browser emulates on the CPU: slower than the CPU itself, and long to test. */
async function emulatesGpu() {
  // A Chromium that was opened just now finds none at first.
  const adapter = (await navigator.gpu?.requestAdapter()) ?? (await navigator.gpu?.requestAdapter());
  return adapter?.info?.isFallbackAdapter ?? adapter?.isFallbackAdapter ?? false;
}

/** Its experts are gone with it: the page starts this worker anew. */
function lostThread(words) {
  self.postMessage(JSON.stringify({ phase: "crashed", note: words, lost_thread: true }));
}

let worker;
let visibility;

self.onmessage = async ({ data }) => {
  if (data.visibility) {
    visibility = data.visibility;
    worker?.set_visibility(visibility);
    return;
  }
  try {
    const { store_bytes: storeBytes, skips_emulated: skipsEmulated, threads, ...options } = data.options;
    if (skipsEmulated && (await emulatesGpu())) {
      options.device = "wasm";
      self.postMessage(JSON.stringify({ setback: "This browser emulates a GPU on the CPU, so this tab computes on the CPU itself. With a graphics driver and hardware acceleration it would use the GPU." }));
    }
    const bundle = await fetchBundle();
    const count = threads ?? threadCount(options.memory_budget_bytes);
    self.moexStore = await openStore(storeBytes);
    // Called by the bundle, if it computes on the CPU.
    self.moexStartThreads = (hub, token, worker) => {
      const share = self.moexStore?.divide(count);
      // They end before they store anything: those that do not start, and all where the GPU turns out to be faster.
      const ended = () => self.moexStore?.takeBack(share);
      return startThreads(count - 1, bundle, { hub, token, worker, share }, lostThread, ended);
    };
    worker = (await instantiate(bundle)).start(JSON.stringify(options));
    if (visibility) worker.set_visibility(visibility);
  } catch (error) {
    self.postMessage(JSON.stringify({ phase: "stopped", note: `The worker does not start in this browser: ${error.message}` }));
  }
};
