// Panels of sixteen rows of floats.

override FLOAT_BITS: u32;  // 16, 32, or 17 for bf16

@group(0) @binding(2) var<storage, read> weights: array<u32>;

// Weight `i` of a panel that starts at `panel`, in words.
fn weight(panel: u32, i: u32) -> f32 {
    if FLOAT_BITS == 32u {
        return bitcast<f32>(weights[panel + i]);
    }
    let two = weights[panel + i / 2u];
    if FLOAT_BITS == 16u {
        return unpack2x16float(two)[i % 2u];
    }
    return bitcast<f32>((two >> (16u * (i % 2u))) << 16u);
}
