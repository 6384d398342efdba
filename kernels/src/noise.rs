//! Reproducible noise, for comparing kernels.

/// `n` values spread evenly over `-magnitude..magnitude`, the same for the same seed (splitmix64).
pub(crate) fn noise(seed: u64, n: usize, magnitude: f32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next() * magnitude).collect()
}
