// Joins what attend.wgsl computed for the ranges of a row, and rounds it for the output projection. A workgroup takes 256
// columns of a row.
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

const THREADS: u32 = 64u;

@compute @workgroup_size(64)
fn attend_rows(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.y;
    let column = 256u * group.x + 4u * thread;
    var values = vec4<f32>();
    if column < joined.columns {
        let head = row * (joined.columns / joined.head_columns) + column / joined.head_columns;
        let in_head = column % joined.head_columns;
        let n_splits = step[STEP_SPLITS];
        let stride = joined.head_columns + 2u;
        let first = head * n_splits * stride;
        var largest = x[first + joined.head_columns];
        for (var i = 1u; i < n_splits; i++) {
            largest = max(largest, x[first + i * stride + joined.head_columns]);
        }
        var weight = 0.0;
        for (var i = 0u; i < n_splits; i++) {
            let at = first + i * stride;
            let scale = exp(x[at + joined.head_columns] - largest);
            weight += scale * x[at + joined.head_columns + 1u];
            let place = at + in_head;
            values += scale * vec4<f32>(x[place], x[place + 1u], x[place + 2u], x[place + 3u]);
        }
        values /= weight;
    }
    let bits = bitcast<vec4<u32>>(values);
    round_columns(row * joined.result_stride, joined.columns, column, thread, bits);
}
