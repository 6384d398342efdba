// What the tokens of each part of a row weigh together, for draw.wgsl; a workgroup takes a part of a row.
#import step
#import weight

@group(0) @binding(3) var<storage, read> x: array<f32>;                   // (W, COLUMNS)
@group(0) @binding(4) var<storage, read_write> result: array<vec2<u32>>;  // (W, parts): numbers
@group(0) @binding(5) var<storage, read> y: array<vec2<u32>>;             // (W, MOST + 1): the best logits

override COLUMNS: u32;    // V
override PART: u32;       // logits of a part
override MOST: u32;

const THREADS: u32 = 64u;

var<workgroup> sums: array<vec2<u32>, THREADS>;

@compute @workgroup_size(64)
fn weigh_parts(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) n_groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.y;
    let scale = step_scale(row);
    if scale == 0.0 {
        return;
    }
    let largest = finite(y[row * (MOST + 1u)].y);
    let end = min((group.x + 1u) * PART, COLUMNS);
    var sum = vec2<u32>();
    for (var token = group.x * PART + thread; token < end; token += THREADS) {
        sum = carried(sum + weight_of(x[row * COLUMNS + token], largest, scale));
    }
    sums[thread] = sum;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread < half {
            sums[thread] = carried(sums[thread] + sums[thread + half]);
        }
    }
    if thread == 0u {
        result[row * n_groups.x + group.x] = sums[0];
    }
}
