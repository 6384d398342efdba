// The K best logits of each row whose logits are wanted, the largest first, of equals the lower token; a workgroup takes a row.
// What is not a number above minus infinity is never among them.
//
// They lie in the K parts whose best logits are best. None of them comes after the K-th of these parts' bests, nor after the K-th of
// the bests that the threads find in these parts: what comes after neither is ranked by counting. Where that is more than there is
// room for, the K are found one after another.
#import step
#import best

@group(0) @binding(3) var<storage, read> x: array<f32>;                   // (W, COLUMNS)
@group(0) @binding(4) var<storage, read_write> result: array<vec2<u32>>;  // (W, MOST + 1): tokens, and the logits' bits
@group(0) @binding(5) var<storage, read> y: array<vec2<u32>>;             // (W, N_PARTS): of best_of_parts.wgsl, no two alike

override COLUMNS: u32;    // V
override PART: u32;       // logits of a part
override N_PARTS: u32;    // up to THREADS
override MOST: u32;       // room for K, up to MOST_CHOSEN

const THREADS: u32 = 256u;
const MOST_CHOSEN: u32 = 64u;
const ROOM: u32 = 512u;

var<workgroup> bests: array<vec2<u32>, THREADS>;      // of the parts, then of the threads
var<workgroup> chosen: array<u32, MOST_CHOSEN>;       // parts
var<workgroup> bounds: array<vec2<u32>, 2>;
var<workgroup> found: array<vec2<u32>, ROOM>;
var<workgroup> n_found: atomic<u32>;

// Which place the `index`th of all bests takes in their order. Several at a time, since each waits for memory.
fn rank_of(index: u32) -> u32 {
    let it = bests[index];
    var ranks = vec4<u32>();
    for (var other = 0u; other < THREADS; other += 4u) {
        ranks += vec4<u32>(
            u32(is_before(bests[other], it)),
            u32(is_before(bests[other + 1u], it)),
            u32(is_before(bests[other + 2u], it)),
            u32(is_before(bests[other + 3u], it)),
        );
    }
    return ranks.x + ranks.y + ranks.z + ranks.w;
}

// Nothing, as no other thread has it, so that all bests have an order.
fn own_nothing(thread: u32) -> vec2<u32> {
    return vec2<u32>(NOTHING.x - thread, 0u);
}

// The `item`th logit of the chosen parts.
fn item_of(row: u32, item: u32) -> vec2<u32> {
    let token = chosen[item / PART] * PART + item % PART;
    if token >= COLUMNS {
        return NOTHING;
    }
    return vec2<u32>(token, order_of(x[row * COLUMNS + token]));
}

fn give(row: u32, rank: u32, it: vec2<u32>) {
    result[row * (MOST + 1u) + rank] = vec2<u32>(it.x, logit_of(it.y));
}

@compute @workgroup_size(256)
fn best_logits(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let k = step[STEP_BEST];
    if thread < 2u {
        bounds[thread] = NOTHING;
        atomicStore(&n_found, 0u);
    }
    var best = own_nothing(thread);
    if thread < N_PARTS {
        best = y[row * N_PARTS + thread];
    }
    bests[thread] = best;
    workgroupBarrier();
    var rank = rank_of(thread);
    if rank < min(k, N_PARTS) {
        chosen[rank] = thread;
    }
    if rank == k - 1u {
        bounds[0] = best;
    }
    workgroupBarrier();

    let n_items = min(k, N_PARTS) * PART;
    best = own_nothing(thread);
    for (var item = thread; item < n_items; item += THREADS) {
        let it = item_of(row, item);
        if is_before(it, best) {
            best = it;
        }
    }
    bests[thread] = best;
    workgroupBarrier();
    if rank_of(thread) == k - 1u {
        bounds[1] = best;
    }
    workgroupBarrier();

    var bound = bounds[0];
    if is_before(bounds[1], bound) {
        bound = bounds[1];
    }
    for (var item = thread; item < n_items; item += THREADS) {
        let it = item_of(row, item);
        if it.y > 0u && !is_before(bound, it) {
            let place = atomicAdd(&n_found, 1u);
            if place < ROOM {
                found[place] = it;
            }
        }
    }
    workgroupBarrier();

    let n = atomicLoad(&n_found);
    if n <= ROOM {
        for (var i = thread; i < n; i += THREADS) {
            rank = 0u;
            for (var other = 0u; other < n; other++) {
                rank += u32(is_before(found[other], found[i]));
            }
            if rank < k {
                give(row, rank, found[i]);
            }
        }
        if thread >= n && thread < k {
            give(row, thread, NOTHING);
        }
        return;
    }
    var last = vec2<u32>(0u, 0xffffffffu);
    for (var i = 0u; i < k; i++) {
        best = NOTHING;
        for (var item = thread; item < n_items; item += THREADS) {
            let it = item_of(row, item);
            if is_before(last, it) && is_before(it, best) {
                best = it;
            }
        }
        workgroupBarrier();
        bests[thread] = best;
        for (var half = THREADS / 2u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if thread < half && is_before(bests[thread + half], bests[thread]) {
                bests[thread] = bests[thread + half];
            }
        }
        workgroupBarrier();
        last = bests[0];
        if thread == 0u {
            give(row, i, last);
        }
    }
}
