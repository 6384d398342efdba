// f16 where the shader language has none: a chunk is 16 bytes, one octet. Places and ROW count 16 bytes.
const CHUNK_OCTETS: u32 = 1u;

@group(0) @binding(2) var<storage, read> weights: array<vec4<u32>>;

struct Chunk {
    words: vec4<u32>,
}

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    return Chunk(weights[values + row * ROW + i]);
}

fn decode(chunk: Chunk) -> Octet {
    return Octet(
        vec4<f32>(unpack2x16float(chunk.words.x), unpack2x16float(chunk.words.y)),
        vec4<f32>(unpack2x16float(chunk.words.z), unpack2x16float(chunk.words.w)),
    );
}

#import unscaled
