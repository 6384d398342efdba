// Numbers as they travel: two f16 in a word.
#import half_bits

@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> result: array<u32>;  // pairs of f16

const WORDS: u32 = 4u;      // of a thread
const GRID: u32 = 32768u;  // workgroups in x

@compute @workgroup_size(64)
fn pack_halves(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first = (group.y * GRID + group.x) * 64u * WORDS + thread;
    for (var i = 0u; i < WORDS; i++) {
        let at = first + i * 64u;
        if at < arrayLength(&result) {
            result[at] = two_halves(x[2u * at], x[2u * at + 1u]);
        }
    }
}
