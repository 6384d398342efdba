// q2_K: 84 bytes for sixteen groups of 16 columns; a chunk is a group.
const CHUNK_OCTETS: u32 = 2u;
const BLOCK: u32 = 42u;
#import codes
#import pairs

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i / 16u);
    let g = i % 16u;
    let line = word_at(block + 2u * (g / 4u)) >> (8u * (g % 4u));
    let d = float_at(block + 40u) * f32(line & 15u);
    let m = float_at(block + 41u) * f32((line >> 4u) & 15u);
    return Chunk(pairs_at(block + 8u, g), vec4<u32>(), d, -m);
}
