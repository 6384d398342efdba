// Norms and rotates queries and keys, and writes keys and values into the cache. A workgroup takes a head of a row: queries
// first, then keys, then values.
#import run
#import heads
#import kv_codes

@group(0) @binding(2) var<storage, read> weights: array<f32>;           // (2, C): of queries, of keys
@group(0) @binding(3) var<storage, read> q: array<f32>;                 // (T, q_stride)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;      // queries (T, H, C)
@group(0) @binding(5) var<storage, read> k: array<f32>;                 // (T, k_stride)
@group(0) @binding(6) var<storage, read> v: array<f32>;                 // (T, v_stride)
@group(0) @binding(8) var<storage, read_write> pages: array<u32>;

var<workgroup> values: array<f32, MOST_COLUMNS>;
var<workgroup> squares: array<f32, TEAM>;

@compute @workgroup_size(64)
fn heads_to_cache(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.y;
    let columns = heads.columns;
    let is_query = group.x < heads.n_heads;
    let is_value = group.x >= heads.n_heads + heads.n_kv_heads;
    let head = select((group.x - heads.n_heads) % heads.n_kv_heads, group.x, is_query);
    for (var i = thread; i < columns; i += TEAM) {
        let column = head * columns + i;
        var value = 0.0;
        if is_query {
            value = q[row * heads.q_stride + column];
        } else if is_value {
            value = v[heads.v_start + row * heads.v_stride + column];
        } else {
            value = k[heads.k_start + row * heads.k_stride + column];
        }
        values[i] = value;
    }
    norm_head(0u, is_query, is_value, thread);
    if is_query {
        for (var i = thread; i < columns; i += TEAM) {
            result[(row * heads.n_heads + head) * columns + i] = rotated(row, 0u, i);
        }
        return;
    }
    let position = step_position(row);
    let page = 2u * step_page(row, position / PAGE) + select(0u, 1u, is_value);
    let start = (page * heads.n_kv_heads + head) * head_words(columns);
    let in_page = position % PAGE;
    let column = 4u * thread;
    let is_there = column < columns;
    var four = vec4<f32>();
    for (var i = 0u; i < 4u && is_there; i++) {
        four[i] = values[column + i];
        if !is_value {
            four[i] = rotated(row, 0u, column + i);
        }
    }
    if !IS_Q8_0 {
        let at = start + (in_page * columns + column) / 2u;
        if is_there {
            pages[at] = two_halves(four.x, four.y);
            pages[at + 1u] = two_halves(four.z, four.w);
        }
        return;
    }
    let rounded = codes_of(four, thread);
    if is_there {
        pages[start + (in_page * columns + column) / 4u] = rounded.codes;
        if thread % (2u * UNIT_QUADS) == 0u {
            let scales = start + PAGE * columns / 4u + in_page * scale_words(columns);
            pages[scales + column / (2u * KV_UNIT)] = rounded.scales;
        }
    }
}
