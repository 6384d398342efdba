// f32: a chunk is 32 bytes, one octet. Places and shape.weight_stride count 16 bytes.
const CHUNK_OCTETS: u32 = 1u;
const ROW_UNIT: u32 = 16u;

@group(0) @binding(2) var<storage, read> weights: array<vec4<f32>>;

struct Chunk {
    a: vec4<f32>,
    b: vec4<f32>,
}

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let at = values + row * shape.weight_stride + 2u * i;
    return Chunk(weights[at], weights[at + 1u]);
}

fn decode(chunk: Chunk) -> Octet {
    return Octet(chunk.a, chunk.b);
}

#import unscaled
