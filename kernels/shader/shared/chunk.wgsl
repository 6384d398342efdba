// What formats in blocks have in common. A chunk is up to 32 columns of one scale, a byte a code, four columns a word, and a
// line from what codes stand for to weights. Places count 16 bytes, as everywhere.

@group(0) @binding(2) var<storage, read> weights: array<u32>;

struct Chunk {
    a: vec4<u32>,
    b: vec4<u32>,
    factor: f32,
    shift: f32,
}

const NIBBLES: vec4<u32> = vec4<u32>(0x0f0f0f0fu);

fn advance(chunk: Chunk) -> Chunk {
    return Chunk(vec4<u32>(chunk.a.zw, chunk.b.xy), chunk.b.zwxy, chunk.factor, chunk.shift);
}

fn scale(chunk: Chunk) -> f32 {
    return 1.0;
}
