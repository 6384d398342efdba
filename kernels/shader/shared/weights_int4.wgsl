// int4-g128: a chunk is 16 bytes, 32 columns, a quarter of a group. Places and shape.weight_stride count 16 bytes; a
// row's scales, one for four chunks, follow each other as f16.
const CHUNK_OCTETS: u32 = 4u;
const ROW_UNIT: u32 = 16u;

@group(0) @binding(2) var<storage, read> weights: array<vec4<u32>>;
#ifdef SHADER_F16
// The same slab, for its scales.
@group(0) @binding(5) var<storage, read> halves: array<f16>;
#endif

struct Chunk {
    words: vec4<u32>,
    scale: f32,
}

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let group = row * (shape.weight_stride / 4u) + i / 4u;
#ifdef SHADER_F16
    let factor = f32(halves[8u * scales + group]);
#else
    // No variable index into a vector: what is not a constant there may be spilled.
    let eight = weights[scales + group / 8u];
    let four = select(eight.xy, eight.zw, (group & 4u) != 0u);
    let two = unpack2x16float(select(four.x, four.y, (group & 2u) != 0u));
    let factor = select(two.x, two.y, (group & 1u) != 0u);
#endif
    return Chunk(weights[values + row * shape.weight_stride + i], factor);
}

fn decode(chunk: Chunk) -> Octet {
    let low = vec4<u32>(0u, 4u, 8u, 12u);
    let word = vec4<u32>(chunk.words.x);
    let a = (word >> low) & vec4<u32>(15u);
    let b = (word >> (low + 16u)) & vec4<u32>(15u);
#ifdef SHADER_F16
    return Octet(vec4<f32>(vec4<f16>(a) - 8.0h), vec4<f32>(vec4<f16>(b) - 8.0h));
#else
    return Octet(vec4<f32>(a) - 8.0, vec4<f32>(b) - 8.0);
#endif
}

fn advance(chunk: Chunk) -> Chunk {
    return Chunk(chunk.words.yzwx, chunk.scale);
}

fn scale(chunk: Chunk) -> f32 {
    return chunk.scale;
}
