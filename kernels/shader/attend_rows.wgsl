// Joins what attend.wgsl and row_attend.wgsl give of a row's ranges, one after another, and rounds it for the output projection. A
// workgroup takes 256 columns of a row.
#import run
#import attend
#import exact
#import round

struct Joined {
    columns: u32,        // H C
    result_stride: u32,  // from one row of result to the next, in words
}

@group(0) @binding(3) var<storage, read> x: array<f32>;             // (T, H, slots, C + 2)
@group(0) @binding(4) var<storage, read_write> result: array<u32>;  // (T, result_stride)
@group(0) @binding(7) var<uniform> joined: Joined;

const THREADS: u32 = 256u;
const QUADS: u32 = 64u;      // of a workgroup's columns
const AT_ONCE: u32 = 16u;    // ranges whose loads are under way together
const NOWHERE: u32 = 0xffff0000u;
override HEAD_COLUMNS: u32;  // C
override N_HEADS: u32;       // that a workgroup has columns of
override N_RANGES: u32;      // of these heads, at most

var<workgroup> of_ranges: array<Weighed, N_RANGES>;
var<workgroup> shares: array<Shares, N_RANGES>;  // of the ranges before each, and of it
var<workgroup> values: array<f32, THREADS>;

@compute @workgroup_size(256)
fn attend_rows(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let n_slots = step[STEP_SLOTS];
    let n_heads = joined.columns / HEAD_COLUMNS;
    let first_head = THREADS * group.x / HEAD_COLUMNS;
    let stride = HEAD_COLUMNS + 2u;
    // Where the first head's ranges start.
    let start = (group.y * n_heads + first_head) * n_slots * stride;
    let column = min(THREADS * group.x + thread, joined.columns - 1u);
    let head = column / HEAD_COLUMNS - first_head;
    let place = start + head * n_slots * stride + column % HEAD_COLUMNS;
    // On their way while shares are found.
    var of_column: array<f32, AT_ONCE>;
    for (var i = 0u; i < AT_ONCE; i++) {
        of_column[i] = x[place + min(i, n_slots - 1u) * stride];
    }
    let n = min(N_HEADS, n_heads - first_head) * n_slots;
    for (var i = thread; i < n; i += THREADS) {
        let at = start + i * stride + HEAD_COLUMNS;
        of_ranges[i] = Weighed(x[at], x[at + 1u]);
    }
    workgroupBarrier();
    for (var i = thread; i < n; i += THREADS) {
        var largest = LOWEST;
        for (var before = i / n_slots * n_slots; before < i; before++) {
            largest = max(largest, of_ranges[before].largest);
        }
        shares[i] = shares_of(largest, of_ranges[i].largest);
    }
    workgroupBarrier();
    var of_row = Weighed(LOWEST, 0.0);
    var sum = 0.0;
    for (var first = 0u; first < n_slots; first += AT_ONCE) {
        for (var i = 0u; i < AT_ONCE; i++) {
            if first + i < n_slots {
                let range = head * n_slots + first + i;
                of_row = joined_weights(of_row, of_ranges[range], shares[range]);
                sum = joined_sum(sum, of_column[i], shares[range]);
            }
        }
        if first + AT_ONCE < n_slots {
            for (var i = 0u; i < AT_ONCE; i++) {
                of_column[i] = x[place + min(first + AT_ONCE + i, n_slots - 1u) * stride];
            }
        }
    }
    values[thread] = sum / of_row.weight;
    workgroupBarrier();
    // A quarter of the threads round.
    let of_quad = THREADS * group.x + 4u * thread;
    var bits = vec4<u32>();
    for (var i = 0u; i < 4u && thread < QUADS; i++) {
        bits[i] = select(0u, bitcast<u32>(values[4u * thread + i]), of_quad + i < joined.columns);
    }
    let to = select(NOWHERE, of_quad, thread < QUADS);
    round_columns(group.y * joined.result_stride, joined.columns, to, thread, bits);
}
