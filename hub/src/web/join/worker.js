// The dedicated worker: loads the bundle, hands it its options and what the page sees. Everything else is in the bundle.

import init, { start } from "/worker/moex_worker.js";

// Browsers have subgroups behind a feature that wgpu does not ask for; the kernels use them where the device has them.
const requestDevice = globalThis.GPUAdapter?.prototype.requestDevice;
if (requestDevice) {
  GPUAdapter.prototype.requestDevice = function (descriptor = {}) {
    const wanted = [...(descriptor.requiredFeatures ?? [])];
    if (this.features.has("subgroups")) wanted.push("subgroups");
    return requestDevice.call(this, { ...descriptor, requiredFeatures: wanted });
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
    await init();
    worker = start(JSON.stringify(data.options));
    if (visibility) worker.set_visibility(visibility);
  } catch (error) {
    self.postMessage(JSON.stringify({ phase: "stopped", note: `The worker does not start in this browser: ${error.message}` }));
  }
};
