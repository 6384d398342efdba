// Arithmetic for ten microseconds, without a use: `engine/gpu/keep_awake.rs` says why.

@group(0) @binding(4) var<storage, read_write> result: array<u32>;

const TURNS: u32 = 6000u;

@compute @workgroup_size(256)
fn keep_awake(@builtin(local_invocation_index) thread: u32) {
    var x = thread + result[0];
    for (var turn = 0u; turn < TURNS; turn += 1u) {
        x = x * 1664525u + 1013904223u;
    }
    // Never so; but a compiler has to compute everything to know it.
    if x == 12345u {
        result[1] = 1u;
    }
}
