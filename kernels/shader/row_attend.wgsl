// Attention of one query head of a step's one row to a range of its sequence's pages. A workgroup norms and rotates its query, and
// the row's own key, which it attends to without reading it from the cache; one of each key and value head writes both there.
// What the ranges of the row give, attend_rows.wgsl joins.
#import run
#import row_pages
#import kv_codes

@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read> q: array<f32>;                   // (1, H, C)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;        // (1, H, slots, C + 2), as attend.wgsl's
@group(0) @binding(5) var<storage, read> k: array<f32>;                   // (1, G, C)
@group(0) @binding(6) var<storage, read> v: array<f32>;                   // (1, G, C)
@group(0) @binding(8) var<storage, read_write> pages: array<vec4<u32>>;
@group(0) @binding(9) var<uniform> attention: Attend;

var<workgroup> values: array<f32, 512>;         // the query, the key
var<workgroup> squares: array<f32, THREADS>;
var<workgroup> codes: array<u32, THREADS>;      // in q8_0, of the key, from the middle on of the value
var<workgroup> scales: array<u32, 8>;           // of the codes

@compute @workgroup_size(128)
fn row_attend(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let head = group.x;
    let columns = attention.columns;
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

    let position = step_position(0u);
    let span = step_tile(0u).span;
    let n_pages = max(span, AT_ONCE);  // of the workgroup
    let end = min((group.z + 1u) * n_pages, position / PAGE + 1u);
    let slots = head * step[STEP_SLOTS];
    var of_range = Weighed(LOWEST, 0.0);
    var sums: array<f32, 2>;  // of columns `thread` and `thread + THREADS`
    for (var first = group.z * n_pages; first < end; first += AT_ONCE) {
        attend_to_pages(first, end, position, kv_head, thread);
        for (var page = 0u; page < min(AT_ONCE, end - first); page++) {
            let of_page = weighed_page(page);
            let shares = shares_of(of_range.largest, of_page.largest);
            of_range = joined_weights(of_range, of_page, shares);
            for (var k = 0u; k < N_OWN; k++) {
                sums[k] = joined_sum(sums[k], sum_of_page(page, min(thread + k * THREADS, columns - 1u)), shares);
            }
            let number = first + page;
            if (number + 1u) % span == 0u || number + 1u == end {
                let at = (slots + number / span) * (columns + 2u);
                for (var k = 0u; k < N_OWN; k++) {
                    if thread + k * THREADS < columns {
                        result[at + thread + k * THREADS] = sums[k];
                    }
                }
                if thread == 0u {
                    result[at + columns] = of_range.largest;
                    result[at + columns + 1u] = of_range.weight;
                }
                of_range = Weighed(LOWEST, 0.0);
                sums = array<f32, 2>();
            }
        }
        workgroupBarrier();
    }

    if end != position / PAGE + 1u || head % n_of_group != 0u {
        return;
    }
    // From here on the halves are of a page.
    let page = 2u * step_page(0u, position / PAGE) + half;
    let of_head = (page * attention.n_kv_heads + kv_head) * head_words(columns) / 4u;
    let in_page = position % PAGE;
    if !IS_Q8_0 {
        for (var i = quad; i < EIGHTHS; i += TEAM) {
            pages[of_head + in_page * EIGHTHS + i] = own_eighth(32u * half + i);
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
