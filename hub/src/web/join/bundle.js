// The worker bundle for this browser.

/**
 * Whether there is relaxed SIMD's dot product of bytes, with which experts take a third of the time. The bits are the same: the
 * kernels give it only what every processor computes alike.
 */
function hasRelaxedSimd() {
  // A function that consists of one of its instructions.
  const relaxed = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15, 65, 2, 253, 15, 253, 128, 2, 11];
  return WebAssembly.validate(new Uint8Array(relaxed));
}

/** What this browser gets: the address of the glue, and the compiled module, which threads share. */
export async function fetchBundle() {
  const name = hasRelaxedSimd() ? "moex_worker_relaxed" : "moex_worker";
  return { glue: `/worker/${name}.js`, module: await WebAssembly.compileStreaming(fetch(`/worker/${name}_bg.wasm`)) };
}

/** The bundle's exports, in a memory of their own. */
export async function instantiate({ glue, module }) {
  const bundle = await import(glue);
  await bundle.default({ module_or_path: module });
  return bundle;
}
