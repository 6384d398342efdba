// What llama.cpp's formats have in common: blocks of bytes at any even place, codes of up to eight bits, and a line from
// codes to weights. A chunk is up to 32 columns of one scale, a byte a code, four columns a word. Places count 16 bytes, as
// everywhere; ROW, the blocks and what is read of them count halves of a word.

const ROW_UNIT: u32 = 2u;

@group(0) @binding(2) var<storage, read> weights: array<u32>;

struct Chunk {
    a: vec4<u32>,
    b: vec4<u32>,
    factor: f32,
    shift: f32,
}

const NIBBLES: vec4<u32> = vec4<u32>(0x0f0f0f0fu);

// Where block i of a row starts.
fn block_at(values: u32, row: u32, i: u32) -> u32 {
    return 8u * values + row * ROW + i * BLOCK;
}

// The four bytes from `at` on.
fn word_at(at: u32) -> u32 {
    let word = weights[at / 2u];
    if (at & 1u) == 0u {
        return word;
    }
    return (word >> 16u) | (weights[at / 2u + 1u] << 16u);
}

fn words_at(at: u32) -> vec4<u32> {
    return vec4<u32>(word_at(at), word_at(at + 2u), word_at(at + 4u), word_at(at + 6u));
}

fn float_at(at: u32) -> f32 {
    let two = unpack2x16float(weights[at / 2u]);
    return select(two.x, two.y, (at & 1u) != 0u);
}

// Sixteen bits as the fifth bits of sixteen codes.
fn fifth_bits(bits: u32) -> vec4<u32> {
    let four = (vec4<u32>(bits) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    return ((four & vec4<u32>(1u)) << vec4<u32>(4u)) | ((four & vec4<u32>(2u)) << vec4<u32>(11u))
        | ((four & vec4<u32>(4u)) << vec4<u32>(18u)) | ((four & vec4<u32>(8u)) << vec4<u32>(25u));
}

fn decode(chunk: Chunk) -> Octet {
    let places = vec4<u32>(0u, 8u, 16u, 24u);
    let a = vec4<f32>((vec4<u32>(chunk.a.x) >> places) & vec4<u32>(255u));
    let b = vec4<f32>((vec4<u32>(chunk.a.y) >> places) & vec4<u32>(255u));
    return Octet(a * chunk.factor + chunk.shift, b * chunk.factor + chunk.shift);
}

fn advance(chunk: Chunk) -> Chunk {
    return Chunk(vec4<u32>(chunk.a.zw, chunk.b.xy), chunk.b.zwxy, chunk.factor, chunk.shift);
}

fn scale(chunk: Chunk) -> f32 {
    return 1.0;
}
