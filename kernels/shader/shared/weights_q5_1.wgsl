// q5_1: 24 bytes for 32 columns, d, the minimum, the fifth bits, and nibbles as in q4_0.
const CHUNK_OCTETS: u32 = 4u;
const BLOCK: u32 = 12u;
#import codes

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i);
    let fifth = word_at(block + 2u);
    let words = words_at(block + 4u);
    let low = (words & NIBBLES) | fifth_bits(fifth);
    let high = ((words >> vec4<u32>(4u)) & NIBBLES) | fifth_bits(fifth >> 16u);
    return Chunk(low, high, float_at(block), float_at(block + 1u));
}
