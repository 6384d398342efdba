// mxfp4: 17 bytes for 32 columns, an exponent, and nibbles as in q4_0; the table and its zero are src/quant/mxfp4.rs's.
const CHUNK_OCTETS: u32 = 4u;
const BLOCK: u32 = 17u;
const TABLE: vec4<u32> = vec4<u32>(0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u);
#import bytes
#import table

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let block = block_at(values, row, i);
    // 2^(e - 128): an f32's exponent field, but for the two smallest.
    let e = i32(byte_at(block));
    let d = bitcast<f32>(max((e - 1) << 23u, (e + 1) << 21u));
    let words = words_at(block + 1u);
    return Chunk(words & NIBBLES, (words >> vec4<u32>(4u)) & NIBBLES, d, -12.0 * d);
}
