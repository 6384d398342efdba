// Norms and rotates queries and keys, and writes keys and values into the cache. A workgroup takes a head of a row: queries
// first, then keys, then values. CPU twin of what is written: src/simd/kv.rs.
#import run
#import heads
#import pages
#import steps

@group(0) @binding(2) var<storage, read> weights: array<f32>;           // (2, C): of queries, of keys
@group(0) @binding(3) var<storage, read> q: array<f32>;                 // (T, q_stride)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;      // queries (T, H, C)
@group(0) @binding(5) var<storage, read> k: array<f32>;                 // (T, k_stride)
@group(0) @binding(6) var<storage, read> v: array<f32>;                 // (T, v_stride)
@group(0) @binding(8) var<storage, read_write> pages: array<u32>;

var<workgroup> values: array<f32, MOST_COLUMNS>;
var<workgroup> squares: array<f32, TEAM>;
var<workgroup> largest_of: array<u32, TEAM>;  // of four columns

// What takes a unit's columns to codes and back, from its first four on.
fn unit_steps(first: u32) -> vec2<f32> {
    var largest = 0u;
    for (var i = first; i < first + KV_UNIT / 4u; i++) {
        largest = max(largest, largest_of[i]);
    }
    return steps(largest, 127.0);
}

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
    let page = 2u * step_page(row, position / PAGE) + select(0u, 1u, is_value);
    let start = (page * heads.n_kv_heads + head) * head_words(heads.columns);
    let in_page = position % PAGE;
    let column = 4u * thread;
    let is_there = column < heads.columns;
    var four = vec4<f32>();
    for (var i = 0u; i < 4u && is_there; i++) {
        four[i] = values[column + i];
        if !is_value {
            four[i] = rotated(row, 0u, column + i);
        }
    }
    if !IS_Q8_0 {
        let at = start + (in_page * heads.columns + column) / 2u;
        if is_there {
            pages[at] = half_bits(four.x) | (half_bits(four.y) << 16u);
            pages[at + 1u] = half_bits(four.z) | (half_bits(four.w) << 16u);
        }
        return;
    }
    let magnitudes = bitcast<vec4<u32>>(four) & vec4<u32>(0x7fffffffu);
    largest_of[thread] = max(max(magnitudes.x, magnitudes.y), max(magnitudes.z, magnitudes.w));
    workgroupBarrier();
    let unit_quads = KV_UNIT / 4u;
    let scale = unit_steps(thread / unit_quads * unit_quads);
    var codes = 0u;
    for (var i = 0u; i < 4u; i++) {
        codes |= (nearest(product_of(four[i], scale.y), 127.0) & 255u) << (8u * i);
    }
    if is_there {
        pages[start + (in_page * heads.columns + column) / 4u] = codes;
        if thread % (2u * unit_quads) == 0u {
            let scales = start + PAGE * heads.columns / 4u + in_page * scale_words(heads.columns);
            let second = unit_steps(thread + unit_quads);
            pages[scales + column / (2u * KV_UNIT)] = half_bits(scale.x) | (half_bits(second.x) << 16u);
        }
    }
}
