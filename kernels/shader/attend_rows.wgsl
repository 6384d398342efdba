// Joins what kernels of attention computed for the ranges of a row, and rounds it for the output projection. A workgroup takes 256
// columns of a row: a thread has four of them in every fourth range, four ranges at a time.
#import run
#import step
#import exact
#import round

struct Joined {
    columns: u32,        // H C
    head_columns: u32,   // C
    result_stride: u32,  // from one row of result to the next, in words
}

@group(0) @binding(3) var<storage, read> x: array<f32>;             // (T, H, splits, C + 2)
@group(0) @binding(4) var<storage, read_write> result: array<u32>;  // (T, result_stride)
@group(0) @binding(7) var<uniform> joined: Joined;

const THREADS: u32 = 256u;
const QUADS: u32 = 64u;  // of columns
const SLICES: u32 = THREADS / QUADS;
const AT_ONCE: u32 = 4u;
const LOWEST: f32 = -3.4028235e38;
const NOWHERE: u32 = 0xffff0000u;

var<workgroup> weights_of: array<vec2<f32>, THREADS>;  // the largest score of a slice, and its weight
var<workgroup> values_of: array<vec4<f32>, THREADS>;

@compute @workgroup_size(256)
fn attend_rows(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.y;
    let quad = thread % QUADS;
    let slice = thread / QUADS;
    let column = 256u * group.x + 4u * quad;
    let is_there = column < joined.columns;
    var values = vec4<f32>();
    var largest = LOWEST;
    var weight = 0.0;
    if is_there {
        let head = row * (joined.columns / joined.head_columns) + column / joined.head_columns;
        let in_head = column % joined.head_columns;
        let n_splits = step[STEP_SPLITS];
        let stride = joined.head_columns + 2u;
        let first = head * n_splits * stride;
        for (var i = slice; i < n_splits; i += AT_ONCE * SLICES) {
            for (var k = 0u; k < AT_ONCE; k++) {
                // Beyond the last one: the last, as if it had no position.
                let range = i + k * SLICES;
                let at = first + min(range, n_splits - 1u) * stride;
                let place = at + in_head;
                let of_range = vec4<f32>(x[place], x[place + 1u], x[place + 2u], x[place + 3u]);
                let score = select(LOWEST, x[at + joined.head_columns], range < n_splits);
                let now = max(largest, score);
                let kept = exp(largest - now);
                let scale = select(0.0, exp(score - now), range < n_splits);
                largest = now;
                weight = weight * kept + scale * x[at + joined.head_columns + 1u];
                values = values * kept + scale * of_range;
            }
        }
    }
    weights_of[thread] = vec2<f32>(largest, weight);
    values_of[thread] = values;
    workgroupBarrier();
    var bits = vec4<u32>();
    if slice == 0u && is_there {
        for (var i = 1u; i < SLICES; i++) {
            largest = max(largest, weights_of[thread + i * QUADS].x);
        }
        var all = 0.0;
        var total = vec4<f32>();
        for (var i = 0u; i < SLICES; i++) {
            let of_slice = weights_of[thread + i * QUADS];
            let scale = exp(of_slice.x - largest);
            all += scale * of_slice.y;
            total += scale * values_of[thread + i * QUADS];
        }
        bits = bitcast<vec4<u32>>(total / all);
    }
    // The first slice rounds.
    let to = select(NOWHERE, column, slice == 0u);
    round_columns(row * joined.result_stride, joined.columns, to, thread, bits);
}
