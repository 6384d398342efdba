// The K experts with the largest logits of each row, and their gates: a softmax. A workgroup takes a row. A step of one row has
// its tiles at once. CPU twin: src/cpu/router.rs, route.
#import chosen

@group(0) @binding(3) var<storage, read> x: array<f32>;  // parts of logits (T, parts, E)

const THREADS: u32 = 256u;
override N_PARTS: u32;  // of each logit, which are added: known, so that all are under way at once

var<workgroup> logits: array<f32, MOST_EXPERTS>;
var<workgroup> experts: array<u32, 64>;
var<workgroup> weights: array<f32, 64>;
var<workgroup> parts: array<f32, THREADS>;

@compute @workgroup_size(256)
fn route(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x;
    let n = router.n_experts;
    for (var e = thread; e < n; e += THREADS) {
        var sum = 0.0;
        for (var part = 0u; part < N_PARTS; part++) {
            sum += x[(row * N_PARTS + part) * n + e];
        }
        logits[e] = sum;
    }
    // Where logits are not numbers, ranks are missing.
    if thread < 64u {
        experts[thread] = 0u;
    }
    workgroupBarrier();
    for (var e = thread; e < n; e += THREADS) {
        var rank = 0u;
        for (var other = 0u; other < n; other++) {
            let is_before = logits[other] > logits[e] || (logits[other] == logits[e] && other < e);
            rank += select(0u, 1u, is_before);
        }
        if rank < router.n_chosen {
            experts[rank] = e;
        }
    }
    workgroupBarrier();
    let largest = logits[experts[0]];
    var part = 0.0;
    for (var e = thread; e < n; e += THREADS) {
        part += exp(logits[e] - largest);
    }
    parts[thread] = part;
    if thread < router.n_chosen {
        weights[thread] = exp(logits[experts[thread]] - largest);
    }
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if thread < half {
            parts[thread] += parts[thread + half];
        }
        workgroupBarrier();
    }
    if thread >= router.n_chosen {
        return;
    }
    var sum = parts[0];
    if router.renormalise == 1u {
        sum = 0.0;
        for (var i = 0u; i < router.n_chosen; i++) {
            sum += weights[i];
        }
    }
    let expert = experts[thread];
    let gate = weights[thread] / sum;
    let at = routing_at(row);
    routing[at + thread] = expert;
    routing[at + router.n_chosen + thread] = bitcast<u32>(gate);
    let n_rows = step[select(STEP_ROWS, STEP_WANTED, router.of_wanted == 1u)];
    if n_rows == 1u {
        var pair = 0u;
        for (var i = 0u; i < router.n_chosen; i++) {
            pair += select(0u, 1u, experts[i] < expert);
        }
        places[pair] = pair;
        result[pair] = Tile(expert * router.block, 1u, pair, 0u, vec4<u32>(), vec4<f32>(gate, 0.0, 0.0, 0.0));
    }
}
