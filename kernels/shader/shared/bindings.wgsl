// What both kernels of f32 activations read and write.

#import tile

@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> result: array<f32>;
@group(0) @binding(6) var<storage, read> biases: array<f32>;  // the slab once more


// A projection's bias for its output `out`, of biases that start at `start`, in 16 bytes.
fn bias(tile: Tile, start: u32, out: u32) -> f32 {
    return biases[4u * (tile.block + start) + out];
}

// A value for each pair, to column `out` of rows that start at `start` and lie `stride` apart.
fn write_column(tile: Tile, start: u32, stride: u32, out: u32, values: vec4<f32>) {
    let at = start + tile.first_pair * stride + out;
    result[at] = values.x;
    if tile.n_pairs > 1u {
        result[at + stride] = values.y;
    }
    if tile.n_pairs > 2u {
        result[at + 2u * stride] = values.z;
    }
    if tile.n_pairs > 3u {
        result[at + 3u * stride] = values.w;
    }
}

fn write_results(tile: Tile, out: u32, values: vec4<f32>) {
    write_column(tile, 0u, shape.result_stride, out, values);
}
