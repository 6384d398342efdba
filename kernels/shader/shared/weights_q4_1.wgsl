// q4_1: 20 bytes for 32 columns, d, the minimum, and nibbles as in q4_0.
const CHUNK_OCTETS: u32 = 4u;
const BLOCK: u32 = 10u;
#import codes

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i);
    let words = words_at(block + 2u);
    let low = words & NIBBLES;
    return Chunk(low, (words >> vec4<u32>(4u)) & NIBBLES, float_at(block), float_at(block + 1u));
}
