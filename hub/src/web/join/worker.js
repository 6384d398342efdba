// The dedicated worker: loads the bundle, hands it its options and what the page sees. Everything else is in the bundle.

import init, { start } from "/worker/moex_worker.js";

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

let worker;
let visibility;

self.onmessage = async ({ data }) => {
  if (data.visibility) {
    visibility = data.visibility;
    worker?.set_visibility(visibility);
    return;
  }
  try {
    await init({ module_or_path: "/worker/moex_worker_bg.wasm" });
    worker = start(JSON.stringify(data.options));
    if (visibility) worker.set_visibility(visibility);
  } catch (error) {
    self.postMessage(JSON.stringify({ phase: "stopped", note: `The worker does not start in this browser: ${error.message}` }));
  }
};
