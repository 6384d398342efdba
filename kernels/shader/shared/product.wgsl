// Panels of sixteen rows of weights times int8 activations: what the kernels of such products have in common. Panels lie as
// src/simd/format.rs draws them. The file of an entry point declares `x`, the words of the activations in a buffer or in a
// workgroup's memory, `products`, CAPACITY for each row, and `lower`, which puts what lowers a block to the
// last unit's slot, and 0 to those of the others. CPU twins: src/quant/dot.rs, src/simd/expert.rs.
#import shape
#import panels
#import joined

override CAPACITY: u32;     // products of a row that are kept at once
override ROWS: u32;         // of one panel or two
override THREADS: u32;      // of a workgroup: one a row, or at least eight
override LANES: u32 = THREADS / ROWS;

struct Place {
    panel: u32,
    row: u32,          // in the panel
    column: u32,       // of products
    rows: vec4<u32>,   // of x, one for each pair
    n_pairs: u32,
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
    let start = place.panel + block * WEIGHT_WORDS;
    let parameters = start + CODE_WORDS;
    let d = block_scale(parameters, place.row);
    let scales = unit_scales(parameters, place.row, number, d);
    let unit = Unit(parameters, number, d, scales, slot);
    let first = start + number * CODE_UNITS * BITS * 16u + place.row;
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
        lower(place, unit, slot + (ADDENDS - 1u) * place.n_pairs, terms);
    }
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
