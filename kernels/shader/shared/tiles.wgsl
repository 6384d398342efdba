// Up to four pairs of one expert, which share every weight that is read.
struct Tile {
    block: u32,       // where the expert's block starts in the slab, in 16 bytes
    n_pairs: u32,     // 1 to 4; 0 where there is none, for kernels of one pair
    first_pair: u32,  // the first one's row in h and y
    packed: u32,      // kernels of one pair put results in f16, the products from this word on; 0: in f32
    rows: vec4<u32>,  // where each pair's row of x starts, in 16 bytes, or in words of int8 activations
    gates: vec4<f32>,
}
