// The K best logits of each row whose logits are wanted, the largest first, of equals the lower token. A workgroup takes a part of a
// row; another dispatch takes the best of what the parts gave. What is not a number above minus infinity is never among them.
#import step

@group(0) @binding(3) var<storage, read> x: array<f32>;                   // (W, COLUMNS)
@group(0) @binding(4) var<storage, read_write> result: array<vec2<u32>>;  // (W, parts, MOST): tokens, and the logits' bits
@group(0) @binding(5) var<storage, read> y: array<vec2<u32>>;             // such results of parts, where those are joined

override COLUMNS: u32;    // V; 0: parts are joined
override PART: u32;       // logits of a part
override N_PARTS: u32;    // that are joined
override MOST: u32;       // room for K

const THREADS: u32 = 256u;
const TEAM: u32 = 16u;
const NOTHING: vec2<u32> = vec2<u32>(0xffffffffu, 0u);

var<workgroup> best_of: array<vec2<u32>, THREADS>;  // of a thread: a token, and a number that orders its logit
var<workgroup> best_of_team: array<vec2<u32>, TEAM>;

// Larger for larger logits; 0 for what is not a number above minus infinity.
fn order_of(bits: u32) -> u32 {
    if (bits & 0x7fffffffu) > 0x7f800000u || bits == 0xff800000u {
        return 0u;
    }
    return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

fn bits_of(order: u32) -> u32 {
    if order == 0u {
        return 0xff800000u;
    }
    return select(~order, order & 0x7fffffffu, (order & 0x80000000u) != 0u);
}

fn is_before(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y > b.y || (a.y == b.y && a.x < b.x);
}

@compute @workgroup_size(256)
fn best_logits(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) n_groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let k = step[STEP_BEST];
    let row = group.y;
    var start = group.x * PART;
    var end = min(start + PART, COLUMNS);
    if COLUMNS == 0u {
        start = 0u;
        end = N_PARTS * k;
    }
    var last = vec2<u32>(0u, 0xffffffffu);
    for (var i = 0u; i < k; i++) {
        var best = NOTHING;
        for (var item = start + thread; item < end; item += THREADS) {
            var it = vec2<u32>();
            if COLUMNS == 0u {
                let theirs = y[(row * N_PARTS + item / k) * MOST + item % k];
                it = vec2<u32>(theirs.x, order_of(theirs.y));
            } else {
                it = vec2<u32>(item, order_of(bitcast<u32>(x[row * COLUMNS + item])));
            }
            if is_before(last, it) && is_before(it, best) {
                best = it;
            }
        }
        best_of[thread] = best;
        workgroupBarrier();
        if thread < TEAM {
            for (var other = 1u; other < THREADS / TEAM; other++) {
                let theirs = best_of[other * TEAM + thread];
                if is_before(theirs, best) {
                    best = theirs;
                }
            }
            best_of_team[thread] = best;
        }
        workgroupBarrier();
        best = best_of_team[0];
        for (var other = 1u; other < TEAM; other++) {
            let theirs = best_of_team[other];
            if is_before(theirs, best) {
                best = theirs;
            }
        }
        last = best;
        if thread == 0u {
            result[(row * n_groups.x + group.x) * MOST + i] = vec2<u32>(best.x, bits_of(best.y));
        }
    }
}
