// Norms and rotates queries and keys, and writes keys and values into the cache. A workgroup takes a head of a row: queries
// first, then keys, then values.
#import heads

@group(0) @binding(2) var<storage, read> weights: array<f32>;           // (2, C): of queries, of keys
@group(0) @binding(3) var<storage, read> q: array<f32>;                 // (T, q_stride)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;      // queries (T, H, C)
@group(0) @binding(5) var<storage, read> k: array<f32>;                 // (T, k_stride)
@group(0) @binding(6) var<storage, read> v: array<f32>;                 // (T, v_stride)
@group(0) @binding(8) var<storage, read_write> pages: array<u32>;       // (pages, keys and values, G, 32, C / 2), f16

const PAGE: u32 = 32u;

var<workgroup> values: array<f32, MOST_COLUMNS>;
var<workgroup> squares: array<f32, TEAM>;

@compute @workgroup_size(64)
fn heads_to_cache(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.y;
    let is_query = group.x < heads.n_heads;
    let is_value = group.x >= heads.n_heads + heads.n_kv_heads;
    let head = select((group.x - heads.n_heads) % heads.n_kv_heads, group.x, is_query);
    for (var i = thread; i < heads.columns; i += TEAM) {
        let column = head * heads.columns + i;
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
        for (var i = thread; i < heads.columns; i += TEAM) {
            result[(row * heads.n_heads + head) * heads.columns + i] = rotated(row, 0u, i);
        }
        return;
    }
    let position = step_position(row);
    let half = select(0u, 1u, is_value);
    let page = 2u * step_page(row, position / PAGE) + half;
    let words = heads.columns / 2u;
    let at = ((page * heads.n_kv_heads + head) * PAGE + position % PAGE) * words;
    for (var word = thread; word < words; word += TEAM) {
        var two = vec2<f32>(values[2u * word], values[2u * word + 1u]);
        if !is_value {
            two = vec2<f32>(rotated(row, 0u, 2u * word), rotated(row, 0u, 2u * word + 1u));
        }
        pages[at + word] = half_bits(two.x) | (half_bits(two.y) << 16u);
    }
}
