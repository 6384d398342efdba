// What the kernels of attention are told. The struct is src/engine/gpu/pass/structs.rs's, checked against it at build time.
#import step
#import pages

struct Attend {
    n_heads: u32,     // H
    n_kv_heads: u32,  // G
    columns: u32,     // C
    scale: f32,       // of each product
}

const LOWEST: f32 = -3.4028235e38;
