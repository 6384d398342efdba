//! Bounds of the latency models' inputs.

/// The longest time accepted, milliseconds: eleven days.
pub const MAX_TIME_MS: f64 = 1e9;
/// The widest log-normal accepted. At 5 the mean is already 268,000 times the median.
pub const MAX_SIGMA: f64 = 5.0;
/// The most samples an empirical distribution keeps.
pub const MAX_SAMPLE_COUNT: usize = 65_536;
/// The most draws one estimate may ask for.
pub const MAX_DRAWS: u64 = 1_000_000_000;
/// The most experts a phase may wait for.
pub const MAX_CALLS: u32 = 65_536;
/// The most workers that one expert may be requested from.
pub const MAX_COPIES: usize = 16;
/// The most cuts of an integral: mostly the samples of empirical latencies.
pub const MAX_CUTS: usize = 1 << 20;
