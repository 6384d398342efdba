// What the kernels of attention are told, read and write.
#import step

struct Attend {
    n_heads: u32,     // H
    n_kv_heads: u32,  // G
    columns: u32,     // C
    scale: f32,       // of each product
}

@group(0) @binding(3) var<storage, read> q: array<vec4<f32>>;           // (T, H, C)
@group(0) @binding(4) var<storage, read_write> result: array<f32>;      // (T, H, splits, C + 2): sums, the largest score, their weight
@group(0) @binding(7) var<uniform> attention: Attend;
@group(0) @binding(8) var<storage, read> pages: array<vec4<u32>>;       // (pages, keys and values, G, 32, C / 8), f16

const PAGE: u32 = 32u;
const LOWEST: f32 = -3.4028235e38;
