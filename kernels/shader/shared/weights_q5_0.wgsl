// q5_0: 22 bytes for 32 columns, d, the fifth bits, and nibbles as in q4_0.
const CHUNK_OCTETS: u32 = 4u;
const BLOCK: u32 = 11u;
#import codes

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i);
    let d = float_at(block);
    let fifth = word_at(block + 1u);
    let words = words_at(block + 3u);
    let low = (words & NIBBLES) | fifth_bits(fifth);
    return Chunk(low, ((words >> vec4<u32>(4u)) & NIBBLES) | fifth_bits(fifth >> 16u), d, -16.0 * d);
}
