// Reads a whole buffer, for measurements of a GPU's memory. Each thread has four vectors of words under way at once.

@group(0) @binding(3) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> result: array<u32>;

const THREADS: u32 = 256u;

@compute @workgroup_size(256)
fn read_all(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) n_groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let stride = THREADS * n_groups.x;
    let n = arrayLength(&x);
    var sum = vec4<u32>();
    for (var i = THREADS * group.x + thread; i + 3u * stride < n; i += 4u * stride) {
        sum += (x[i] ^ x[i + stride]) + (x[i + 2u * stride] ^ x[i + 3u * stride]);
    }
    // Never so; but a compiler has to read everything to know it.
    if all(sum == vec4<u32>(0x9e3779b9u)) {
        result[0] = 1u;
    }
}
