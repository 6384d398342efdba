// Two bits of each column of group `g` of 16: of each 128 columns in 32 bytes, 32 neighbours in the same bits of them.
fn pairs_at(at: u32, g: u32) -> vec4<u32> {
    let words = words_at(at + 16u * (g / 8u) + 8u * (g % 2u));
    return (words >> vec4<u32>(2u * (g / 2u % 4u))) & vec4<u32>(0x03030303u);
}
