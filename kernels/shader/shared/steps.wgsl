// Steps of int8, and of int16: what takes values to the nearest integers. CPU twin: src/quant/activations.rs.
#import exact
#import quotient

const TINY: u32 = 0x21800000u;  // 2^-60

// The step of values up to `largest`, and what takes values to steps.
fn steps(largest: u32, top: f32) -> vec2<f32> {
    if largest < TINY {
        return vec2<f32>();
    }
    let value = bitcast<f32>(largest);
    return vec2<f32>(quotient_of(value, top), select(0.0, quotient_of(top, value), largest < 0x7f800000u));
}

// The integer nearest to `x`, in the lowest bits.
fn nearest(x: f32, top: f32) -> u32 {
    return bitcast<u32>(sum_of(at_most(at_least(x, -top), top), ROUNDER));
}
