// Panels of sixteen rows of weights times int8 activations, for the pairs of one tile a workgroup: one of gate and one of up and
// what joins them, or one or two of down. Panels lie as src/simd/format.rs draws them. Threads take units of columns apart, and
// their products are added in the order of the columns. CPU twins: src/quant/dot.rs, src/simd/expert.rs.
#import tile
#import exact
#import panels
#import joined

@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<u32>;
@group(0) @binding(4) var<storage, read_write> result: array<f32>;

override CAPACITY: u32;     // products of a row that are kept at once
override ROWS: u32;         // of one panel or two
override THREADS: u32;      // of a workgroup, at least eight a row
override LANES: u32 = THREADS / ROWS;
override ONE_PAIR: u32 = 0u;  // whether every tile has one pair
override ITEMS: u32 = 0u;     // of a row, if the kernel is for rows of one length: then loads of all its units are under way together

var<workgroup> products: array<f32, CAPACITY * ROWS>;

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
    let parameters = place.panel + shape.scales + block * PARAMETER_WORDS;
    let d = block_scale(parameters, place.row);
    let scales = unit_scales(parameters, place.row, number, d);
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
            lowered = lowering(unit.parameters, place.row, unit.d, terms);
        }
        put(place, slot + (ADDENDS - 1u) * place.n_pairs, lowered);
    }
}

// Four sums of every fourth column, for one pair and the second next.
fn float_products(place: Place, lane: u32) {
    for (var t = lane / 4u; t < place.n_pairs; t += LANES / 4u) {
        let at = place.rows[t];
        var sum = 0.0;
        for (var column = lane % 4u; column < shape.items; column += 4u) {
            let i = column * 16u + place.row;
            var w = 0.0;
            if FLOATS == 32u {
                w = bitcast<f32>(weights[place.panel + i]);
            } else if FLOATS == 16u {
                w = half_at(place.panel, i);
            } else {
                w = bitcast<f32>((weights[place.panel + i / 2u] >> (16u * (i % 2u))) << 16u);
            }
            sum = sum_of(sum, product_of(w, bitcast<f32>(x[at + column])));
        }
        put(place, 4u * t + lane % 4u, sum);
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

@compute @workgroup_size(THREADS)
fn int8_product(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = run.first_tile + group.y;
    let n_pairs = select(tiles[tile].n_pairs, 1u, ONE_PAIR == 1u);
    if n_pairs == 0u {
        return;
    }
    let block = 4u * tiles[tile].block;
    let row = thread % ROWS;
    let lane = thread / ROWS;
    let n_panels = (shape.out + 15u) / 16u * (2u - shape.is_down);
    let panel = min(ROWS / 16u * group.x + row / 16u, n_panels - 1u);
    var rows = tiles[tile].rows;
    if shape.is_down == 1u {
        rows = (tiles[tile].first_pair + vec4<u32>(0u, 1u, 2u, 3u)) * shape.x_stride;
    }
    let place = Place(block + shape.weights + panel * shape.weight_stride, row % 16u, row, rows, n_pairs);

    // From here on a thread has the sum of a row for pair `lane`.
    var sum = 0.0;
    if FLOATS != 0u {
        float_products(place, lane);
        workgroupBarrier();
        if lane < n_pairs {
            let first = 4u * lane * ROWS + row;
            sum = sum_of(
                sum_of(products[first], products[first + ROWS]),
                sum_of(products[first + 2u * ROWS], products[first + 3u * ROWS]),
            );
        }
        workgroupBarrier();
    } else {
        let at_once = CAPACITY / (ADDENDS * n_pairs);
        let items = select(shape.items, ITEMS, ITEMS != 0u);
        for (var first = 0u; first < items; first += at_once) {
            let n = min(at_once, items - first);
            for (var round = 0u; round < (n + LANES - 1u) / LANES; round++) {
                let i = round * LANES + lane;
                if i < n || (ITEMS != 0u && ITEMS % LANES == 0u && at_once % LANES == 0u) {
                    unit_products(place, first + i, i * ADDENDS * n_pairs);
                }
            }
            workgroupBarrier();
            if lane < n_pairs {
                sum = sum_in_order(sum, lane * ROWS + row, n_pairs * ROWS, n * ADDENDS);
            }
            workgroupBarrier();
        }
    }
    let at = (tiles[tile].first_pair + lane) * shape.out;
    if shape.is_down == 0u {
        products[thread] = sum;
        workgroupBarrier();
        let out = 16u * group.x + row;
        if lane < n_pairs && row < 16u && out < shape.out {
            let up = products[thread + 16u];
            let first = shape.products + 2u * at;
            result[at + out] = joined(block, out, sum, up);
            result[first + out] = sum;
            result[first + shape.out + out] = up;
        }
        return;
    }
    let out = ROWS * group.x + row;
    if lane < n_pairs && out < shape.out {
        if shape.kind == 1u {
            sum = sum_of(sum, bias(block, shape.bias, out));
        }
        let y = product_of(tiles[tile].gates[lane], sum);
        // Below 2^-100 results are 0: no device meets a number that is not normal.
        result[at + out] = select(y, 0.0, (bitcast<u32>(y) & 0x7fffffffu) < 0x0d800000u);
    }
}
