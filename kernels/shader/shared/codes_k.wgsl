// The scale and minimum of group `g` of a block of q4_K or q5_K: six bits each in twelve bytes, see src/quant/k_affine.rs.
fn line_at(block: u32, g: u32) -> vec2<f32> {
    let low = word_at(block + 2u);
    let middle = word_at(block + 4u);
    let high = word_at(block + 6u);
    let at = 8u * (g % 4u);
    let first = vec2<u32>(low >> at, middle >> at) & vec2<u32>(63u);
    let top = (vec2<u32>(low >> (at + 6u), middle >> (at + 6u)) & vec2<u32>(3u)) << vec2<u32>(4u);
    let second = (vec2<u32>(high >> at, high >> (at + 4u)) & vec2<u32>(15u)) | top;
    let line = vec2<f32>(select(second, first, g < 4u));
    return vec2<f32>(float_at(block) * line.x, -float_at(block + 1u) * line.y);
}
