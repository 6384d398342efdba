// Panels of weights times int8 activations, for steps of many rows: a workgroup takes four panels and up to 32 pairs of one expert,
// or rows in order. A thread has a row of each panel and every eighth pair; it adds units in the order of the columns, so that its
// bits are those of int8_product.wgsl. CPU twins: src/quant/dot.rs, src/simd/expert.rs.
#import tile
#import panels
#import joined

@group(0) @binding(3) var<storage, read> x: array<u32>;
@group(0) @binding(4) var<storage, read_write> result: array<f32>;
@group(0) @binding(5) var<storage, read> pairs: array<vec2<u32>>;  // (P): where each one's row of x starts, and its gate

override IN_ORDER: u32;  // whether the pairs are the rows of x, all with gate 1
override KEEPS_PRODUCTS: u32 = 0u;  // whether the products with gate and up are written behind all rows of h

const THREADS: u32 = 128u;
const ROWS: u32 = 64u;
const PAIRS: u32 = 32u;
const EACH: u32 = 4u;    // pairs of a thread
const CHUNKS: u32 = 4u;  // of 32 columns that are staged at once

var<workgroup> codes_a: array<vec4<u32>, 256>;  // (CHUNKS, ROWS): the first half of a chunk's columns
var<workgroup> codes_b: array<vec4<u32>, 256>;
var<workgroup> scales: array<vec2<f32>, 256>;
var<workgroup> columns_a: array<vec4<u32>, 128>;  // (CHUNKS, PAIRS)
var<workgroup> columns_b: array<vec4<u32>, 128>;
var<workgroup> column_scales: array<f32, 128>;
var<workgroup> column_terms: array<vec2<i32>, 128>;
var<workgroup> starts: array<u32, PAIRS>;  // of rows of x

fn kept4(values: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(values) ^ vec4<u32>(run.zero));
}

fn product4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return kept4(a * b);
}

fn dot_quads(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// A panel's rows at `row`, for each of four panels.
struct Four {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
}

fn dot_rows(codes: Four, columns: vec4<u32>) -> vec4<i32> {
    return vec4<i32>(
        dot_quads(codes.a, columns),
        dot_quads(codes.b, columns),
        dot_quads(codes.c, columns),
        dot_quads(codes.d, columns),
    );
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
    var a: array<vec4<i32>, EACH>;  // for each pair: of the first half of the columns, for the rows of four panels
    var b: array<vec4<i32>, EACH>;
    var sums: array<vec4<f32>, EACH>;
    workgroupBarrier();

    for (var staged = 0u; staged < n_chunks; staged += CHUNKS) {
        let n = min(CHUNKS, n_chunks - staged);
        for (var i = 0u; i < CHUNKS * ROWS / THREADS; i++) {
            let item = i * THREADS + thread;
            let chunk = staged + item / ROWS;
            if chunk < n_chunks {
                let unit = chunk / CODE_UNITS;
                let base = bases[item % ROWS / 16u];
                let codes = codes_at(base + unit / UNITS * CODES + chunk % (UNITS * CODE_UNITS) * BITS * 16u + item % 16u);
                codes_a[item] = codes.a;
                codes_b[item] = codes.b;
                let parameters = base + shape.scales + unit / UNITS * PARAMETER_WORDS;
                scales[item] = unit_scales(parameters, item % 16u, unit % UNITS, block_scale(parameters, item % 16u));
            }
        }
        {
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
                var terms = vec2<i32>();
                if TERMS == 0u && IS_WIDE == 0u {
                    let of_unit = words + UNITS + unit % UNITS * HALVES;
                    terms = vec2<i32>(bitcast<i32>(x[of_unit]), 0);
                    if HALVES == 2u {
                        terms.y = bitcast<i32>(x[of_unit + 1u]);
                    }
                }
                column_terms[to] = terms;
            }
        }
        workgroupBarrier();
        for (var chunk = 0u; chunk < n; chunk++) {
            let of_rows = chunk * ROWS + row;
            let codes_of_a = Four(codes_a[of_rows], codes_a[of_rows + 16u], codes_a[of_rows + 32u], codes_a[of_rows + 48u]);
            let codes_of_b = Four(codes_b[of_rows], codes_b[of_rows + 16u], codes_b[of_rows + 32u], codes_b[of_rows + 48u]);
            let unit = (staged + chunk) / CODE_UNITS;
            let ends = CODE_UNITS == 1u || (staged + chunk) % CODE_UNITS == CODE_UNITS - 1u;
            let first_scales = vec4<f32>(
                scales[of_rows].x, scales[of_rows + 16u].x, scales[of_rows + 32u].x, scales[of_rows + 48u].x);
            let second_scales = vec4<f32>(
                scales[of_rows].y, scales[of_rows + 16u].y, scales[of_rows + 32u].y, scales[of_rows + 48u].y);
            for (var j = 0u; j < EACH; j++) {
                if 8u * j < n_pairs {
                    let of_pair = chunk * PAIRS + 8u * j + first;
                    a[j] += dot_rows(codes_of_a, columns_a[of_pair]);
                    b[j] += dot_rows(codes_of_b, columns_b[of_pair]);
                    if ends {
                        let scale = vec4<f32>(column_scales[of_pair]);
                        let terms = column_terms[of_pair];
                        var ints = a[j] + vec4<i32>(terms.x);
                        if HALVES == 1u {
                            ints += b[j];
                        }
                        sums[j] = kept4(sums[j] + product4(vec4<f32>(ints), product4(first_scales, scale)));
                        if HALVES == 2u {
                            ints = b[j] + vec4<i32>(terms.y);
                            sums[j] = kept4(sums[j] + product4(vec4<f32>(ints), product4(second_scales, scale)));
                        }
                        a[j] = vec4<i32>();
                        b[j] = vec4<i32>();
                    }
                }
            }
            if TERMS != 0u && ends && (unit + 1u) % UNITS == 0u {
                let parameters = bases + (shape.scales + unit / UNITS * PARAMETER_WORDS);
                for (var j = 0u; j < EACH; j++) {
                    let pair = 8u * j + first;
                    if pair < n_pairs {
                        let terms = starts[pair] + unit / UNITS * BLOCK_WORDS + UNITS;
                        var lowered = vec4<f32>();
                        for (var i = 0u; i < 4u; i++) {
                            lowered[i] = lowering(parameters[i], row, block_scale(parameters[i], row), terms);
                        }
                        sums[j] = kept4(sums[j] + lowered);
                    }
                }
            }
        }
        workgroupBarrier();
    }

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
                    let gate = sums[j][2u * i];
                    let up = sums[j][2u * i + 1u];
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
