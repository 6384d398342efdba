// The tiles of a step of several rows: pairs of the same expert together, experts ascending. Steps of many rows have wide tiles,
// and a list of pairs. One workgroup does all. CPU twin: Layout::tables in src/engine/gpu/layout.rs.
#import chosen

@group(0) @binding(3) var<storage, read_write> pairs: array<vec2<u32>>;  // (P): where each one's row of x starts, and its gate

const THREADS: u32 = 256u;
override FEW_ROWS: u32;   // of a step that has tiles of four
override WIDE_TILE: u32;  // pairs of a wide tile

var<workgroup> n_pairs: array<atomic<u32>, MOST_EXPERTS>;  // then: how many are placed
var<workgroup> first_pair: array<u32, MOST_EXPERTS>;
var<workgroup> sums: array<vec2<u32>, THREADS>;  // pairs and tiles of each thread's experts, and of those before them

@compute @workgroup_size(256)
fn group_pairs(@builtin(local_invocation_index) thread: u32) {
    let k = router.n_chosen;
    let n_rows = step[select(STEP_ROWS, STEP_WANTED, router.of_wanted == 1u)];
    let is_wide = n_rows > FEW_ROWS;
    let size = select(4u, WIDE_TILE, is_wide);
    for (var e = thread; e < router.n_experts; e += THREADS) {
        atomicStore(&n_pairs[e], 0u);
    }
    workgroupBarrier();
    for (var i = thread; i < n_rows * k; i += THREADS) {
        atomicAdd(&n_pairs[routing[routing_at(i / k) + i % k]], 1u);
    }
    workgroupBarrier();

    // Each thread's experts are neighbours.
    let n_each = (router.n_experts + THREADS - 1u) / THREADS;
    let first = min(thread * n_each, router.n_experts);
    let end = min(first + n_each, router.n_experts);
    var sum = vec2<u32>();
    for (var e = first; e < end; e++) {
        let n = atomicLoad(&n_pairs[e]);
        sum += vec2<u32>(n, (n + size - 1u) / size);
    }
    sums[thread] = sum;
    workgroupBarrier();
    for (var back = 1u; back < THREADS; back *= 2u) {
        var before = vec2<u32>();
        if thread >= back {
            before = sums[thread - back];
        }
        workgroupBarrier();
        sums[thread] += before;
        workgroupBarrier();
    }
    var next = sums[thread] - sum;
    for (var e = first; e < end; e++) {
        let n = atomicLoad(&n_pairs[e]);
        first_pair[e] = next.x;
        for (var i = 0u; i < n; i += size) {
            let tile = next.y + i / size;
            result[tile].block = e * router.block;
            result[tile].n_pairs = min(size, n - i);
            result[tile].first_pair = next.x + i;
        }
        next += vec2<u32>(n, (n + size - 1u) / size);
        atomicStore(&n_pairs[e], 0u);
    }
    // Workgroups beyond these find no pairs.
    for (var tile = sums[THREADS - 1u].y + thread; tile < router.max_tiles; tile += THREADS) {
        result[tile].n_pairs = 0u;
    }
    workgroupBarrier();

    for (var i = thread; i < n_rows * k; i += THREADS) {
        let row = i / k;
        let at = routing_at(row);
        let e = routing[at + i % k];
        let gate = routing[at + k + i % k];
        // Whichever order pairs of an expert have, their results are the same.
        let of_expert = atomicAdd(&n_pairs[e], 1u);
        let pair = first_pair[e] + of_expert;
        pairs[pair] = vec2<u32>(row * router.x_stride, gate);
        var place = 0u;
        for (var j = 0u; j < k; j++) {
            place += select(0u, 1u, routing[at + j] < e);
        }
        places[row * k + place] = pair;
    }
    if is_wide {
        return;
    }
    storageBarrier();
    workgroupBarrier();
    // A tile's rows are written by one thread: stores to parts of a vector may be stores of all of it.
    for (var tile = thread; tile < sums[THREADS - 1u].y; tile += THREADS) {
        let of_tile = result[tile].first_pair;
        var rows = vec4<u32>();
        var gates = vec4<f32>();
        for (var i = 0u; i < result[tile].n_pairs; i++) {
            rows[i] = pairs[of_tile + i].x;
            gates[i] = bitcast<f32>(pairs[of_tile + i].y);
        }
        result[tile].rows = rows;
        result[tile].gates = gates;
    }
}
