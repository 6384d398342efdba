// int4-g128 with zero points: as int4, and a word for each group, the scale in its lower half, the zero point above.
const CHUNK_OCTETS: u32 = 4u;
const ROW_UNIT: u32 = 16u;

@group(0) @binding(2) var<storage, read> weights: array<vec4<u32>>;

struct Chunk {
    words: vec4<u32>,
    factor: f32,
    zero: f32,
}

fn load_chunk(values: u32, scales: u32, row: u32, i: u32) -> Chunk {
    let group = row * (shape.weight_stride / 4u) + i / 4u;
    // No variable index into a vector: what is not a constant there may be spilled.
    let four = weights[scales + group / 4u];
    let two = select(four.xy, four.zw, (group & 2u) != 0u);
    let word = select(two.x, two.y, (group & 1u) != 0u);
    return Chunk(weights[values + row * shape.weight_stride + i], unpack2x16float(word).x, f32((word >> 16u) & 255u));
}

fn decode(chunk: Chunk) -> Octet {
    let low = vec4<u32>(0u, 4u, 8u, 12u);
    let word = vec4<u32>(chunk.words.x);
    let a = (word >> low) & vec4<u32>(15u);
    let b = (word >> (low + 16u)) & vec4<u32>(15u);
    return Octet(vec4<f32>(a) - chunk.zero, vec4<f32>(b) - chunk.zero);
}

fn advance(chunk: Chunk) -> Chunk {
    return Chunk(chunk.words.yzwx, chunk.factor, chunk.zero);
}

fn scale(chunk: Chunk) -> f32 {
    return chunk.factor;
}
