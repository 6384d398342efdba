// Numbers as they travel: two f16 in a word, each rounded to the nearest, ties to even; what is beyond f16's range becomes
// infinite. By integers alone, so that no device rounds otherwise. CPU twin: the crate `half`.

@group(0) @binding(3) var<storage, read> x: array<u32>;             // f32
@group(0) @binding(4) var<storage, read_write> result: array<u32>;  // pairs of f16

const WORDS: u32 = 4u;      // of a thread
const GRID: u32 = 32768u;  // workgroups in x

fn half_bits(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    var half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u;
    if magnitude > 0x7f800000u {
        half = 0x7e00u;
    } else if magnitude >= 0x477ff000u {
        half = 0x7c00u;
    } else if magnitude < 0x38800000u {
        // Below 2^-14 an f16 counts 2^-24; nothing is left of what is below half of that.
        let shift = min(126u - (magnitude >> 23u), 25u);
        let fraction = (magnitude & 0x7fffffu) | 0x800000u;
        half = (fraction + (1u << (shift - 1u)) - 1u + ((fraction >> shift) & 1u)) >> shift;
    }
    return half | ((bits >> 16u) & 0x8000u);
}

@compute @workgroup_size(64)
fn pack_halves(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first = (group.y * GRID + group.x) * 64u * WORDS + thread;
    for (var i = 0u; i < WORDS; i++) {
        let at = first + i * 64u;
        if at < arrayLength(&result) {
            result[at] = half_bits(x[2u * at]) | (half_bits(x[2u * at + 1u]) << 16u);
        }
    }
}
