// Copies the rows whose logits are wanted. A workgroup copies 256 columns of one. CPU twin: KeepWanted in src/graph/run.rs.
#import step

struct Width {
    columns: u32,
}

@group(0) @binding(3) var<storage, read> x: array<u32>;             // (T, D)
@group(0) @binding(4) var<storage, read_write> result: array<u32>;  // (W, D)
@group(0) @binding(7) var<uniform> width: Width;

@compute @workgroup_size(256)
fn keep_rows(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let column = 256u * group.x + thread;
    if column < width.columns {
        result[group.y * width.columns + column] = x[step_wanted(group.y) * width.columns + column];
    }
}
