// Panels of weights times int8 activations, for steps of many rows: a workgroup takes four panels and up to 32 pairs of one expert,
// or rows in order. A thread has a row of each panel and every eighth pair; it adds units in the order of the columns, so that its
// bits are those of int8_product.wgsl. It stages few columns at once: the less memory a workgroup takes, the more run beside each
// other. CPU twins: src/quant/dot.rs, src/simd/expert.rs.
#import tile
#import panels
#import joined

@group(0) @binding(3) var<storage, read> x: array<u32>;
@group(0) @binding(4) var<storage, read_write> result: array<f32>;
@group(0) @binding(5) var<storage, read> pairs: array<vec2<u32>>;  // (P): where each one's row of x starts, and its gate

override ZERO: u32;      // the code of weight 0, where nothing lowers a block
override IN_ORDER: u32;  // whether the pairs are the rows of x, all with gate 1
override KEEPS_PRODUCTS: u32 = 0u;  // whether the products with gate and up are written behind all rows of h

const THREADS: u32 = 128u;
const ROWS: u32 = 64u;
const PAIRS: u32 = 32u;
const EACH: u32 = 4u;    // pairs of a thread
const CHUNKS: u32 = 2u;  // of 32 columns that are staged at once
const STAGED_ROWS: u32 = CHUNKS * ROWS;
const STAGED_PAIRS: u32 = CHUNKS * PAIRS;
const INT_ZERO: i32 = 0x4b400000;  // the bits of ROUNDER: as a float, INT_ZERO + n is ROUNDER + n, for n within 2^22

var<workgroup> codes_a: array<vec4<u32>, STAGED_ROWS>;  // (CHUNKS, ROWS): the first half of a chunk's columns
var<workgroup> codes_b: array<vec4<u32>, STAGED_ROWS>;
var<workgroup> scales: array<vec2<f32>, STAGED_ROWS>;  // of both halves; where a block has one group, the second is its depth
var<workgroup> columns_a: array<vec4<u32>, STAGED_PAIRS>;  // (CHUNKS, PAIRS)
var<workgroup> columns_b: array<vec4<u32>, STAGED_PAIRS>;
var<workgroup> column_scales: array<f32, STAGED_PAIRS>;
var<workgroup> column_sums: array<f32, STAGED_PAIRS>;
var<workgroup> starts: array<u32, PAIRS>;  // of rows of x

// n, for INT_ZERO + n, without a conversion.
fn float4(n: vec4<i32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(n) - vec4<f32>(ROUNDER);
}

// Codes as signed integers: less ZERO, byte by byte.
fn centred(codes: vec4<u32>) -> vec4<u32> {
    if TERMS != 0u || IS_WIDE == 1u {
        return codes;
    }
    let middle = vec4<u32>(0x80808080u);
    return ((codes | middle) - vec4<u32>(ZERO * 0x01010101u)) ^ middle;
}

fn dot_quads(sum: i32, a: vec4<u32>, b: vec4<u32>) -> i32 {
    return sum + dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// A panel's rows at `row`, for each of four panels.
struct Four {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
}

// `sums` and the products of four rows with a half of a chunk's columns.
fn dot_rows(sums: vec4<i32>, codes: Four, columns: vec4<u32>) -> vec4<i32> {
    return vec4<i32>(
        dot_quads(sums.x, codes.a, columns),
        dot_quads(sums.y, codes.b, columns),
        dot_quads(sums.z, codes.c, columns),
        dot_quads(sums.w, codes.d, columns),
    );
}

// A chunk of four rows.
struct Chunk {
    of_unit: u32,         // which of its unit's it is
    a: Four,
    b: Four,
    scales: vec4<f32>,    // of the unit, or of its first half
    seconds: vec4<f32>,   // of its second half, or the depths
}

// What a pair has of four rows.
struct Sums {
    first: vec4<i32>,   // of a unit's columns, or of their first half, from INT_ZERO on
    second: vec4<i32>,  // of their second half
    all: vec4<f32>,     // of the units before
}

// Adds a chunk, times a pair's columns.
fn with_chunk(before: Sums, chunk: Chunk, of_pair: u32) -> Sums {
    var sums = before;
    if chunk.of_unit == 0u {
        sums.first = vec4<i32>(INT_ZERO);
        sums.second = vec4<i32>(INT_ZERO);
    }
    sums.first = dot_rows(sums.first, chunk.a, columns_a[of_pair]);
    if HALVES == 1u {
        sums.first = dot_rows(sums.first, chunk.b, columns_b[of_pair]);
    } else {
        sums.second = dot_rows(sums.second, chunk.b, columns_b[of_pair]);
    }
    if chunk.of_unit == CODE_UNITS - 1u {
        let scale = vec4<f32>(column_scales[of_pair]);
        sums.all = sum4(sums.all, product4(float4(sums.first), product4(chunk.scales, scale)));
        if HALVES == 2u {
            sums.all = sum4(sums.all, product4(float4(sums.second), product4(chunk.seconds, scale)));
        }
        if TERMS == 1u {
            sums.all = sum4(sums.all, -product4(chunk.seconds, vec4<f32>(column_sums[of_pair])));
        }
    }
    return sums;
}

// What lowers a block of many groups is staged where codes and columns were: of rows, whose parameters are at `parameters`, the
// depth and the minimums; of pairs, the groups' sums, moved to where none is negative, and cut in two bytes. A word has those of
// four groups: the first, the third, the second, the fourth.
fn stage_lowering(parameters: vec4<u32>, block: u32, thread: u32) {
    if thread < ROWS {
        let at = parameters[thread / 16u];
        let row = thread % 16u;
        var mins: vec4<u32>;
        var sum = 0u;
        for (var i = 0u; i < UNITS * HALVES / 4u; i++) {
            let pairs = vec2<u32>(mins_at(at, row, 2u * i), mins_at(at, row, 2u * i + 1u));
            let spread = (pairs | (pairs << vec2<u32>(8u))) & vec2<u32>(0x00ff00ffu);
            mins[i] = spread.x | (spread.y << 8u);
            sum += dot4U8Packed(mins[i], 0x01010101u);
        }
        codes_a[thread] = mins;
        codes_b[thread] = vec4<u32>(sum << 15u);
        scales[thread].x = depth_at(at, row, 0.0);
    } else if thread < ROWS + PAIRS {
        let pair = thread - ROWS;
        let words = starts[pair] + block * BLOCK_WORDS + UNITS;
        var low: vec4<u32>;
        var high: vec4<u32>;
        for (var i = 0u; i < UNITS * HALVES / 4u; i++) {
            let two = vec2<u32>(x[words + 1u + 2u * i], x[words + 2u + 2u * i]) ^ vec2<u32>(0x80008000u);
            let lows = two & vec2<u32>(0x00ff00ffu);
            let highs = (two >> vec2<u32>(8u)) & vec2<u32>(0x00ff00ffu);
            low[i] = lows.x | (lows.y << 8u);
            high[i] = highs.x | (highs.y << 8u);
        }
        columns_a[pair] = low;
        columns_b[pair] = high;
        column_scales[pair] = bitcast<f32>(x[words]);
    }
}

// What lowers a row of weights for a pair, in steps.
fn steps_of(of_row: u32, of_pair: u32) -> i32 {
    let mins = codes_a[of_row];
    let low = columns_a[of_pair];
    let high = columns_b[of_pair];
    var sum = vec2<u32>();
    for (var i = 0u; i < UNITS * HALVES / 4u; i++) {
        sum += vec2<u32>(dot4U8Packed(mins[i], low[i]), dot4U8Packed(mins[i], high[i]));
    }
    return bitcast<i32>(sum.x + (sum.y << 8u) - codes_b[of_row].x);
}

// Lowers what a pair has of four rows.
fn lowered(before: Sums, row: u32, depths: vec4<f32>, of_pair: u32) -> Sums {
    var sums = before;
    let steps = vec4<i32>(
        steps_of(row, of_pair),
        steps_of(row + 16u, of_pair),
        steps_of(row + 32u, of_pair),
        steps_of(row + 48u, of_pair),
    );
    let step = product4(depths, vec4<f32>(column_scales[of_pair]));
    sums.all = sum4(sums.all, -product4(vec4<f32>(steps), step));
    return sums;
}

@compute @workgroup_size(128)
fn int8_matrix(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tile = run.first_tile + group.y;
    let n_pairs = tiles[tile].n_pairs;
    if n_pairs == 0u {
        return;
    }
    let first_pair = tiles[tile].first_pair;
    let block = 4u * tiles[tile].block;
    if thread < PAIRS {
        // Beyond the last pair: the first, whose results are not written twice.
        let pair = first_pair + select(0u, thread, thread < n_pairs);
        if IN_ORDER == 1u || shape.is_down == 1u {
            starts[thread] = pair * shape.x_stride;
        } else {
            starts[thread] = pairs[pair].x;
        }
    }
    let n_panels = (shape.out + 15u) / 16u * (2u - shape.is_down);
    let panels = vec4<u32>(0u, 1u, 2u, 3u) + 4u * group.x;
    let bases = block + shape.weights + min(panels, vec4<u32>(n_panels - 1u)) * shape.weight_stride;
    let row = thread % 16u;
    let first = thread / 16u;  // of the thread's pairs
    let n_chunks = shape.items * CODE_UNITS;
    // A loop over these might not be unrolled, and they would lie in memory.
    var sums_0: Sums;
    var sums_1: Sums;
    var sums_2: Sums;
    var sums_3: Sums;
    workgroupBarrier();

    for (var staged = 0u; staged < n_chunks; staged += CHUNKS) {
        let n = min(CHUNKS, n_chunks - staged);
        for (var i = 0u; i < STAGED_ROWS / THREADS; i++) {
            let item = i * THREADS + thread;
            let chunk = staged + item / ROWS;
            if chunk < n_chunks {
                let unit = chunk / CODE_UNITS;
                let start = bases[item % ROWS / 16u] + unit / UNITS * WEIGHT_WORDS;
                let codes = codes_at(start + chunk % (UNITS * CODE_UNITS) * BITS * 16u + item % 16u);
                codes_a[item] = centred(codes.a);
                codes_b[item] = centred(codes.b);
                let parameters = start + CODE_WORDS;
                let d = block_scale(parameters, item % 16u);
                scales[item] = unit_scales(parameters, item % 16u, unit % UNITS, d);
                if TERMS == 1u {
                    scales[item].y = depth_at(parameters, item % 16u, d);
                }
            }
        }
        if thread < STAGED_PAIRS {
            let chunk = staged + thread % CHUNKS;
            let pair = thread / CHUNKS;
            if chunk < n_chunks && pair < n_pairs {
                let unit = chunk / CODE_UNITS;
                let words = starts[pair] + unit / UNITS * BLOCK_WORDS;
                let at = words + COLUMNS_AT + chunk % (UNITS * CODE_UNITS) * 8u;
                let to = thread % CHUNKS * PAIRS + pair;
                columns_a[to] = vec4<u32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
                columns_b[to] = vec4<u32>(x[at + 4u], x[at + 5u], x[at + 6u], x[at + 7u]);
                column_scales[to] = bitcast<f32>(x[words + unit % UNITS]);
                if TERMS == 1u {
                    column_sums[to] = bitcast<f32>(x[words + UNITS]);
                }
            }
        }
        workgroupBarrier();
        for (var chunk = 0u; chunk < n; chunk++) {
            let of_rows = chunk * ROWS + row;
            let four = Chunk(
                (staged + chunk) % CODE_UNITS,
                Four(codes_a[of_rows], codes_a[of_rows + 16u], codes_a[of_rows + 32u], codes_a[of_rows + 48u]),
                Four(codes_b[of_rows], codes_b[of_rows + 16u], codes_b[of_rows + 32u], codes_b[of_rows + 48u]),
                vec4<f32>(scales[of_rows].x, scales[of_rows + 16u].x, scales[of_rows + 32u].x, scales[of_rows + 48u].x),
                vec4<f32>(scales[of_rows].y, scales[of_rows + 16u].y, scales[of_rows + 32u].y, scales[of_rows + 48u].y),
            );
            let of_pair = chunk * PAIRS + first;
            sums_0 = with_chunk(sums_0, four, of_pair);
            if n_pairs > 8u {
                sums_1 = with_chunk(sums_1, four, of_pair + 8u);
            }
            if n_pairs > 16u {
                sums_2 = with_chunk(sums_2, four, of_pair + 16u);
            }
            if n_pairs > 24u {
                sums_3 = with_chunk(sums_3, four, of_pair + 24u);
            }
        }
        workgroupBarrier();
        if TERMS == 2u && (staged + CHUNKS) % (UNITS * CODE_UNITS) == 0u {
            let number = staged / (UNITS * CODE_UNITS);
            stage_lowering(bases + (number * WEIGHT_WORDS + CODE_WORDS), number, thread);
            workgroupBarrier();
            let depths = vec4<f32>(scales[row].x, scales[row + 16u].x, scales[row + 32u].x, scales[row + 48u].x);
            sums_0 = lowered(sums_0, row, depths, first);
            sums_1 = lowered(sums_1, row, depths, first + 8u);
            sums_2 = lowered(sums_2, row, depths, first + 16u);
            sums_3 = lowered(sums_3, row, depths, first + 24u);
            workgroupBarrier();
        }
    }

    let sums = array<vec4<f32>, EACH>(sums_0.all, sums_1.all, sums_2.all, sums_3.all);
    for (var j = 0u; j < EACH; j++) {
        let pair = 8u * j + first;
        if pair >= n_pairs {
            continue;
        }
        let at = (first_pair + pair) * shape.out;
        if shape.is_down == 0u {
            for (var i = 0u; i < 2u; i++) {
                let out = 32u * group.x + 16u * i + row;
                if out < shape.out {
                    let gate = half_of(sums[j][2u * i]);
                    let up = half_of(sums[j][2u * i + 1u]);
                    result[at + out] = joined(block, out, gate, up);
                    if KEEPS_PRODUCTS == 1u {
                        let first = shape.products + 2u * at;
                        result[first + out] = gate;
                        result[first + shape.out + out] = up;
                    }
                }
            }
            continue;
        }
        var gate = 1.0;
        if IN_ORDER == 0u {
            gate = bitcast<f32>(pairs[first_pair + pair].y);
        }
        for (var i = 0u; i < 4u; i++) {
            let out = 16u * panels[i] + row;
            if out < shape.out {
                var sum = sums[j][i];
                if shape.kind == 1u {
                    sum = sum_of(sum, bias(block, shape.bias, out));
                }
                let y = product_of(gate, sum);
                // Below 2^-100 results are 0: no device meets a number that is not normal.
                result[at + out] = select(y, 0.0, (bitcast<u32>(y) & 0x7fffffffu) < 0x0d800000u);
            }
        }
    }
}
