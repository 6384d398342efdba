// What a dispatch is told. The structs are src/engine/gpu/structs.rs's, checked against it at build time.

// Up to four pairs of one expert, which share every weight that is read.
struct Tile {
    block: u32,       // where the expert's block starts in the slab, in 16 bytes
    n_pairs: u32,     // 1 to 4
    first_pair: u32,  // the first one's row in h and y
    reserved: u32,
    rows: vec4<u32>,  // where each pair's row of x starts, in 16 bytes, or in words of int8 activations
    gates: vec4<f32>,
}

struct Run {
    first_tile: u32,  // the tile of workgroup (x, 0)
    zero: u32,        // 0, which no compiler knows
}

@group(0) @binding(0) var<uniform> run: Run;
@group(0) @binding(1) var<storage, read> tiles: array<Tile>;
