// Products of a step's one row with int8 activations, and before that what is added to the row and its RMSNorm. A workgroup takes a
// panel of the matrix, finds the norm for itself, and rounds the normed row in its memory.
#import shape
#import product
#import row_sum
#import round_rows

@group(0) @binding(3) var<storage, read> rows: array<vec4<f32>>;       // (1, D)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;     // (1, N)
@group(0) @binding(5) var<storage, read> y: array<vec4<f32>>;          // (1, D)
@group(0) @binding(6) var<storage, read> gains: array<vec4<f32>>;      // (D), of the norm
@group(0) @binding(9) var<storage, read_write> sum: array<vec4<f32>>;  // (1, D), rows + y

override HAS_ADDEND: u32;
override GIVES_SUM: u32;  // whether the first workgroup writes it
override EPS: f32;        // added to the mean of squares
override QUADS: u32;      // D / 4
override ITEMS: u32;      // units of a row
override N_UNITS: u32 = ITEMS;
override LINES: u32;      // of 128 bytes in a panel
override N_PRODUCTS: u32 = CAPACITY * ROWS;
override N_PARTS: u32 = THREADS / 16u;

var<workgroup> products: array<f32, N_PRODUCTS>;
var<workgroup> squares: array<f32, THREADS>;
var<workgroup> parts: array<f32, N_PARTS>;
var<private> norm_scale: f32;

fn sum_with_y(quad: u32) -> vec4<f32> {
    if HAS_ADDEND == 0u {
        return rows[quad];
    }
    return rows[quad] + y[quad];
}

fn quad_at(q: u32) -> vec4<u32> {
    if q >= QUADS {
        return vec4<u32>();
    }
    let bits = bitcast<vec4<u32>>(gains[q] * (sum_with_y(q) * norm_scale));
    // Tiny values are 0, as norm_rows.wgsl's.
    return select(bits, vec4<u32>(), (bits & vec4<u32>(0x7fffffffu)) < vec4<u32>(TINY));
}

@compute @workgroup_size(THREADS)
fn row_product(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let panel = shape.weights + group.x * shape.weight_stride;
    // The panel is on its way to the cache while the row is rounded.
    var touched = 0u;
    for (var i = 0u; i < (LINES + THREADS - 1u) / THREADS; i++) {
        touched |= weights[panel + 32u * min(i * THREADS + thread, LINES - 1u)];
    }
    var square = 0.0;
    for (var i = 0u; i < (QUADS + THREADS - 1u) / THREADS; i++) {
        let quad = i * THREADS + thread;
        if QUADS % THREADS == 0u || quad < QUADS {
            let values = sum_with_y(quad);
            square += dot(values, values);
            if GIVES_SUM == 1u && group.x == 0u {
                sum[quad] = values;
            }
        }
    }
    squares[thread] = square;
    workgroupBarrier();
    if thread < N_PARTS {
        square = 0.0;
        for (var i = 0u; i < 16u; i++) {
            square += squares[16u * thread + i];
        }
        parts[thread] = square;
    }
    workgroupBarrier();
    square = 0.0;
    for (var i = 0u; i < N_PARTS; i++) {
        square += parts[i];
    }
    norm_scale = 1.0 / sqrt(square / f32(4u * QUADS) + EPS);
    round_rows(thread);

    let row = thread % ROWS;
    let lane = thread / ROWS + (touched & run.zero);
    let place = Place(panel, row, row, vec4<u32>(), 1u);
    row_products(place, lane);
    workgroupBarrier();
    let out = ROWS * group.x + thread;
    if thread < ROWS && out < shape.out {
        var value = sum_of_units(row, 0u);
        if shape.kind == 1u {
            value = sum_of(value, bias(0u, shape.bias, out));
        }
        // Below 2^-100 results are 0, as int8_product.wgsl's.
        result[out] = select(value, 0.0, (bitcast<u32>(value) & 0x7fffffffu) < 0x0d800000u);
    }
}
