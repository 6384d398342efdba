// Where keys and values are in the cache (pages, keys and values, G, HEAD). A head of a page has 32 positions: in f16 (32, C); in
// q8_0 codes (32, C), then their scales (32, scale_words), f16, the first of a pair of units in the lower half of a word.

override IS_Q8_0: bool;

const PAGE: u32 = 32u;  // positions
const KV_UNIT: u32 = 32u;  // columns of a scale

// Words of a position's scales: none of them has another position's, so that rows are written side by side.
fn scale_words(columns: u32) -> u32 {
    return (columns + 2u * KV_UNIT - 1u) / (2u * KV_UNIT);
}

// Words of a head of a page.
fn head_words(columns: u32) -> u32 {
    return select(PAGE * columns / 2u, PAGE * (columns / 4u + scale_words(columns)), IS_Q8_0);
}
