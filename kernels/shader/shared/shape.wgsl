// What a dispatch is told of its experts. The struct is src/engine/gpu/structs.rs's, checked against it at build time.
#import run

// What a kernel is told of the shape of its experts; with what depends on formats alone it is compiled. Places and strides
// count 16 bytes, or words where activations are int8.
struct Shape {
    kind: u32,           // of experts (src/expert_kind.rs), 0: SiLU, 1: with biases, gates and ups cut
    is_down: u32,        // 0: gate and up, 1: down
    out: u32,            // outputs of the projection
    items: u32,          // of a row: chunks, units of columns, or columns
    x_stride: u32,       // from one row of x to the next
    result_stride: u32,  // from one row of the result to the next, in floats or words
    products: u32,       // where the products with gate and up (P, 2F) start behind all rows of h: a hub checks answers by them
    weight_stride: u32,  // from one row of weights to the next, in bytes or more (ROW_UNIT), or from one panel
    weights: u32,        // where those of gate, or of down, start in a block
    scales: u32,         // and their scales, where they lie apart
    up: u32,
    up_scales: u32,
    bias: u32,
    up_bias: u32,
}

@group(0) @binding(7) var<uniform> shape: Shape;
