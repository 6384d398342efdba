// Heads before attention: their norm, their rotation, and the bits of the cache. The file of an entry point declares `weights` (2,
// C), of queries and of keys, and `values`, MOST_COLUMNS for each of a workgroup's heads. CPU twins: src/cpu/rms_norm.rs,
// src/cpu/rope.rs, src/graph/kv.rs.
#import step
#import half_bits

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

@group(0) @binding(7) var<uniform> heads: Heads;

const TEAM: u32 = 64u;  // threads of a head
const MOST_COLUMNS: u32 = 256u;

// Takes the norm of the head that starts at `start`, if it is a query or key that has one. All threads call it together.
fn norm_head(start: u32, is_query: bool, is_value: bool, thread: u32) {
    let lane = thread % TEAM;
    var square = 0.0;
    for (var i = lane; i < heads.columns; i += TEAM) {
        let value = values[start + i];
        square = fma(value, value, square);
    }
    squares[thread] = square;
    workgroupBarrier();
    for (var half = TEAM / 2u; half > 0u; half /= 2u) {
        if lane < half {
            squares[thread] += squares[thread + half];
        }
        workgroupBarrier();
    }
    if !is_value && select(heads.has_k_norm, heads.has_q_norm, is_query) == 1u {
        let eps = select(heads.k_eps, heads.q_eps, is_query);
        let scale = 1.0 / sqrt(fma(squares[thread - lane], 1.0 / f32(heads.columns), eps));
        let first = select(heads.columns, 0u, is_query);
        for (var i = lane; i < heads.columns; i += TEAM) {
            values[start + i] = weights[first + i] * (values[start + i] * scale);
        }
    }
    workgroupBarrier();
}

// Column `i` of the head that starts at `start`, after the rotation.
fn rotated(row: u32, start: u32, i: u32) -> f32 {
    let place = i - heads.first;
    if i < heads.first || place >= 2u * heads.half {
        return values[start + i];
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
    return fma(values[start + other], turn, values[start + i] * bitcast<f32>(step[at]));
}
