// iq4_nl: 18 bytes for 32 columns, d and nibbles as in q4_0.
const CHUNK_OCTETS: u32 = 4u;
const BLOCK: u32 = 9u;
#import iq4

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i);
    return chunk_of(block + 1u, float_at(block));
}
