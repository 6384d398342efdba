// What every kernel of exact arithmetic is told. The struct is src/engine/gpu/structs.rs's, checked against it at build time.

struct Run {
    first_tile: u32,  // the tile of workgroup (x, 0)
    zero: u32,        // 0, which no compiler knows
}

@group(0) @binding(0) var<uniform> run: Run;
