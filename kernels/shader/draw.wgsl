// Draws a token of each row from all, as the row's temperature and random number say; a workgroup takes a row. CPU twin:
// src/simd/draw.rs.
#import step
#import weight

@group(0) @binding(3) var<storage, read> x: array<f32>;                   // (W, COLUMNS)
@group(0) @binding(4) var<storage, read_write> result: array<vec2<u32>>;  // (W, MOST + 1): the best logits, and the token drawn
@group(0) @binding(5) var<storage, read> y: array<vec2<u32>>;             // (W, N_PARTS): of weigh_parts.wgsl

override COLUMNS: u32;    // V
override PART: u32;       // logits of a part
override N_PARTS: u32;    // up to THREADS
override MOST: u32;

const THREADS: u32 = 256u;

var<workgroup> sums: array<vec2<u32>, THREADS>;
// The part that the place lies in, and the place in it.
var<workgroup> part: u32;
var<workgroup> place: vec2<u32>;

// Sets `sums` to those of each thread's number and of all before it.
fn add_up(thread: u32, number: vec2<u32>) {
    sums[thread] = number;
    for (var behind = 1u; behind < THREADS; behind *= 2u) {
        workgroupBarrier();
        var sum = sums[thread];
        if thread >= behind {
            sum = carried(sum + sums[thread - behind]);
        }
        workgroupBarrier();
        sums[thread] = sum;
    }
    workgroupBarrier();
}

// The sum of all before this thread's.
fn before(thread: u32) -> vec2<u32> {
    return select(vec2<u32>(), sums[thread - min(thread, 1u)], thread > 0u);
}

// `a - b`, which is not below 0.
fn difference(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let borrowed = u32(a.y < b.y);
    return vec2<u32>(a.x - b.x - borrowed, a.y + (borrowed << LOW_BITS) - b.y);
}

// The 64 bits of a product: the lower half, and the upper.
fn product(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let middle = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
    return vec2<u32>((other << 16u) | (low & 0xffffu), (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u));
}

// `total * random / 2^32`, rounded down.
fn drawn_place(total: vec2<u32>, random: u32) -> vec2<u32> {
    let high = product(total.x, random);
    let low = product(total.y, random);
    let lost = (high.x << LOW_BITS) + low.x;
    let carry = u32(lost < low.x);
    return carried(vec2<u32>(high.y, (high.x >> (32u - LOW_BITS)) + low.y + carry));
}

@compute @workgroup_size(256)
fn draw(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let scale = step_scale(row);
    let drawn = row * (MOST + 1u) + MOST;
    // Before any draw: where no logit is a number there is none.
    if thread == 0u {
        result[drawn] = NOTHING;
        part = N_PARTS;
    }
    if scale == 0.0 {
        return;
    }
    let largest = finite(result[row * (MOST + 1u)].y);
    var own = vec2<u32>();
    if thread < N_PARTS {
        own = y[row * N_PARTS + thread];
    }
    add_up(thread, own);
    let of_all = drawn_place(sums[THREADS - 1u], step_random(row));
    if !is_below(of_all, before(thread)) && is_below(of_all, sums[thread]) {
        part = thread;
        place = difference(of_all, before(thread));
    }
    workgroupBarrier();

    let start = part * PART;
    let end = min(start + PART, COLUMNS);
    let n_own = (PART + THREADS - 1u) / THREADS;
    let first = start + thread * n_own;
    own = vec2<u32>();
    for (var token = first; token < min(first + n_own, end); token++) {
        own += weight_of(x[row * COLUMNS + token], largest, scale);
    }
    add_up(thread, carried(own));
    if part == N_PARTS || is_below(place, before(thread)) || !is_below(place, sums[thread]) {
        return;
    }
    var sum = before(thread);
    for (var token = first; token < min(first + n_own, end); token++) {
        sum = carried(sum + weight_of(x[row * COLUMNS + token], largest, scale));
        if is_below(place, sum) {
            result[drawn] = vec2<u32>(token, 0u);
            return;
        }
    }
}
