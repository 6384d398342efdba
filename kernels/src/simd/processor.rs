//! The instructions and threads that the kernels of this module run on.

use super::{Simd, UnknownSimd, disjoint::Disjoint};
use crate::pool::Pool;

/// Values worth handing to another thread at once: some microseconds of them.
const TASK_VALUES: usize = 16 << 10;

/// An instruction set and a pool of threads.
#[derive(Debug)]
pub struct Processor {
    simd: Simd,
    pool: Pool,
}

impl Processor {
    /// A processor with `n_threads`, including the caller's.
    pub fn new(simd: Simd, n_threads: usize) -> Self {
        Self { simd, pool: Pool::new(n_threads) }
    }

    /// All threads of this machine, and the instructions that `MOEX_SIMD` names, or the best ones. For drivers.
    ///
    /// # Errors
    /// [`UnknownSimd`] if the machine has no such instructions.
    pub fn from_env() -> Result<Self, UnknownSimd> {
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self::new(Simd::from_env()?, n_threads))
    }

    /// Its instructions.
    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// Its threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Runs `work(t, row)` for each row (T, `width`) of `rows`, on all threads if there are many.
    ///
    /// # Panics
    /// If `rows` is not whole rows.
    pub fn each_row(&self, rows: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        let n_rows = rows.len().checked_div(width).unwrap_or(0);
        assert_eq!(rows.len(), n_rows * width, "rows of {width}");
        let rows_each = (TASK_VALUES / width.max(1)).max(1);
        let rows = Disjoint::new(rows);
        self.pool.run(n_rows.div_ceil(rows_each), &|task| {
            for t in task * rows_each..n_rows.min((task + 1) * rows_each) {
                // SAFETY: task `t / rows_each` alone touches row `t`.
                work(t, unsafe { rows.part(t * width..(t + 1) * width) });
            }
        });
    }

    /// [`Self::each_row`] of two buffers with as many rows, (T, width) each: `work(t, row of a, row of b)`.
    ///
    /// # Panics
    /// If one is not whole rows, or has more than the other.
    pub fn each_two_rows(
        &self,
        (a, a_width): (&mut [f32], usize),
        (b, b_width): (&mut [f32], usize),
        work: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
    ) {
        assert_eq!(a.len() * b_width, b.len() * a_width, "two buffers with as many rows");
        let b = Disjoint::new(b);
        self.each_row(a, a_width, |t, a| {
            // SAFETY: only the task that works on row `t` of `a` touches row `t` of `b`.
            work(t, a, unsafe { b.part(t * b_width..(t + 1) * b_width) });
        });
    }
}
