// q5_K: 176 bytes for eight groups of 32 columns; a chunk is a group.
const CHUNK_OCTETS: u32 = 4u;
const BLOCK: u32 = 88u;
#import codes
#import codes_k

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i / 8u);
    let g = i % 8u;
    let line = line_at(block, g);
    let nibbles = block + 24u + 16u * (g / 2u);
    let shift = vec4<u32>(4u * (g % 2u));
    // Bit g of byte i is column i's fifth.
    let one = vec4<u32>(0x01010101u);
    let fifth = ((words_at(block + 8u) >> vec4<u32>(g)) & one) << vec4<u32>(4u);
    let others = ((words_at(block + 16u) >> vec4<u32>(g)) & one) << vec4<u32>(4u);
    let low = ((words_at(nibbles) >> shift) & NIBBLES) | fifth;
    return Chunk(low, ((words_at(nibbles + 8u) >> shift) & NIBBLES) | others, line.x, line.y);
}
