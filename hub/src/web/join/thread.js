// One thread of a worker: an engine for a part of its experts. It answers the calls of threads.js, by number.

import { instantiate } from "/join/bundle.js";
import { openShare } from "/join/store.js";
import { buffersOf } from "/join/threads.js";

let thread;

async function start({ bundle, hub, token, worker, share }) {
  self.moexStore = share && (await openShare(share));
  const { TabThread } = await instantiate(bundle);
  thread = new TabThread(hub, token, worker);
}

self.onmessage = async ({ data: { number, method, parameters } }) => {
  // Without a call it is a question whether this thread is there.
  if (number === undefined) return self.postMessage({});
  try {
    const result = method === "start" ? await start(...parameters) : await thread[method](...parameters);
    self.postMessage({ number, result }, buffersOf([result]));
  } catch (error) {
    // After a trap nothing of a module can be used again.
    if (error instanceof WebAssembly.RuntimeError) self.postMessage(error.message);
    else self.postMessage({ number, error: error.message ?? String(error) });
  }
};
