// The dedicated worker: loads the bundle, hands it its options, its store and what the page sees. What computes is in the bundle.

import { openStore } from "/join/store.js";

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

/** Whether the only GPU is one that the browser emulates on the CPU: slower than the CPU itself, and long to test. */
async function emulatesGpu() {
  const adapter = await navigator.gpu?.requestAdapter();
  return adapter?.info?.isFallbackAdapter ?? adapter?.isFallbackAdapter ?? false;
}

/**
 * The bundle for this browser: with relaxed SIMD's dot product of bytes, which takes a third of the time, where the browser has
 * it. Its bits are the same: the kernels give it only what every processor computes alike.
 */
async function loadBundle() {
  // A function that consists of one instruction of relaxed SIMD.
  const relaxed = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15, 65, 2, 253, 15, 253, 128, 2, 11];
  const name = WebAssembly.validate(new Uint8Array(relaxed)) ? "moex_worker_relaxed" : "moex_worker";
  const { default: init, start } = await import(`/worker/${name}.js`);
  await init({ module_or_path: `/worker/${name}_bg.wasm` });
  return start;
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
    const { store_bytes: storeBytes, skips_emulated: skipsEmulated, ...options } = data.options;
    if (skipsEmulated && (await emulatesGpu())) {
      options.device = "wasm";
      self.postMessage(JSON.stringify({ setback: "This browser emulates a GPU on the CPU, so this tab computes on the CPU itself. With a graphics driver and hardware acceleration it would use the GPU." }));
    }
    self.moexStore = await openStore(storeBytes);
    const start = await loadBundle();
    worker = start(JSON.stringify(options));
    if (visibility) worker.set_visibility(visibility);
  } catch (error) {
    self.postMessage(JSON.stringify({ phase: "stopped", note: `The worker does not start in this browser: ${error.message}` }));
  }
};
