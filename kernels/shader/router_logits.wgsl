// A router's logits: a matrix of floats, in panels of sixteen experts, times rows of f32. A workgroup takes a panel, a row, and one
// of equal parts of the columns; shared/choose.wgsl adds what the parts give.
// CPU twin: src/quant/dot.rs; sums run in another order than its.
#import tile
#import floats

@group(0) @binding(3) var<storage, read> x: array<f32>;             // (T, shape.x_stride)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;  // (T, parts, E)

const THREADS: u32 = 256u;
const ROWS: u32 = 16u;  // of a panel

var<workgroup> sums: array<f32, THREADS>;

@compute @workgroup_size(256)
fn router_logits(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) n_groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let panel = group.x * shape.weight_stride;
    var sum = 0.0;
    let n = (shape.items + n_groups.z - 1u) / n_groups.z;
    let end = min((group.z + 1u) * n, shape.items);
    for (var column = group.z * n + thread / ROWS; column < end; column += THREADS / ROWS) {
        sum += weight(panel, column * ROWS + thread % ROWS) * x[group.y * shape.x_stride + column];
    }
    sums[thread] = sum;
    workgroupBarrier();
    for (var half = THREADS / 2u; half >= ROWS; half /= 2u) {
        if thread < half {
            sums[thread] += sums[thread + half];
        }
        workgroupBarrier();
    }
    let expert = ROWS * group.x + thread;
    if thread < ROWS && expert < shape.out {
        result[(group.y * n_groups.z + group.z) * shape.out + expert] = sums[thread];
    }
}
