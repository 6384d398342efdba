// q4_K: 144 bytes for eight groups of 32 columns; a chunk is a group.
const CHUNK_OCTETS: u32 = 4u;
const BLOCK: u32 = 72u;
#import codes
#import codes_k

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i / 8u);
    let g = i % 8u;
    let line = line_at(block, g);
    let nibbles = block + 8u + 16u * (g / 2u);
    let shift = vec4<u32>(4u * (g % 2u));
    let low = (words_at(nibbles) >> shift) & NIBBLES;
    return Chunk(low, (words_at(nibbles + 8u) >> shift) & NIBBLES, line.x, line.y);
}
