// Blocks whose codes are numbers of up to eight bits.
#import halves

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
