// Adds to each row, takes its RMSNorm, and rounds that for the matrices that follow. A workgroup takes a row. CPU twins:
// src/cpu/add.rs, src/cpu/rms_norm.rs; sums run in another order than theirs.
#import run
#import exact
#import round
#import norm

@group(0) @binding(2) var<storage, read> weights: array<f32>;            // (D)
@group(0) @binding(3) var<storage, read> x: array<f32>;                  // (T, D)
@group(0) @binding(4) var<storage, read_write> result: array<u32>;       // (T, result_stride)
@group(0) @binding(5) var<storage, read> y: array<f32>;                  // (T, D), or (P, D)
@group(0) @binding(6) var<storage, read> places: array<u32>;             // (T, K): a row's pairs in y, by ascending expert
@group(0) @binding(8) var<storage, read_write> normed: array<f32>;       // (T, stride)
@group(0) @binding(9) var<storage, read_write> sum: array<f32>;          // (T, D), x and what is added

override THREADS: u32;
// Known when the kernel is compiled, so that all of a thread's loads are under way at once.
override COLUMNS: u32;    // D
override N_ADDENDS: u32;  // rows of y that are added to a row of x

var<workgroup> squares: array<f32, THREADS>;

fn sum_with_y(row: u32, column: u32) -> f32 {
    let at = row * COLUMNS + column;
    if N_ADDENDS == 0u {
        return x[at];
    }
    if norm.has_places == 0u {
        return x[at] + y[at];
    }
    // As the hub sums what experts answer: first among themselves, in ascending order.
    var added = 0.0;
    for (var k = 0u; k < N_ADDENDS; k++) {
        added += y[places[row * N_ADDENDS + k] * COLUMNS + column];
    }
    return x[at] + added;
}

@compute @workgroup_size(THREADS)
fn norm_rows(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x;
    var square = 0.0;
    for (var column = thread; column < COLUMNS; column += THREADS) {
        let value = sum_with_y(row, column);
        square += value * value;
        if N_ADDENDS > 0u {
            sum[row * COLUMNS + column] = value;
        }
    }
    if norm.is_normed == 0u {
        return;
    }
    squares[thread] = square;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if thread < half {
            squares[thread] += squares[thread + half];
        }
        workgroupBarrier();
    }
    storageBarrier();
    let scale = 1.0 / sqrt(squares[0] / f32(COLUMNS) + norm.eps);
    for (var first = 0u; first < COLUMNS; first += 4u * THREADS) {
        let column = first + 4u * thread;
        var values = vec4<u32>();
        for (var i = 0u; i < 4u; i++) {
            if column + i < COLUMNS {
                let at = row * COLUMNS + column + i;
                var value = x[at];
                if N_ADDENDS > 0u {
                    value = sum[at];
                }
                value = weights[column + i] * (value * scale);
                let bits = bitcast<u32>(value);
                // Tiny values are 0, as wherever a matrix of floats reads them.
                values[i] = select(bits, 0u, (bits & 0x7fffffffu) < TINY);
                normed[row * norm.stride + column + i] = bitcast<f32>(values[i]);
            }
        }
        if norm.is_rounded == 1u {
            round_columns(row * norm.result_stride, COLUMNS, column, thread, values);
        }
    }
}
