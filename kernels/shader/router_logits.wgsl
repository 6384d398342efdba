// A router's logits: a matrix of floats, in panels of sixteen experts, times rows of f32. A workgroup takes a panel, a row, and one
// of equal parts of the columns; route.wgsl adds what the parts give.
// CPU twin: src/quant/dot.rs; sums run in another order than its.
#import tile

@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<f32>;             // (T, shape.x_stride)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;  // (T, parts, E)

override FLOATS: u32;  // 16, 32, or 17 for bf16

const THREADS: u32 = 256u;
const ROWS: u32 = 16u;  // of a panel

var<workgroup> sums: array<f32, THREADS>;

// Weight `i` of a panel that starts at `panel`, in words.
fn weight(panel: u32, i: u32) -> f32 {
    if FLOATS == 32u {
        return bitcast<f32>(weights[panel + i]);
    }
    let two = weights[panel + i / 2u];
    if FLOATS == 16u {
        return unpack2x16float(two)[i % 2u];
    }
    return bitcast<f32>((two >> (16u * (i % 2u))) << 16u);
}

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
