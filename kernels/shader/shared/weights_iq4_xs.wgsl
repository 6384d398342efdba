// iq4_xs: 136 bytes for eight groups of 32 columns; a chunk is a group.
const CHUNK_OCTETS: u32 = 4u;
const BLOCK: u32 = 68u;
#import iq4

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i / 8u);
    let g = i % 8u;
    let low = (word_at(block + 2u) >> (4u * g)) & 15u;
    let high = (word_at(block + 1u) >> (2u * g)) & 3u;
    let d = float_at(block) * (f32(low | (high << 4u)) - 32.0);
    return chunk_of(block + 4u + 8u * g, d);
}
