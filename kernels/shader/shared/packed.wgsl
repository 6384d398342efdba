// An answer as it travels: rows (P, D), then products (P, 2F), of which D and F are even.
#import half_bits

@group(0) @binding(5) var<storage, read_write> packed: array<u32>;  // pairs of f16
