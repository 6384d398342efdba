// The nearest f16, ties to even; what is beyond f16's range becomes infinite. By integers alone: `pack2x16float` may round either
// way. CPU twin: the crate `half`.

fn half_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
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

// Two of them.
fn two_halves(a: f32, b: f32) -> u32 {
    return half_bits(a) | (half_bits(b) << 16u);
}
