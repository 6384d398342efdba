// Arithmetic whose every bit is the CPU's: each operation rounded by itself, nothing fused, nothing reordered. WGSL lets a
// compiler do both. CPU twins: src/quant/dot.rs, src/quant/activations.rs, src/simd/exp.rs.

#ifdef WEB
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
#else
// One instruction each: a is multiplied with 1, and -0 is added to a product. Both change nothing, whether a device fuses an fma or
// not, and no compiler knows them. Browsers translate WGSL to languages whose compilers may take an fma apart.
fn sum_of(a: f32, b: f32) -> f32 {
    return fma(a, bitcast<f32>(run.zero ^ 0x3f800000u), b);
}

fn product_of(a: f32, b: f32) -> f32 {
    return fma(a, b, bitcast<f32>(run.zero ^ 0x80000000u));
}

fn sum4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return fma(a, vec4<f32>(bitcast<f32>(run.zero ^ 0x3f800000u)), b);
}

fn product4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return fma(a, b, vec4<f32>(bitcast<f32>(run.zero ^ 0x80000000u)));
}
#endif

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
