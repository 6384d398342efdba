// What a token weighs where one is drawn from all: a multiple of 2^-34, so that sums of weights are exact. CPU twin:
// src/simd/weights.rs.
#import run
#import exp
#import best

// Numbers are (high, low): high * 2^-13 + low * 2^-34, with high below 2^32 and low below 2^21.
const LOW_BITS: u32 = 21u;
const LOW_MASK: u32 = 0x1fffffu;

fn weight_of(logit: f32, largest: f32, scale: f32) -> vec2<u32> {
    if order_of(logit) == 0u {
        return vec2<u32>();
    }
    let weight = exp_of(at_most(product_of(sum_of(logit, -largest), scale), 0.0));
    let small = sum_of(sum_of(weight, 4.8828125e-4), -4.8828125e-4);
    let units = select(weight, small, weight < 4.8828125e-4) * 8192.0;
    let high = floor(units);
    return vec2<u32>(u32(high), u32((units - high) * 2097152.0));
}

fn carried(number: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(number.x + (number.y >> LOW_BITS), number.y & LOW_MASK);
}

fn is_below(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x < b.x || (a.x == b.x && a.y < b.y);
}

// The largest logit of a row, given in bits, so that differences to it are numbers.
fn finite(bits: u32) -> f32 {
    return bitcast<f32>(select(bits, 0x7f7fffffu, bits == 0x7f800000u));
}
