// Blocks of any number of bytes: shape.weight_stride, the blocks and what is read of them count bytes.
#import chunk
const ROW_UNIT: u32 = 1u;

// Where block i of a row starts.
fn block_at(values: u32, row: u32, i: u32) -> u32 {
    return 16u * values + row * shape.weight_stride + i * BLOCK;
}

fn byte_at(at: u32) -> u32 {
    return (weights[at / 4u] >> (8u * (at % 4u))) & 255u;
}

// The sixteen bytes from `at` on.
fn words_at(at: u32) -> vec4<u32> {
    let i = at / 4u;
    let shift = vec4<u32>(8u * (at % 4u));
    let words = vec4<u32>(weights[i], weights[i + 1u], weights[i + 2u], weights[i + 3u]);
    let next = vec4<u32>(words.yzw, weights[i + 4u]);
    // In two steps: no word can be shifted by 32.
    return (words >> shift) | ((next << (vec4<u32>(31u) - shift)) << vec4<u32>(1u));
}
