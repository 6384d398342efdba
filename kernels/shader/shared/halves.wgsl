// Blocks of an even number of bytes: shape.weight_stride, the blocks and what is read of them count halves of a word.
#import chunk
const ROW_UNIT: u32 = 2u;

// Where block i of a row starts.
fn block_at(values: u32, row: u32, i: u32) -> u32 {
    return 8u * values + row * shape.weight_stride + i * BLOCK;
}

// The four bytes from `at` on.
fn word_at(at: u32) -> u32 {
    let word = weights[at / 2u];
    if (at & 1u) == 0u {
        return word;
    }
    return (word >> 16u) | (weights[at / 2u + 1u] << 16u);
}

fn words_at(at: u32) -> vec4<u32> {
    return vec4<u32>(word_at(at), word_at(at + 2u), word_at(at + 4u), word_at(at + 6u));
}

fn float_at(at: u32) -> f32 {
    let two = unpack2x16float(weights[at / 2u]);
    return select(two.x, two.y, (at & 1u) != 0u);
}
