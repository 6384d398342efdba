// The best logit of each part of each row whose logits are wanted, for best_logits.wgsl; a workgroup takes a part of a row.
#import best

@group(0) @binding(3) var<storage, read> x: array<f32>;                   // (W, COLUMNS)
@group(0) @binding(4) var<storage, read_write> result: array<vec2<u32>>;  // (W, parts): tokens and orders

override COLUMNS: u32;    // V
override PART: u32;       // logits of a part

const THREADS: u32 = 64u;

var<workgroup> bests: array<vec2<u32>, THREADS>;

@compute @workgroup_size(64)
fn best_of_parts(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) n_groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let end = min((group.x + 1u) * PART, COLUMNS);
    // Nothing, as no other part has it, so that the bests of all parts have an order.
    var best = vec2<u32>(NOTHING.x - group.x, 0u);
    for (var token = group.x * PART + thread; token < end; token += THREADS) {
        let it = vec2<u32>(token, order_of(x[group.y * COLUMNS + token]));
        if is_before(it, best) {
            best = it;
        }
    }
    bests[thread] = best;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread < half && is_before(bests[thread + half], bests[thread]) {
            bests[thread] = bests[thread + half];
        }
    }
    if thread == 0u {
        result[group.y * n_groups.x + group.x] = bests[0];
    }
}
