// What a kernel of norms is told. The struct is src/engine/gpu/pass/structs.rs's, checked against it at build time.

struct Norm {
    has_places: u32, // whether places says which; else it is the row's own
    is_normed: u32,  // 0: only the sum is wanted
    is_rounded: u32,
    stride: u32,         // from one row of normed to the next
    result_stride: u32,  // from one row of result to the next, in words
    eps: f32,            // added to the mean of squares
}

@group(0) @binding(7) var<uniform> norm: Norm;
