//! Prefetches of x86-64, and where weights are best prefetched to.

use std::arch::x86_64::{__cpuid, _MM_HINT_NTA, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// How far ahead weights are prefetched: some hundreds of nanoseconds. A processor finds a stream by itself only after
/// waiting for its beginning, and on every page anew.
const AHEAD: usize = 6 << 10;

/// Where prefetched memory goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cache {
    First,
    Second,
    /// The first, and from there to none.
    PastSecond,
}

impl Cache {
    /// For weights that meet `n_rows` rows of activations at once, on Intel's processors. Few rows wait for memory, and more lines can
    /// be under way to the second cache than to the first; many rows wait for the first.
    #[inline(always)]
    pub(super) const fn of_intel(n_rows: usize) -> Self {
        if n_rows < 4 { Self::Second } else { Self::First }
    }
}

/// Prefetches the weights that lie [`AHEAD`] bytes after these, whether they exist or not.
#[inline(always)]
pub(super) fn prefetch_weights(weights: &[u8], cache: Cache) {
    prefetch_after(weights, AHEAD, cache);
}

/// Prefetches these bytes.
#[inline(always)]
pub(super) fn prefetch(bytes: &[u8], cache: Cache) {
    prefetch_after(bytes, 0, cache);
}

#[inline(always)]
fn prefetch_after(bytes: &[u8], ahead: usize, cache: Cache) {
    for line in (0..bytes.len()).step_by(64) {
        let line = bytes.as_ptr().wrapping_add(line + ahead).cast();
        // SAFETY: a hint that every x86-64 knows; an invalid address does nothing.
        unsafe {
            match cache {
                Cache::First => _mm_prefetch::<_MM_HINT_T0>(line),
                Cache::Second => _mm_prefetch::<_MM_HINT_T1>(line),
                Cache::PastSecond => _mm_prefetch::<_MM_HINT_NTA>(line),
            }
        }
    }
}

/// Whether AMD made this processor: `"AuthenticAMD"` in the registers that CPUID gives it in.
pub(super) fn is_amd() -> bool {
    let vendor = __cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}
