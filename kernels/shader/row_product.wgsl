// Products of a step's one row with int8 activations, and before that what is added to the row and its RMSNorm. A workgroup takes a
// panel of the matrix, finds the norm for itself, and rounds the normed row in its memory.
#import shape
#import product
#import row_sum
#import round_rows
#import norm_scale

@group(0) @binding(3) var<storage, read> rows: array<vec4<f32>>;       // (1, D)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;     // (1, N)
@group(0) @binding(5) var<storage, read> y: array<vec4<f32>>;          // (1, D)
@group(0) @binding(6) var<storage, read> gains: array<vec4<f32>>;      // (D), of the norm
@group(0) @binding(9) var<storage, read_write> sum: array<vec4<f32>>;  // (1, D), rows + y

override HAS_ADDEND: u32;
override GIVES_SUM: u32;  // whether the first workgroup writes it
override EPS: f32;        // added to the mean of squares
override ITEMS: u32;      // units of a row
override N_UNITS: u32 = ITEMS;
override LINES: u32;      // of 128 bytes in a panel
override N_PRODUCTS: u32 = CAPACITY * ROWS;

var<workgroup> products: array<f32, N_PRODUCTS>;
var<private> norm_scale: f32;
var<private> writes_sum: bool;

fn sum_with_y(quad: u32) -> vec4<f32> {
    if HAS_ADDEND == 0u {
        return rows[quad];
    }
    return rows[quad] + y[quad];
}

// Writes the sum as well, if the workgroup is to.
fn summed(quad: u32) -> vec4<f32> {
    if QUADS % SQUARES != 0u && quad >= QUADS {
        return vec4<f32>();
    }
    let four = sum_with_y(quad);
    if writes_sum {
        sum[quad] = four;
    }
    return four;
}

fn quad_at(q: u32) -> vec4<u32> {
    if q >= QUADS {
        return vec4<u32>();
    }
    return normed_bits(gains[q], sum_with_y(q), norm_scale);
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
    writes_sum = GIVES_SUM == 1u && group.x == 0u;
    norm_scale = norm_scale_of(EPS, thread);
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
