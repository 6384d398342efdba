// Rounds rows to activations: int8 in units with a scale each, or f32. Each of THREADS threads has four neighbouring columns.
// CPU twin: src/quant/activations.rs, fill_row.
#import steps

override FLOATS: u32;       // bits of the float format of the weights, or 0
override BLOCK_COLS: u32;
override BLOCK_WORDS: u32;
override COLUMNS_AT: u32;   // where a block's columns start among its words
override UNIT: u32;         // columns of one scale
override GROUP: u32;
override ZERO: u32;         // what stands for weight 0
override TERMS: u32;        // 0: a bias a group, 1: the sum, 2: groups' sums in i16

var<workgroup> largest_of: array<u32, THREADS>;  // of each quad, then of each group's sum
var<workgroup> sums: array<i32, THREADS>;
var<workgroup> scaled: array<f32, THREADS>;      // of each group of a block, from the block's first thread on

// What is not a number is larger than all.
fn largest_magnitude(first: u32, n: u32) -> u32 {
    var largest = 0u;
    for (var i = first; i < first + n; i++) {
        largest = max(largest, largest_of[i]);
    }
    return largest;
}

fn sum_from(first: u32, n: u32) -> i32 {
    var sum = 0;
    for (var i = first; i < first + n; i++) {
        sum += sums[i];
    }
    return sum;
}

// Writes the words of a row that starts at `row` and has `n_columns`: this thread's four `values`, bits of f32, from `column`
// on; they are 0 beyond the row. Thread 0 is at a multiple of 256 columns. All threads call it together.
fn round_columns(row: u32, n_columns: u32, column: u32, thread: u32, values: vec4<u32>) {
    if FLOATS != 0u {
        for (var i = 0u; i < 4u; i++) {
            if column + i < (n_columns + 31u) / 32u * 32u {
                result[row + column + i] = select(values[i], 0u, (values[i] & 0x7fffffffu) < TINY);
            }
        }
        return;
    }
    let magnitudes = values & vec4<u32>(0x7fffffffu);
    largest_of[thread] = max(max(magnitudes.x, magnitudes.y), max(magnitudes.z, magnitudes.w));
    workgroupBarrier();

    let unit_quads = UNIT / 4u;
    let scale = steps(largest_magnitude(thread / unit_quads * unit_quads, unit_quads), 127.0);
    var quad = 0u;
    var sum = 0;
    for (var i = 0u; i < 4u; i++) {
        let integer = nearest(product_of(bitcast<f32>(values[i]), scale.y), 127.0);
        quad |= (integer & 255u) << (8u * i);
        sum += bitcast<i32>(integer << 24u) >> 24u;
    }
    let in_block = 4u * thread % BLOCK_COLS;
    let words = row + column / BLOCK_COLS * BLOCK_WORDS;
    let is_there = column / BLOCK_COLS * BLOCK_COLS < n_columns;
    let terms = words + BLOCK_COLS / UNIT;
    sums[thread] = sum;
    if is_there {
        result[words + COLUMNS_AT + in_block / 4u] = quad;
        if in_block % UNIT == 0u {
            result[words + in_block / UNIT] = bitcast<u32>(scale.x);
        }
    }
    workgroupBarrier();

    let group_quads = GROUP / 4u;
    let g = in_block / GROUP;
    let first = thread - in_block / 4u;  // the block's first thread
    if in_block % GROUP == 0u {
        let sum = sum_from(thread, group_quads);
        let value = product_of(f32(sum), scale.x);
        if TERMS == 2u {
            scaled[first + g] = value;
            largest_of[first + g] = bitcast<u32>(value) & 0x7fffffffu;
        } else if is_there {
            result[terms + g] = select(bitcast<u32>(value), bitcast<u32>(-i32(ZERO) * sum), TERMS == 0u);
        }
    }
    workgroupBarrier();

    let n_groups = BLOCK_COLS / GROUP;
    let pair = thread - first;
    if TERMS == 2u && pair < n_groups / 2u {
        let scale = steps(largest_magnitude(first, n_groups), 32767.0);
        let low = nearest(product_of(scaled[first + 2u * pair], scale.y), 32767.0) & 0xffffu;
        let high = nearest(product_of(scaled[first + 2u * pair + 1u], scale.y), 32767.0) << 16u;
        if is_there {
            result[terms + 1u + pair] = low | high;
            if pair == 0u {
                result[terms] = bitcast<u32>(scale.x);
            }
        }
    }
    workgroupBarrier();
}
