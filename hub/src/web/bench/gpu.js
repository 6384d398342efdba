// What this browser's GPU gives: how long it takes to be asked and to answer, how fast it reads its memory, and how many products of
// 8 bits it adds a second. Kernels of a few lines, which do nothing else.

const READ = `
@group(0) @binding(0) var<storage, read> codes_in: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> sums: array<u32>;
override GROUPS: u32;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  var sum = vec4<u32>();
  for (var at = id.x; at < arrayLength(&codes_in); at += 256u * GROUPS) { sum += codes_in[at]; }
  sums[id.x] = sum.x + sum.y + sum.z + sum.w;
}`;

/** Products a thread adds: 4 in each of 8 chains of the loop. */
const TURNS = 1024;
const MULTIPLY = `
requires packed_4x8_integer_dot_product;
@group(0) @binding(0) var<storage, read> codes_in: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> sums: array<u32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let codes = codes_in[id.x % arrayLength(&codes_in)];
  var a = vec4<i32>();
  var b = vec4<i32>();
  for (var turn = 0u; turn < ${TURNS}u; turn++) {
    a += vec4<i32>(dot4I8Packed(codes.x, codes.y + turn), dot4I8Packed(codes.y, codes.z + turn), dot4I8Packed(codes.z, codes.w + turn), dot4I8Packed(codes.w, codes.x + turn));
    b += vec4<i32>(dot4I8Packed(codes.x ^ turn, codes.z), dot4I8Packed(codes.y ^ turn, codes.w), dot4I8Packed(codes.z ^ turn, codes.x), dot4I8Packed(codes.w ^ turn, codes.y));
  }
  let sum = a + b;
  sums[id.x] = u32(sum.x + sum.y + sum.z + sum.w);
}`;
const THREADS = 256;
/** What takes as long as this hides what asking costs, and that browsers look every few milliseconds whether a GPU is done. */
const ENOUGH_MILLIS = 40;
/** So often a kernel is repeated at most. */
const MOST_TIMES = 1024;
const MOST_BYTES = 2 ** 28;
const N_ASKED = 40;

/** What is measured; or, in words, why nothing is. */
export async function measureGpu() {
  if (!navigator.gpu) return { lacks: isSecureContext ? "This browser has no WebGPU." : "Browsers give WebGPU to https and localhost only." };
  const ask = () => navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  // A Chromium that was opened just now finds none at first.
  const adapter = (await ask()) ?? (await ask());
  if (!adapter) return { lacks: "This browser offers no GPU." };
  const most = Math.min(adapter.limits.maxStorageBufferBindingSize, adapter.limits.maxBufferSize, MOST_BYTES);
  const device = await adapter.requestDevice({
    requiredLimits: { maxStorageBufferBindingSize: most, maxBufferSize: most },
  });
  try {
    const { vendor, architecture, description, isFallbackAdapter } = adapter.info;
    return {
      name: description || [vendor, architecture].filter(Boolean).join(" ") || "unnamed",
      isSoftware: Boolean(isFallbackAdapter ?? adapter.isFallbackAdapter),
      bindingBytes: adapter.limits.maxStorageBufferBindingSize,
      askMillis: await askMillis(device),
      readRate: await readRate(device, most),
      productRate: await productRate(device),
    };
  } finally {
    device.destroy();
  }
}

/** The median time from a submission until its four bytes are read. */
async function askMillis(device) {
  const from = device.createBuffer({ size: 4, usage: GPUBufferUsage.COPY_SRC });
  const to = device.createBuffer({ size: 4, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ });
  const times = [];
  for (let turn = 0; turn < N_ASKED; turn += 1) {
    const start = performance.now();
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(from, 0, to, 0, 4);
    device.queue.submit([encoder.finish()]);
    await to.mapAsync(GPUMapMode.READ);
    to.unmap();
    times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b)[N_ASKED / 2];
}

/** Bytes a second: of more and more memory, until that takes long enough. */
async function readRate(device, most) {
  for (let bytes = Math.min(2 ** 22, most); ; bytes = Math.min(4 * bytes, most)) {
    const from = device.createBuffer({ size: bytes, usage: GPUBufferUsage.STORAGE });
    const groups = Math.min(4096, Math.max(1, bytes / (16 * THREADS)));
    const millis = await kernelMillis(device, READ, from, groups, { GROUPS: groups }, bytes === most);
    from.destroy();
    if (millis > ENOUGH_MILLIS || bytes === most) return (bytes * 1e3) / millis;
  }
}

/** Products of two codes that are multiplied and added a second; null where WGSL has no dot product of bytes. */
async function productRate(device) {
  if (!navigator.gpu.wgslLanguageFeatures?.has("packed_4x8_integer_dot_product")) return null;
  const from = device.createBuffer({ size: 2 ** 16, usage: GPUBufferUsage.STORAGE });
  for (let groups = 64; ; groups *= 4) {
    const isLast = groups >= 16384;
    const millis = await kernelMillis(device, MULTIPLY, from, groups, {}, isLast);
    if (millis > ENOUGH_MILLIS || isLast) return (groups * THREADS * TURNS * 32 * 1e3) / millis;
  }
}

/** The time of a kernel, the shortest of some runs; `repeats` it until that takes long enough. */
async function kernelMillis(device, code, from, groups, constants, repeats) {
  const to = device.createBuffer({ size: 4 * groups * THREADS, usage: GPUBufferUsage.STORAGE });
  const module = device.createShaderModule({ code });
  const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint: "main", constants } });
  const entries = [from, to].map((buffer, binding) => ({ binding, resource: { buffer } }));
  const bound = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
  try {
    for (let times = 1; ; times *= 2) {
      const millis = await shortest(device, pipeline, bound, groups, times);
      if (!repeats || millis > ENOUGH_MILLIS || times >= MOST_TIMES) return millis / times;
    }
  } finally {
    to.destroy();
  }
}

/** The shortest of some runs in which a kernel computes so many `times`. */
async function shortest(device, pipeline, bound, groups, times) {
  let best = Infinity;
  for (let turn = 0; turn < 4; turn += 1) {
    const start = performance.now();
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, bound);
    for (let time = 0; time < times; time += 1) pass.dispatchWorkgroups(groups);
    pass.end();
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
    best = Math.min(best, performance.now() - start);
  }
  return best;
}
