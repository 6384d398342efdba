//! Splits work over threads with the feature `threads`, and runs it in sequence without. The bits are the same either
//! way: one thread computes each item whole.

/// Multiplications worth handing to another thread: some ten microseconds of them.
pub(crate) const TASK_MULTIPLICATIONS: usize = 1 << 16;

/// Runs `work` on each item.
#[cfg(feature = "threads")]
pub(crate) fn for_each<T: Send>(items: Vec<T>, work: impl Fn(T) + Sync + Send) {
    use rayon::prelude::*;
    if items.len() > 1 {
        items.into_par_iter().for_each(work);
    } else {
        items.into_iter().for_each(work);
    }
}

/// Runs `work` on each item.
#[cfg(not(feature = "threads"))]
pub(crate) fn for_each<T>(items: Vec<T>, work: impl Fn(T)) {
    items.into_iter().for_each(work);
}

/// Runs `work(i, chunk)` on each chunk of `len` values of `out`, the last one perhaps shorter.
#[cfg(feature = "threads")]
pub(crate) fn for_each_chunk(out: &mut [f32], len: usize, work: impl Fn(usize, &mut [f32]) + Sync + Send) {
    use rayon::prelude::*;
    if out.len() > len {
        out.par_chunks_mut(len).enumerate().for_each(|(i, chunk)| work(i, chunk));
    } else if !out.is_empty() {
        work(0, out);
    }
}

/// Runs `work(i, chunk)` on each chunk of `len` values of `out`, the last one perhaps shorter.
#[cfg(not(feature = "threads"))]
pub(crate) fn for_each_chunk(out: &mut [f32], len: usize, work: impl Fn(usize, &mut [f32])) {
    out.chunks_mut(len).enumerate().for_each(|(i, chunk)| work(i, chunk));
}
