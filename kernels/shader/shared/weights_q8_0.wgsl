// q8_0: 34 bytes for 32 columns, d and an i8 each.
const CHUNK_OCTETS: u32 = 4u;
const BLOCK: u32 = 17u;
#import codes

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i);
    let d = float_at(block);
    let zero = vec4<u32>(0x80808080u);
    return Chunk(words_at(block + 1u) ^ zero, words_at(block + 9u) ^ zero, d, -128.0 * d);
}
