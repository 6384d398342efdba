// Division whose every bit is the CPU's, where WGSL lets a device divide as it likes. Imports nothing: src/engine/gpu/tests/quotient.rs
// runs it as it is.

// a / b, to the nearest: `a` normal or 0, `b` and the quotient normal. What is not finite gives what is not a number. A device's own
// quotient is near, and what is left, in integers, says how far off it is.
fn quotient_of(a: f32, b: f32) -> f32 {
    let bits = vec2<u32>(bitcast<u32>(a), bitcast<u32>(b));
    let exponents = (bits >> vec2<u32>(23u)) & vec2<u32>(255u);
    if max(exponents.x, exponents.y) == 255u {
        return bitcast<f32>(0x7fc00000u ^ run.zero);
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
