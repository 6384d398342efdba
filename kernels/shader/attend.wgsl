// Attention of one query head of a row to a range of its sequence's pages. What the ranges of a row give, attend_rows.wgsl joins.
#import attention

@group(0) @binding(3) var<storage, read> q: array<vec4<f32>>;       // (T, H, C)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;  // (T, H, splits, C + 2): sums, the largest score, their weight
@group(0) @binding(7) var<uniform> attention: Attend;
@group(0) @binding(8) var<storage, read> pages: array<vec4<u32>>;

@compute @workgroup_size(128)
fn attend(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let head = group.x;
    let row = group.y;
    let columns = attention.columns;
    let n_heads = attention.n_heads;
    let kv_head = head / (n_heads / attention.n_kv_heads);
    for (var i = thread; i < columns / 4u; i += THREADS) {
        query[i] = q[(row * n_heads + head) * (columns / 4u) + i] * attention.scale;
    }
    let span = step[STEP_SPAN];
    let end = min(PAGE * (group.z + 1u) * span, step_position(row) + 1u);
    let attended = attend_to(row, kv_head, PAGE * group.z * span, end, Attended(LOWEST, 0.0, Eight()), thread);
    write_range(((row * n_heads + head) * step[STEP_SPLITS] + group.z) * (columns + 2u), attended, thread);
}
