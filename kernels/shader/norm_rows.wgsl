// Adds to each row, takes its RMSNorm, and rounds that for the matrices that follow. A workgroup takes a row. CPU twins:
// src/cpu/add.rs, src/cpu/rms_norm.rs; sums run in another order than theirs.
#import run
#import exact
#import round
#import norm
#import norm_scale

@group(0) @binding(2) var<storage, read> weights: array<vec4<f32>>;           // (D)
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;                 // (T, D)
@group(0) @binding(4) var<storage, read_write> result: array<u32>;            // (T, result_stride)
@group(0) @binding(5) var<storage, read> y: array<vec4<f32>>;                 // (T, D), or (P, D)
@group(0) @binding(6) var<storage, read> places: array<u32>;                  // (T, K): a row's pairs in y, by ascending expert
@group(0) @binding(8) var<storage, read_write> normed: array<vec4<u32>>;      // (T, stride)
@group(0) @binding(9) var<storage, read_write> sum: array<vec4<f32>>;         // (T, D), x and what is added

override THREADS: u32;
override N_ADDENDS: u32;  // rows of y that are added to a row of x

var<private> row: u32;

fn sum_with_y(quad: u32) -> vec4<f32> {
    let at = row * QUADS + quad;
    if N_ADDENDS == 0u {
        return x[at];
    }
    if norm.has_places == 0u {
        return x[at] + y[at];
    }
    // As the hub sums what experts answer: first among themselves, in ascending order.
    var added = vec4<f32>();
    for (var k = 0u; k < N_ADDENDS; k++) {
        added += y[places[row * N_ADDENDS + k] * QUADS + quad];
    }
    return x[at] + added;
}

// Writes the sum as well.
fn summed(quad: u32) -> vec4<f32> {
    if QUADS % SQUARES != 0u && quad >= QUADS {
        return vec4<f32>();
    }
    let four = sum_with_y(quad);
    if N_ADDENDS > 0u {
        sum[row * QUADS + quad] = four;
    }
    return four;
}

@compute @workgroup_size(THREADS)
fn norm_rows(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    row = group.x;
    let scale = norm_scale_of(norm.eps, thread);
    if norm.is_normed == 0u {
        return;
    }
    storageBarrier();
    for (var first = 0u; first < QUADS; first += THREADS) {
        let quad = first + thread;
        var bits = vec4<u32>();
        if quad < QUADS {
            let at = row * QUADS + quad;
            var values = x[at];
            if N_ADDENDS > 0u {
                values = sum[at];
            }
            bits = normed_bits(weights[quad], values, scale);
            normed[row * norm.stride / 4u + quad] = bits;
        }
        if norm.is_rounded == 1u {
            round_columns(row * norm.result_stride, 4u * QUADS, 4u * quad, thread, bits);
        }
    }
}
