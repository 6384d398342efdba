//! Reproducible noise, for comparing kernels.

/// `n` values spread evenly over `-magnitude..magnitude`, the same for the same seed.
pub(crate) fn noise(seed: u64, n: usize, magnitude: f32) -> Vec<f32> {
    let value = |word: u64| ((word >> 40) as f32 / (1 << 23) as f32 - 1.0) * magnitude;
    words(seed).take(n).map(value).collect()
}

/// `n` bytes, the same for the same seed.
pub(crate) fn noise_bytes(seed: u64, n: usize) -> Vec<u8> {
    words(seed).take(n).map(|word| (word >> 56) as u8).collect()
}

/// splitmix64.
fn words(mut state: u64) -> impl Iterator<Item = u64> {
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
