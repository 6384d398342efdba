// Arithmetic whose every bit is the CPU's: each operation rounded by itself, nothing fused, nothing reordered. WGSL lets a
// compiler do both, and divide as it likes. CPU twins: src/quant/dot.rs, src/quant/activations.rs, src/simd/exp.rs.

// The value as it is, through an XOR with a zero that no compiler knows: it cannot be joined with what uses it.
fn kept(value: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(value) ^ run.zero);
}

fn sum_of(a: f32, b: f32) -> f32 {
    return kept(a + b);
}

fn product_of(a: f32, b: f32) -> f32 {
    return kept(a * b);
}

// a / b, to the nearest: `a` normal or 0, `b` and the quotient normal. What is not finite gives what is not a number. A device's own
// quotient is near, and what is left, in integers, says how far off it is.
fn quotient_of(a: f32, b: f32) -> f32 {
    let bits = vec2<u32>(bitcast<u32>(a), bitcast<u32>(b));
    let exponents = (bits >> vec2<u32>(23u)) & vec2<u32>(255u);
    if max(exponents.x, exponents.y) == 255u {
        return kept(bitcast<f32>(0x7fc00000u ^ run.zero));
    }
    if exponents.x == 0u {
        return 0.0;
    }
    var fractions = (bits & vec2<u32>(0x7fffffu)) | vec2<u32>(0x800000u);
    var exponent = exponents.x + 127u - exponents.y;
    if fractions.x < fractions.y {
        fractions.x <<= 1u;
        exponent -= 1u;
    }
    // 25 bits, the first of them 1. WGSL lets a device be off by 5 in the last of them; up to 64 are mended.
    let divisor = f32(fractions.y);
    var quotient = i32(f32(fractions.x) / divisor * 16777216.0);
    var rest = i32(fractions.x << 24u) - quotient * i32(fractions.y);
    let off = i32(f32(rest) / divisor);
    rest -= off * i32(fractions.y);
    quotient += off + select(0, 1, rest >= i32(fractions.y)) - select(0, 1, rest < 0);
    // The last bit is half a step; a quotient never lies just there.
    let rounded = (exponent << 23u) + (u32(quotient + 1) >> 1u) - 0x800000u;
    return bitcast<f32>(rounded | ((bits.x ^ bits.y) & 0x80000000u));
}

// The f16 in the lower half of `half`.
fn half_value(half: u32) -> f32 {
    let magnitude = half & 0x7fffu;
    let fraction = f32(magnitude) * 5.9604645e-8;  // as if it were below 2^-14: exact
    let normal = bitcast<f32>((magnitude << 13u) + select(0x38000000u, 0x70000000u, magnitude >= 0x7c00u));
    let value = select(fraction, normal, magnitude >= 0x400u);
    return bitcast<f32>(bitcast<u32>(value) | ((half & 0x8000u) << 16u));
}

// Rounded to the nearest f16, ties to even; what is beyond f16's range becomes its largest number. CPU twin: src/simd/round.rs.
fn half_of(value: f32) -> f32 {
    let bits = bitcast<u32>(value);
    let magnitude = min(bits & 0x7fffffffu, 0x477fe000u);
    let normal = (magnitude + 0xfffu + ((magnitude >> 13u) & 1u)) & 0xffffe000u;
    // An f32 from 1/2 to 1 ends at 2^-24, as an f16 below 2^-14 does: the addition itself rounds.
    let small = bitcast<u32>(sum_of(sum_of(bitcast<f32>(magnitude), 0.5), -0.5));
    let half = select(normal, small, magnitude < 0x38800000u) | (bits & 0x80000000u);
    return bitcast<f32>(select(half, bits, (bits & 0x7fffffffu) > 0x7f800000u));
}

// No min or max: those may lose what is not a number.
fn at_least(x: f32, bound: f32) -> f32 {
    return select(x, bound, bound > x);
}

fn at_most(x: f32, bound: f32) -> f32 {
    return select(x, bound, bound < x);
}

// 1.5 * 2^23: adding it leaves no bits behind the point, so that the addition itself rounds.
const ROUNDER: f32 = 12582912.0;
