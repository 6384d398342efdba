// q3_K: 110 bytes for sixteen groups of 16 columns; a chunk is a group.
const CHUNK_OCTETS: u32 = 2u;
const BLOCK: u32 = 55u;
#import codes
#import pairs

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i / 16u);
    let g = i % 16u;
    // Bit g / 2 of 32 bytes.
    let third = (words_at(block + 8u * (g % 2u)) >> vec4<u32>(g / 2u)) & vec4<u32>(0x01010101u);
    let low = word_at(block + 48u + 2u * (g % 8u / 4u)) >> (8u * (g % 4u) + 4u * (g / 8u));
    let high = word_at(block + 52u) >> (8u * (g % 4u) + 2u * (g / 4u));
    let d = float_at(block + 54u) * (f32((low & 15u) | ((high & 3u) << 4u)) - 32.0);
    return Chunk(pairs_at(block + 16u, g) | (third << vec4<u32>(2u)), vec4<u32>(), d, -4.0 * d);
}
