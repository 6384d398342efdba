// Norms and rotates queries and keys, and writes keys and values into the cache. A workgroup takes a head of a row: queries
// first, then keys, then values. CPU twins: src/cpu/rms_norm.rs, src/cpu/rope.rs, src/graph/kv.rs.
#import step

struct Heads {
    n_heads: u32,     // H
    n_kv_heads: u32,  // G
    columns: u32,     // C
    rope: u32,        // which of the step's tables
    half: u32,        // pairs of columns that are rotated
    first: u32,       // the first column that is rotated
    is_neighbours: u32,  // whether columns 2i and 2i + 1 are a pair, instead of i and i + half
    has_q_norm: u32,
    has_k_norm: u32,
    q_eps: f32,
    k_eps: f32,
    q_stride: u32,    // from one row to the next
    k_stride: u32,
    v_stride: u32,
    k_start: u32,     // the first row's start
    v_start: u32,
}

@group(0) @binding(2) var<storage, read> weights: array<f32>;           // (2, C): of queries, of keys
@group(0) @binding(3) var<storage, read> q: array<f32>;                 // (T, q_stride)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;      // queries (T, H, C)
@group(0) @binding(5) var<storage, read> k: array<f32>;                 // (T, k_stride)
@group(0) @binding(6) var<storage, read> v: array<f32>;                 // (T, v_stride)
@group(0) @binding(7) var<uniform> heads: Heads;
@group(0) @binding(8) var<storage, read_write> pages: array<u32>;       // (pages, keys and values, G, 32, C / 2), f16

const THREADS: u32 = 64u;
const PAGE: u32 = 32u;

var<workgroup> values: array<f32, 256>;
var<workgroup> squares: array<f32, THREADS>;

// Column `i` of the head after the rotation.
fn rotated(row: u32, i: u32) -> f32 {
    let place = i - heads.first;
    if i < heads.first || place >= 2u * heads.half {
        return values[i];
    }
    var pair = place % heads.half;
    var other = heads.first + (place + heads.half) % (2u * heads.half);
    var is_second = place >= heads.half;
    if heads.is_neighbours == 1u {
        pair = place / 2u;
        other = heads.first + (place ^ 1u);
        is_second = (place & 1u) == 1u;
    }
    let at = step[STEP_ROPES + heads.rope] + 2u * (row * heads.half + pair);
    let turn = select(-1.0, 1.0, is_second) * bitcast<f32>(step[at + 1u]);
    return values[i] * bitcast<f32>(step[at]) + values[other] * turn;
}

// The nearest f16, halves to even: `pack2x16float` may round either way.
fn half_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let magnitude = bits & 0x7fffffffu;
    // Above 2^-14: 13 bits less, and another exponent.
    var half = (magnitude + 0xfffu + ((magnitude >> 13u) & 1u) - 0x38000000u) >> 13u;
    if magnitude < 0x38800000u {
        // The steps of numbers from 0.5 on are those of the smallest f16: the addition rounds.
        half = bitcast<u32>(bitcast<f32>(magnitude) + 0.5) - 0x3f000000u;
    } else if magnitude > 0x7f800000u {
        half = 0x7e00u;
    } else if magnitude >= 0x47800000u {
        half = 0x7c00u;
    }
    return half | ((bits >> 16u) & 0x8000u);
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
    var square = 0.0;
    for (var i = thread; i < heads.columns; i += THREADS) {
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
        square += value * value;
    }
    squares[thread] = square;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if thread < half {
            squares[thread] += squares[thread + half];
        }
        workgroupBarrier();
    }
    let is_normed = !is_value && select(heads.has_k_norm, heads.has_q_norm, is_query) == 1u;
    if is_normed {
        let eps = select(heads.k_eps, heads.q_eps, is_query);
        let scale = 1.0 / sqrt(squares[0] / f32(heads.columns) + eps);
        let first = select(heads.columns, 0u, is_query);
        for (var i = thread; i < heads.columns; i += THREADS) {
            values[i] = weights[first + i] * (values[i] * scale);
        }
    }
    workgroupBarrier();
    if is_query {
        for (var i = thread; i < heads.columns; i += THREADS) {
            result[(row * heads.n_heads + head) * heads.columns + i] = rotated(row, i);
        }
        return;
    }
    let position = step_position(row);
    let half = select(0u, 1u, is_value);
    let page = 2u * step_page(row, position / PAGE) + half;
    let words = heads.columns / 2u;
    let at = ((page * heads.n_kv_heads + head) * PAGE + position % PAGE) * words;
    for (var word = thread; word < words; word += THREADS) {
        var two = vec2<f32>(values[2u * word], values[2u * word + 1u]);
        if !is_value {
            two = vec2<f32>(rotated(row, 2u * word), rotated(row, 2u * word + 1u));
        }
        pages[at + word] = half_bits(two.x) | (half_bits(two.y) << 16u);
    }
}
