// q4_0: 18 bytes for 32 columns, d and nibbles, columns 0..16 in the low ones.
const CHUNK_OCTETS: u32 = 4u;
const BLOCK: u32 = 9u;
#import codes

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i);
    let d = float_at(block);
    let words = words_at(block + 1u);
    return Chunk(words & NIBBLES, (words >> vec4<u32>(4u)) & NIBBLES, d, -8.0 * d);
}
