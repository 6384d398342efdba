// Rounds all blocks of some rows to int8 activations in a workgroup's memory, with the words that round.wgsl writes to a buffer.
// The file of an entry point declares `quad_at`: the bits of four neighbouring columns, 0 beyond a row.
// CPU twin: src/quant/activations.rs, fill_row.
#import steps

override N_BLOCKS: u32;  // of all rows
override ZERO: u32;      // what stands for weight 0
override UNIT_QUADS: u32 = 8u * CODE_UNITS;
override BLOCK_QUADS: u32 = UNITS * UNIT_QUADS;
override BLOCK_GROUPS: u32 = UNITS * HALVES;
override BLOCK_PAIRS: u32 = (BLOCK_GROUPS + 1u) / 2u;  // of groups
override N_WORDS: u32 = N_BLOCKS * BLOCK_WORDS;
override N_GROUPS: u32 = N_BLOCKS * BLOCK_GROUPS;

var<workgroup> x: array<u32, N_WORDS>;
var<workgroup> factors: array<f32, N_GROUPS>;  // of each unit, then each group's sum

// The word that has quad `q`.
fn word_of(q: u32) -> u32 {
    return q / BLOCK_QUADS * BLOCK_WORDS + COLUMNS_AT + q % BLOCK_QUADS;
}

// All threads call it together.
fn round_rows(thread: u32) {
    // A quad's largest magnitude is kept where its integers will be.
    for (var q = thread; q < N_BLOCKS * BLOCK_QUADS; q += THREADS) {
        let magnitudes = quad_at(q) & vec4<u32>(0x7fffffffu);
        x[word_of(q)] = max(max(magnitudes.x, magnitudes.y), max(magnitudes.z, magnitudes.w));
    }
    workgroupBarrier();
    for (var unit = thread; unit < N_BLOCKS * UNITS; unit += THREADS) {
        let first = word_of(unit * UNIT_QUADS);
        var largest = 0u;
        for (var i = 0u; i < UNIT_QUADS; i++) {
            largest = max(largest, x[first + i]);
        }
        let scale = steps(largest, 127.0);
        x[unit / UNITS * BLOCK_WORDS + unit % UNITS] = bitcast<u32>(scale.x);
        factors[unit] = scale.y;
    }
    workgroupBarrier();
    for (var q = thread; q < N_BLOCKS * BLOCK_QUADS; q += THREADS) {
        let values = quad_at(q);
        let factor = factors[q / UNIT_QUADS];
        var quad = 0u;
        for (var i = 0u; i < 4u; i++) {
            quad |= (nearest(product_of(bitcast<f32>(values[i]), factor), 127.0) & 255u) << (8u * i);
        }
        x[word_of(q)] = quad;
    }
    workgroupBarrier();
    for (var g = thread; g < N_GROUPS; g += THREADS) {
        let first = word_of(g * (UNIT_QUADS / HALVES));
        var sum = 0;
        for (var i = 0u; i < UNIT_QUADS / HALVES; i++) {
            sum += dot4I8Packed(x[first + i], 0x01010101u);
        }
        let block = g / BLOCK_GROUPS * BLOCK_WORDS;
        let in_block = g % BLOCK_GROUPS;
        let value = product_of(f32(sum), bitcast<f32>(x[block + in_block / HALVES]));
        if TERMS == 2u {
            factors[g] = value;
        } else {
            let bias = -i32(ZERO) * sum;
            x[block + UNITS + in_block] = select(bitcast<u32>(value), bitcast<u32>(bias), TERMS == 0u);
        }
    }
    workgroupBarrier();
    if TERMS == 2u {
        for (var pair = thread; pair < N_GROUPS / 2u; pair += THREADS) {
            let block = pair / BLOCK_PAIRS;
            let in_block = pair % BLOCK_PAIRS;
            var largest = 0u;
            for (var i = 0u; i < BLOCK_GROUPS; i++) {
                largest = max(largest, bitcast<u32>(factors[block * BLOCK_GROUPS + i]) & 0x7fffffffu);
            }
            let scale = steps(largest, 32767.0);
            let low = nearest(product_of(factors[2u * pair], scale.y), 32767.0) & 0xffffu;
            let high = nearest(product_of(factors[2u * pair + 1u], scale.y), 32767.0) << 16u;
            let terms = block * BLOCK_WORDS + UNITS;
            x[terms + 1u + in_block] = low | high;
            if in_block == 0u {
                x[terms] = bitcast<u32>(scale.x);
            }
        }
        workgroupBarrier();
    }
}
