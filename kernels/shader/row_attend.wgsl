// Attention of one query head of a step's one row to a range of its sequence's pages. A workgroup norms and rotates its query, and
// the row's own key, which it attends to without reading it from the cache; one of each key and value head writes both there.
// What the ranges of the row give, attend_rows.wgsl joins.
#import heads
#import attention

@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read> q: array<f32>;                   // (1, H, C)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;        // (1, H, splits, C + 2), as attend.wgsl's
@group(0) @binding(5) var<storage, read> k: array<f32>;                   // (1, G, C)
@group(0) @binding(6) var<storage, read> v: array<f32>;                   // (1, G, C)
@group(0) @binding(8) var<storage, read_write> pages: array<vec4<u32>>;
@group(0) @binding(9) var<uniform> attention: Attend;

var<workgroup> values: array<f32, 512>;       // the query, the key
var<workgroup> squares: array<f32, THREADS>;
var<workgroup> own: array<vec4<u32>, 64>;     // the row's key, from the middle on its value, in f16

// Two columns of the own key or value, in f16.
fn two_of(a: f32, b: f32) -> u32 {
    return half_bits(a) | (half_bits(b) << 16u);
}

@compute @workgroup_size(128)
fn row_attend(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let head = group.x;
    let columns = attention.columns;
    let eighths = columns / 8u;
    let n_of_group = attention.n_heads / attention.n_kv_heads;
    let kv_head = head / n_of_group;
    let is_query = thread < TEAM;
    let start = select(MOST_COLUMNS, 0u, is_query);
    for (var i = thread % TEAM; i < columns; i += TEAM) {
        if is_query {
            values[i] = q[head * columns + i];
        } else {
            values[MOST_COLUMNS + i] = k[heads.k_start + kv_head * columns + i];
        }
    }
    norm_head(start, is_query, false, thread);
    for (var i = thread; i < columns; i += THREADS) {
        query[i / 4u][i % 4u] = rotated(0u, 0u, i) * attention.scale;
    }
    for (var word = thread; word < columns / 2u; word += THREADS) {
        let i = 2u * word;
        own[word / 4u][word % 4u] = two_of(rotated(0u, MOST_COLUMNS, i), rotated(0u, MOST_COLUMNS, i + 1u));
        let at = heads.v_start + kv_head * columns + i;
        own[32u + word / 4u][word % 4u] = two_of(v[at], v[at + 1u]);
    }
    workgroupBarrier();
    if thread < eighths {
        let key = eight_of(own[thread]);
        largest_of[thread] = dot(key.a, query[2u * thread]) + dot(key.b, query[2u * thread + 1u]);
    }
    workgroupBarrier();

    let position = step_position(0u);
    let span = step[STEP_SPAN];
    let first = PAGE * group.z * span;
    let end = PAGE * (group.z + 1u) * span;
    var attended = Attended(LOWEST, 0.0, Eight());
    if position < end {
        var score = 0.0;
        for (var i = 0u; i < eighths; i++) {
            score += largest_of[i];
        }
        attended.largest = score;
        // The first slice has the own value.
        if thread < eighths {
            attended.weight = 1.0;
            attended.sum = eight_of(own[32u + thread]);
        }
    }
    workgroupBarrier();
    attended = attend_to(0u, kv_head, first, min(end, position), attended, thread);
    write_range((head * step[STEP_SPLITS] + group.z) * (columns + 2u), attended, thread);

    if position < end && head % n_of_group == 0u && thread < 2u * eighths {
        let half = thread / eighths;
        let page = 2u * step_page(0u, position / PAGE) + half;
        let at = ((page * attention.n_kv_heads + kv_head) * PAGE + position % PAGE) * eighths;
        pages[at + thread % eighths] = own[32u * half + thread % eighths];
    }
}
