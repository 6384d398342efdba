// Panels of sixteen rows of weights times int8 activations: what the kernels of such products have in common. Panels lie as
// src/simd/format.rs draws them. The file of an entry point declares `x`, the words of the activations in a buffer or in a
// workgroup's memory, and `products`, CAPACITY for each row. CPU twins: src/quant/dot.rs, src/simd/expert.rs.
#import shape
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
override CODES: u32;        // of a block
override PARAMETER_WORDS: u32;  // of a block
override IS_POWER: u32;     // whether scales are powers of two
override DEPTH: u32;        // where m, or zero points, lie
override HAS_ZEROS: u32;
override SCALES: u32;       // integer scales of groups; 0: none
override MINS: u32;

override CAPACITY: u32;     // products of a row that are kept at once
override ROWS: u32;         // of one panel or two
override THREADS: u32;      // of a workgroup, at least eight a row
override LANES: u32 = THREADS / ROWS;

struct Place {
    panel: u32,
    row: u32,          // in the panel
    column: u32,       // of products
    rows: vec4<u32>,   // of x, one for each pair
    n_pairs: u32,
}

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

fn dot_half(codes: vec4<u32>, at: u32) -> i32 {
    return dot4I8Packed(codes.x, x[at]) + dot4I8Packed(codes.y, x[at + 1u])
        + dot4I8Packed(codes.z, x[at + 2u]) + dot4I8Packed(codes.w, x[at + 3u]);
}

fn put(place: Place, slot: u32, value: f32) {
    products[slot * ROWS + place.column] = value;
}

// What a unit of weights is to all pairs.
struct Unit {
    parameters: u32,
    number: u32,  // in its block
    d: f32,
    scales: vec2<f32>,
    slot: u32,
}

// The products of unit `item` with every pair, to the slots from `slot` on.
fn unit_products(place: Place, item: u32, slot: u32) {
    let block = item / UNITS;
    let number = item % UNITS;
    let parameters = place.panel + shape.scales + block * PARAMETER_WORDS;
    var d = 0.0;
    if IS_POWER == 1u {
        d = bitcast<f32>((byte_at(parameters, place.row) - 1u) << 23u);
    } else {
        d = half_at(parameters, place.row);
    }
    var scales = vec2<f32>(d);
    if SCALES != 0u {
        let first = number * HALVES * 16u + place.row;
        scales.x = product_of(d, signed_at(parameters + SCALES, first));
        if HALVES == 2u {
            scales.y = product_of(d, signed_at(parameters + SCALES, first + 16u));
        }
    }
    let unit = Unit(parameters, number, d, scales, slot);
    let first = place.panel + block * CODES + number * CODE_UNITS * BITS * 16u + place.row;
    let blocks = place.rows + block * BLOCK_WORDS;
    var a = vec4<i32>();  // of the first half of the columns, for each pair
    var b = vec4<i32>();
    for (var c = 0u; c < CODE_UNITS; c++) {
        let codes = codes_at(first + c * BITS * 16u);
        let at = blocks + (COLUMNS_AT + (number * CODE_UNITS + c) * 8u);
        a.x += dot_half(codes.a, at.x);
        b.x += dot_half(codes.b, at.x + 4u);
        if place.n_pairs > 1u {
            a.y += dot_half(codes.a, at.y);
            b.y += dot_half(codes.b, at.y + 4u);
        }
        if place.n_pairs > 2u {
            a.z += dot_half(codes.a, at.z);
            b.z += dot_half(codes.b, at.z + 4u);
        }
        if place.n_pairs > 3u {
            a.w += dot_half(codes.a, at.w);
            b.w += dot_half(codes.b, at.w + 4u);
        }
    }
    scaled(place, unit, 0u, blocks.x, a.x, b.x);
    if place.n_pairs > 1u {
        scaled(place, unit, 1u, blocks.y, a.y, b.y);
    }
    if place.n_pairs > 2u {
        scaled(place, unit, 2u, blocks.z, a.z, b.z);
    }
    if place.n_pairs > 3u {
        scaled(place, unit, 3u, blocks.w, a.w, b.w);
    }
}

// The dot products of a unit's halves with pair `t`, whose block of activations is at `words`.
fn scaled(place: Place, unit: Unit, t: u32, words: u32, a: i32, b: i32) {
    let scale = bitcast<f32>(x[words + unit.number]);
    let terms = words + UNITS;
    var ints = vec2<i32>(a, b);
    if HALVES == 1u {
        ints.x += b;
    }
    if TERMS == 0u && IS_WIDE == 0u {
        ints.x += bitcast<i32>(x[terms + unit.number * HALVES]);
        if HALVES == 2u {
            ints.y += bitcast<i32>(x[terms + unit.number * HALVES + 1u]);
        }
    }
    let slot = unit.slot + t;
    put(place, slot, product_of(f32(ints.x), product_of(unit.scales.x, scale)));
    if HALVES == 2u {
        put(place, slot + place.n_pairs, product_of(f32(ints.y), product_of(unit.scales.y, scale)));
    }
    if TERMS != 0u {
        var lowered = 0.0;
        if unit.number + 1u == UNITS {
            lowered = lowering(place, unit.parameters, unit.d, terms);
        }
        put(place, slot + (ADDENDS - 1u) * place.n_pairs, lowered);
    }
}

// What a block is lowered by, negated.
fn lowering(place: Place, parameters: u32, d: f32, terms: u32) -> f32 {
    var depth = 0.0;
    if HAS_ZEROS == 1u {
        depth = product_of(d, f32(byte_at(parameters + DEPTH, place.row)));
    } else {
        depth = half_at(parameters + DEPTH, place.row);
    }
    let step = product_of(depth, bitcast<f32>(x[terms]));
    if TERMS == 1u {
        return -step;
    }
    var lowered = 0;
    for (var pair = 0u; pair < UNITS * HALVES / 2u; pair++) {
        let word = bitcast<i32>(x[terms + 1u + pair]);
        let two = weights[parameters + MINS + pair * 8u + place.row / 2u] >> (16u * (place.row % 2u));
        lowered += i32(two & 255u) * ((word << 16u) >> 16u) + i32((two >> 8u) & 255u) * (word >> 16u);
    }
    return -product_of(f32(lowered), step);
}

// `sum` and `n` products, each `stride` behind the one before. Eight are read before they are added: reading takes longer.
fn sum_in_order(start: f32, first: u32, stride: u32, n: u32) -> f32 {
    var sum = start;
    var at = first;
    for (var i = 0u; i < n / 8u; i++) {
        let a = vec4<f32>(products[at], products[at + stride], products[at + 2u * stride], products[at + 3u * stride]);
        at += 4u * stride;
        let b = vec4<f32>(products[at], products[at + stride], products[at + 2u * stride], products[at + 3u * stride]);
        at += 4u * stride;
        sum = sum_of(sum_of(sum_of(sum_of(sum, a.x), a.y), a.z), a.w);
        sum = sum_of(sum_of(sum_of(sum_of(sum, b.x), b.y), b.z), b.w);
    }
    for (var i = 0u; i < n % 8u; i++) {
        sum = sum_of(sum, products[at]);
        at += stride;
    }
    return sum;
}

// `exp(x)`: `x = n ln 2 + r`, a polynomial in r, and n as exponent.
fn exp_of(value: f32) -> f32 {
    let x = at_most(at_least(value, -87.0), 88.0);
    let rounded = sum_of(product_of(x, 1.4426950408889634), ROUNDER);
    let n = sum_of(rounded, -ROUNDER);
    let r = sum_of(sum_of(x, -product_of(n, 0.6933594)), -product_of(n, -2.1219444e-4));
    var sum = 1.9875691e-4;
    sum = sum_of(product_of(sum, r), 1.3981999e-3);
    sum = sum_of(product_of(sum, r), 8.333452e-3);
    sum = sum_of(product_of(sum, r), 4.1665796e-2);
    sum = sum_of(product_of(sum, r), 1.6666665e-1);
    sum = sum_of(product_of(sum, r), 0.5);
    sum = sum_of(product_of(product_of(sum, r), r), sum_of(r, 1.0));
    return product_of(sum, bitcast<f32>(bitcast<u32>(sum_of(rounded, 127.0)) << 23u));
}

fn bias(block: u32, start: u32, out: u32) -> f32 {
    return bitcast<f32>(weights[block + start + out]);
}

fn joined(block: u32, out: u32, gate: f32, up: f32) -> f32 {
    if shape.kind == 0u {
        return product_of(quotient_of(gate, sum_of(1.0, exp_of(-gate))), up);
    }
    let g = at_most(sum_of(gate, bias(block, shape.bias, out)), 7.0);
    let u = at_most(at_least(sum_of(up, bias(block, shape.up_bias, out)), -7.0), 7.0);
    let denominator = sum_of(1.0, exp_of(product_of(-1.702, g)));
    return product_of(sum_of(u, 1.0), quotient_of(g, denominator));
}
