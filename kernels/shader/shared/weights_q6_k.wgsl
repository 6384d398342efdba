// q6_K: 210 bytes for sixteen groups of 16 columns; a chunk is a group.
const CHUNK_OCTETS: u32 = 2u;
const BLOCK: u32 = 105u;
#import codes
#import pairs

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i / 16u);
    let g = i % 16u;
    let wide = g / 8u;        // 128 columns
    let part = g / 2u % 4u;   // 32 of them
    let start = 8u * (g % 2u);
    let nibbles = words_at(block + 32u * wide + 16u * (part % 2u) + start);
    let low = (nibbles >> vec4<u32>(4u * (part / 2u))) & NIBBLES;
    let high = pairs_at(block + 64u, g) << vec4<u32>(4u);
    // An i8, moved to the top of a word and back with its sign.
    let byte = word_at(block + 96u + 2u * (g / 4u)) >> (8u * (g % 4u));
    let d = float_at(block + 104u) * f32(bitcast<i32>(byte << 24u) >> 24u);
    return Chunk(low | high, vec4<u32>(), d, -32.0 * d);
}
