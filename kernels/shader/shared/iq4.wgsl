// The table of iq4_nl and iq4_xs, 128 above its values, as in src/quant/iq4.rs.
const TABLE: vec4<u32> = vec4<u32>(0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u);
#import halves
#import table

// 32 columns with nibbles at `at`.
fn chunk_of(at: u32, d: f32) -> Chunk {
    let words = words_at(at);
    return Chunk(words & NIBBLES, (words >> vec4<u32>(4u)) & NIBBLES, d, -128.0 * d);
}
