// Attention of one query head of a step's one row to a range of its sequence's pages. A workgroup norms and rotates its query, and
// the row's own key, which it attends to without reading it from the cache; one of each key and value head writes both there.
// What the ranges of the row give, attend_rows.wgsl joins.
#import run
#import heads
#import attention
#import kv_codes

@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read> q: array<f32>;                   // (1, H, C)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;        // (1, H, splits, C + 2), as attend.wgsl's
@group(0) @binding(5) var<storage, read> k: array<f32>;                   // (1, G, C)
@group(0) @binding(6) var<storage, read> v: array<f32>;                   // (1, G, C)
@group(0) @binding(8) var<storage, read_write> pages: array<vec4<u32>>;
@group(0) @binding(9) var<uniform> attention: Attend;

var<workgroup> values: array<f32, 512>;       // the query, the key
var<workgroup> squares: array<f32, THREADS>;
var<workgroup> own: array<vec2<u32>, THREADS>;  // the row's key, from the middle on its value, in f16, before their scales
var<workgroup> own_scales: array<f32, 16>;    // of each unit
var<workgroup> codes: array<u32, THREADS>;    // in q8_0, of the key, from the middle on of the value
var<workgroup> scales: array<u32, 8>;         // of the codes

fn own_eighth(i: u32) -> vec4<u32> {
    return vec4<u32>(own[2u * i], own[2u * i + 1u]);
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
    let half = thread / TEAM;
    let quad = thread % TEAM;
    var four = vec4<f32>();
    var of_query = vec4<f32>();
    for (var i = 4u * quad; i < min(columns, 4u * quad + 4u); i++) {
        if half == 0u {
            four[i % 4u] = rotated(0u, MOST_COLUMNS, i);
        } else {
            four[i % 4u] = v[heads.v_start + kv_head * columns + i];
            of_query[i % 4u] = rotated(0u, 0u, i) * attention.scale;
        }
    }
    if half == 1u {
        query[quad] = of_query;
    }
    var two = vec2<u32>();
    if IS_Q8_0 {
        let rounded = codes_of(four, thread);
        two = halves_of(rounded.codes);
        codes[thread] = rounded.codes;
        if quad % UNIT_QUADS == 0u {
            own_scales[thread / UNIT_QUADS] = rounded.scale;
        }
        if quad % (2u * UNIT_QUADS) == 0u {
            scales[thread / (2u * UNIT_QUADS)] = rounded.scales;
        }
    } else {
        two = vec2<u32>(two_halves(four.x, four.y), two_halves(four.z, four.w));
        if quad % UNIT_QUADS == 0u {
            own_scales[thread / UNIT_QUADS] = 1.0;
        }
    }
    own[thread] = two;
    workgroupBarrier();
    if thread < eighths {
        let key = eight_of(own_eighth(thread));
        let product = dot(key.a, query[2u * thread]) + dot(key.b, query[2u * thread + 1u]);
        largest_of[thread] = product * own_scales[thread / EIGHTHS_OF_UNIT];
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
            let scale = own_scales[MOST_COLUMNS / KV_UNIT + thread / EIGHTHS_OF_UNIT];
            attended.sum = eight_of(own_eighth(32u + thread));
            attended.sum.a *= scale;
            attended.sum.b *= scale;
        }
    }
    workgroupBarrier();
    attended = attend_to(0u, kv_head, first, min(end, position), attended, thread);
    write_range((head * step[STEP_SPLITS] + group.z) * (columns + 2u), attended, thread);

    if position >= end || head % n_of_group != 0u {
        return;
    }
    // From here on the halves are of a page.
    let page = 2u * step_page(0u, position / PAGE) + half;
    let of_head = (page * attention.n_kv_heads + kv_head) * head_words(columns) / 4u;
    let in_page = position % PAGE;
    if !IS_Q8_0 {
        for (var i = quad; i < eighths; i += TEAM) {
            pages[of_head + in_page * eighths + i] = own_eighth(32u * half + i);
        }
        return;
    }
    if quad < columns / 16u {
        let at = TEAM * half + 4u * quad;
        pages[of_head + in_page * (columns / 16u) + quad] = vec4<u32>(codes[at], codes[at + 1u], codes[at + 2u], codes[at + 3u]);
    }
    // One thread, since it may write whole vectors.
    for (var i = 0u; i < scale_words(columns) && quad == 0u; i++) {
        let word = in_page * scale_words(columns) + i;
        pages[of_head + 2u * columns + word / 4u][word % 4u] = scales[4u * half + i];
    }
}
