// A router's logits of a step's one row, and before that what is added to the row and its RMSNorm. A workgroup takes a panel of
// sixteen experts and one of equal parts of the columns, and finds the norm's scale for itself: it multiplies the logits. 256
// columns of what others read of the row, a workgroup writes each. choose.wgsl adds what the parts give.
#import run
#import exact
#import round
#import norm
#import floats

@group(0) @binding(3) var<storage, read> x: array<f32>;             // (1, D)
@group(0) @binding(4) var<storage, read_write> result: array<u32>;  // (1, norm.result_stride)
@group(0) @binding(5) var<storage, read> y: array<f32>;             // (1, D)
@group(0) @binding(6) var<storage, read> gains: array<f32>;         // (D), of the norm
@group(0) @binding(8) var<storage, read_write> normed: array<f32>;  // (1, norm.stride)
@group(0) @binding(9) var<storage, read_write> sum: array<f32>;     // (1, D), x + y
@group(0) @binding(10) var<storage, read_write> logits: array<f32>; // (1, parts, E)

override N_EXPERTS: u32;    // E
override PANEL_WORDS: u32;  // from one panel of weights to the next
override PART: u32;         // columns of a part
override COLUMNS: u32;      // D
override HAS_ADDEND: u32;

const THREADS: u32 = 256u;
const ROWS: u32 = 16u;    // of a panel
const LANES: u32 = 16u;   // threads of a row
const QUADS: u32 = 64u;   // of the columns that a workgroup writes
const NOWHERE: u32 = 0xffff0000u;

var<workgroup> partial: array<vec2<f32>, THREADS>;
var<workgroup> squares: array<f32, ROWS>;

fn sum_with_y(column: u32) -> f32 {
    if HAS_ADDEND == 0u {
        return x[column];
    }
    return x[column] + y[column];
}

@compute @workgroup_size(256)
fn row_router(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) n_groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = thread % ROWS;
    var square = 0.0;
    for (var i = 0u; i < (COLUMNS + THREADS - 1u) / THREADS; i++) {
        let column = i * THREADS + thread;
        if COLUMNS % THREADS == 0u || column < COLUMNS {
            let value = sum_with_y(column);
            square += value * value;
        }
    }
    let panel = group.x * PANEL_WORDS;
    var product = 0.0;
    for (var i = 0u; i < (PART + LANES - 1u) / LANES; i++) {
        let in_part = i * LANES + thread / ROWS;
        let column = group.z * PART + in_part;
        if (PART % LANES == 0u || in_part < PART) && (COLUMNS % PART == 0u || column < COLUMNS) {
            product += weight(panel, column * ROWS + row) * (gains[column] * sum_with_y(column));
        }
    }
    partial[thread] = vec2<f32>(square, product);
    workgroupBarrier();
    var both = vec2<f32>();
    for (var lane = 0u; lane < LANES; lane++) {
        both += partial[lane * ROWS + row];
    }
    if thread < ROWS {
        squares[thread] = both.x;
    }
    workgroupBarrier();
    square = 0.0;
    for (var i = 0u; i < ROWS; i++) {
        square += squares[i];
    }
    let scale = 1.0 / sqrt(square / f32(COLUMNS) + norm.eps);
    let expert = ROWS * group.x + thread;
    if thread < ROWS && expert < N_EXPERTS {
        logits[group.z * N_EXPERTS + expert] = scale * both.y;
    }

    let number = group.z * n_groups.x + group.x;
    for (var first = 256u * number; first < COLUMNS; first += 256u * n_groups.x * n_groups.z) {
        let column = first + 4u * thread;
        var values = vec4<u32>();
        for (var i = 0u; i < 4u; i++) {
            if thread < QUADS && column + i < COLUMNS {
                let value = sum_with_y(column + i);
                let bits = bitcast<u32>(gains[column + i] * (value * scale));
                // Tiny values are 0, as wherever a matrix of floats reads them.
                values[i] = select(bits, 0u, (bits & 0x7fffffffu) < TINY);
                normed[column + i] = bitcast<f32>(values[i]);
                if HAS_ADDEND == 1u {
                    sum[column + i] = value;
                }
            }
        }
        if norm.is_rounded == 1u {
            round_columns(0u, COLUMNS, select(NOWHERE, column, thread < QUADS), thread, values);
        }
    }
}
