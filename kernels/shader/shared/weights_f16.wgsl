// f16: a chunk is 16 bytes, one octet. Places and shape.weight_stride count 16 bytes.
const CHUNK_OCTETS: u32 = 1u;
const ROW_UNIT: u32 = 16u;

#ifdef SHADER_F16
@group(0) @binding(2) var<storage, read> weights: array<vec4<f16>>;

struct Chunk {
    a: vec4<f16>,
    b: vec4<f16>,
}

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let at = 2u * (values + row * shape.weight_stride + i);
    return Chunk(weights[at], weights[at + 1u]);
}

fn decode(chunk: Chunk) -> Octet {
    return Octet(vec4<f32>(chunk.a), vec4<f32>(chunk.b));
}
#else
@group(0) @binding(2) var<storage, read> weights: array<vec4<u32>>;

struct Chunk {
    words: vec4<u32>,
}

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    return Chunk(weights[values + row * shape.weight_stride + i]);
}

fn decode(chunk: Chunk) -> Octet {
    return Octet(
        vec4<f32>(unpack2x16float(chunk.words.x), unpack2x16float(chunk.words.y)),
        vec4<f32>(unpack2x16float(chunk.words.z), unpack2x16float(chunk.words.w)),
    );
}
#endif

#import unscaled
