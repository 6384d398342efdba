// Weights in panels of sixteen rows, as src/simd/format.rs draws them: their codes and parameters.
// The file of an entry point declares `x`, the words of the activations.
#import exact

@group(0) @binding(2) var<storage, read> weights: array<u32>;

override FLOATS: u32;       // 0: integers, else the bits of a float, 17 for bf16
override UNITS: u32;        // units in a block
override CODE_UNITS: u32;   // 32 columns each in a unit
override BLOCK_WORDS: u32;  // of a block of activations
override COLUMNS_AT: u32;
override TERMS: u32;        // 0: a bias a group, 1: the sum, 2: groups' sums in i16
override HALVES: u32;       // groups in a unit: 1 or 2
override ADDENDS: u32;      // products of a unit, and what lowers a block
override BITS: u32;         // of a code
override IS_WIDE: u32;      // whether codes take the eighth bit: then they count from 128
override HAS_TABLE: u32;
override TABLE_0: u32;      // what codes stand for
override TABLE_1: u32;
override TABLE_2: u32;
override TABLE_3: u32;
override WEIGHT_WORDS: u32; // of a block of weights
override CODE_WORDS: u32;   // of its codes; its parameters follow
override IS_POWER: u32;     // whether scales are powers of two
override DEPTH: u32;        // where m, or zero points, lie
override HAS_ZEROS: u32;
override SCALES: u32;       // integer scales of groups; 0: none
override MINS: u32;

fn byte_at(words: u32, i: u32) -> u32 {
    return (weights[words + i / 4u] >> (8u * (i % 4u))) & 255u;
}

fn signed_at(words: u32, i: u32) -> f32 {
    return f32(bitcast<i32>(byte_at(words, i) << 24u) >> 24u);
}

fn half_at(words: u32, i: u32) -> f32 {
    return half_value((weights[words + i / 2u] >> (16u * (i % 2u))) & 0xffffu);
}

// What the four codes of a word stand for.
fn looked_up(word: u32) -> u32 {
    let places = vec4<u32>(0u, 8u, 16u, 24u);
    let codes = (vec4<u32>(word) >> places) & vec4<u32>(15u);
    let second = (codes & vec4<u32>(4u)) != vec4<u32>(0u);
    let low = select(vec4<u32>(TABLE_0), vec4<u32>(TABLE_1), second);
    let high = select(vec4<u32>(TABLE_2), vec4<u32>(TABLE_3), second);
    let four = select(low, high, (codes & vec4<u32>(8u)) != vec4<u32>(0u));
    let bytes = ((four >> (8u * (codes & vec4<u32>(3u)))) & vec4<u32>(255u)) << places;
    return bytes.x | bytes.y | bytes.z | bytes.w;
}

// Eight quads of codes.
struct Codes {
    a: vec4<u32>,
    b: vec4<u32>,
}

fn words_at(at: u32) -> vec4<u32> {
    return vec4<u32>(weights[at], weights[at + 16u], weights[at + 32u], weights[at + 48u]);
}

fn codes_at(at: u32) -> Codes {
    let each = vec4<u32>(0u, 1u, 2u, 3u);
    let one = vec4<u32>(0x01010101u);
    let three = vec4<u32>(0x03030303u);
    var codes: Codes;
    if BITS < 4u {
        codes.a = (vec4<u32>(weights[at]) >> (2u * each)) & three;
        codes.b = (vec4<u32>(weights[at + 16u]) >> (2u * each)) & three;
        if BITS == 3u {
            let high = vec4<u32>(weights[at + 32u]);
            codes.a |= ((high >> each) & one) << vec4<u32>(2u);
            codes.b |= ((high >> (each + 4u)) & one) << vec4<u32>(2u);
        }
        return codes;
    }
    let words = words_at(at);
    if BITS == 8u {
        codes = Codes(words, words_at(at + 64u));
    } else {
        codes = Codes(words & vec4<u32>(0x0f0f0f0fu), (words >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu));
        if BITS == 5u {
            let high = vec4<u32>(weights[at + 64u]);
            codes.a |= ((high >> each) & one) << vec4<u32>(4u);
            codes.b |= ((high >> (each + 4u)) & one) << vec4<u32>(4u);
        }
        if BITS == 6u {
            codes.a |= ((vec4<u32>(weights[at + 64u]) >> (2u * each)) & three) << vec4<u32>(4u);
            codes.b |= ((vec4<u32>(weights[at + 80u]) >> (2u * each)) & three) << vec4<u32>(4u);
        }
        if HAS_TABLE == 1u {
            codes.a = vec4<u32>(looked_up(codes.a.x), looked_up(codes.a.y), looked_up(codes.a.z), looked_up(codes.a.w));
            codes.b = vec4<u32>(looked_up(codes.b.x), looked_up(codes.b.y), looked_up(codes.b.z), looked_up(codes.b.w));
        }
    }
    if IS_WIDE == 1u {
        let middle = vec4<u32>(0x80808080u);
        codes = Codes(codes.a ^ middle, codes.b ^ middle);
    }
    return codes;
}

// The scale of the block whose parameters are at `parameters`.
fn block_scale(parameters: u32, row: u32) -> f32 {
    if IS_POWER == 1u {
        return bitcast<f32>((byte_at(parameters, row) - 1u) << 23u);
    }
    return half_at(parameters, row);
}

// The scales of the groups of unit `number` of a block whose scale is `d`.
fn unit_scales(parameters: u32, row: u32, number: u32, d: f32) -> vec2<f32> {
    var scales = vec2<f32>(d);
    if SCALES != 0u {
        let first = number * HALVES * 16u + row;
        scales.x = product_of(d, signed_at(parameters + SCALES, first));
        if HALVES == 2u {
            scales.y = product_of(d, signed_at(parameters + SCALES, first + 16u));
        }
    }
    return scales;
}

// What the terms of a block are multiplied with, for a block's scale `d`.
fn depth_at(parameters: u32, row: u32, d: f32) -> f32 {
    if HAS_ZEROS == 1u {
        return product_of(d, f32(byte_at(parameters + DEPTH, row)));
    }
    return half_at(parameters + DEPTH, row);
}

// The minimums of groups 2 `pair` and 2 `pair` + 1 of a block, a byte each.
fn mins_at(parameters: u32, row: u32, pair: u32) -> u32 {
    return (weights[parameters + MINS + pair * 8u + row / 2u] >> (16u * (row % 2u))) & 0xffffu;
}

// What a block is lowered by, negated, for activations whose terms are at `terms`.
fn lowering(parameters: u32, row: u32, d: f32, terms: u32) -> f32 {
    let step = product_of(depth_at(parameters, row, d), bitcast<f32>(x[terms]));
    if TERMS == 1u {
        return -step;
    }
    var lowered = 0;
    for (var pair = 0u; pair < UNITS * HALVES / 2u; pair++) {
        let word = bitcast<i32>(x[terms + 1u + pair]);
        let mins = mins_at(parameters, row, pair);
        lowered += i32(mins & 255u) * ((word << 16u) >> 16u) + i32(mins >> 8u) * (word >> 16u);
    }
    return -product_of(f32(lowered), step);
}
