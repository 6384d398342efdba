// bf16, the upper halves of f32: a chunk is 16 bytes, one octet. Places and shape.weight_stride count 16 bytes.
const CHUNK_OCTETS: u32 = 1u;
const ROW_UNIT: u32 = 16u;

@group(0) @binding(2) var<storage, read> weights: array<vec4<u32>>;

struct Chunk {
    words: vec4<u32>,
}

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    return Chunk(weights[values + row * shape.weight_stride + i]);
}

fn decode(chunk: Chunk) -> Octet {
    let even = bitcast<vec4<f32>>(chunk.words << vec4<u32>(16u));
    let odd = bitcast<vec4<f32>>(chunk.words & vec4<u32>(0xffff0000u));
    return Octet(vec4<f32>(even.x, odd.x, even.y, odd.y), vec4<f32>(even.z, odd.z, even.w, odd.w));
}

#import unscaled
