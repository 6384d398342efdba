// Runs in a page of the hub: the milliseconds of each batch of experts on some threads, one of which is the page's own, as a
// worker's is. A thread's part of the experts is in its own memory.
async ({ nThreads, nExperts, hidden, blockBytes, plan, format, nBatches }) => {
  const { fetchBundle, instantiate } = await import("/join/bundle.js");
  const { startThreads } = await import("/join/threads.js");
  const bundle = await fetchBundle();
  const own = new (await instantiate(bundle)).TabThread("", "", "");
  const died = (words) => { throw new Error(words); };
  const others = await startThreads(nThreads - 1, bundle, { hub: "", token: "", worker: "" }, died);
  if (others.length !== nThreads - 1) throw new Error("not all threads start");
  const call = (thread, ...call) => (thread ? others[thread - 1].call(...call) : own[call[0]](...call[1]));

  const threads = Array.from({ length: nThreads }, (_, thread) => thread);
  for (const thread of threads) await call(thread, "plan", [new Uint32Array(plan)]);
  const slots = threads.map(() => 0);
  for (let expert = 0; expert < nExperts; expert += 1) {
    // As f16 these bytes are a small number, and any bytes are codes.
    await call(expert % nThreads, "load", [slots[expert % nThreads]++, format, new Uint8Array(blockBytes).fill(0x2c)]);
  }

  const ONE = 0x3f800000;
  const row = Array.from({ length: hidden }, (_, column) => ONE + column);
  const batches = slots.map((n) => new Uint32Array([1, hidden, ...row, ...Array.from({ length: n }, (_, slot) => [slot, 1, 0, ONE]).flat()]));
  const times = [];
  for (let batch = 0; batch < nBatches; batch += 1) {
    const start = performance.now();
    const asked = threads.slice(1).map((thread) => call(thread, "compute", [batches[thread].slice()]));
    call(0, "compute", [batches[0]]);
    await Promise.all(asked);
    times.push(performance.now() - start);
  }
  others.forEach((thread) => thread.end());
  return times;
};
