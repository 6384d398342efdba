//! The instructions and threads that the kernels of this module run on.

use std::ops::RangeInclusive;

use super::{Simd, UnknownSimd, disjoint::Disjoint};
use crate::pool::Pool;

/// Values handed to a thread at once: as many as each gets, if that is worth a task and takes no more than some microseconds.
const TASK_VALUES: RangeInclusive<usize> = (1 << 10)..=(16 << 10);

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
        self.each_row_reading(rows, width, width, work);
    }

    /// [`Self::each_row`] whose work reads `n_read` values a row.
    ///
    /// # Panics
    /// As [`Self::each_row`].
    pub fn each_row_reading(
        &self,
        rows: &mut [f32],
        width: usize,
        n_read: usize,
        work: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let n_rows = rows.len().checked_div(width).unwrap_or(0);
        assert_eq!(rows.len(), n_rows * width, "rows of {width}");
        let values_each = n_rows * n_read / self.pool.n_threads();
        let rows_each = (values_each.clamp(*TASK_VALUES.start(), *TASK_VALUES.end()) / n_read.max(1)).max(1);
        let rows = Disjoint::new(rows);
        self.pool.run(n_rows.div_ceil(rows_each), &|task| {
            for t in task * rows_each..n_rows.min((task + 1) * rows_each) {
                // SAFETY: task `t / rows_each` alone touches row `t`.
                work(t, unsafe { rows.part(t * width..(t + 1) * width) });
            }
        });
    }

    /// Runs `work(rows of a, rows of b, rows of c)` for `rows_each` rows at a time of three buffers with as many rows, (T, width)
    /// each, on all threads.
    ///
    /// # Panics
    /// If one is not whole rows, or has more or fewer than another.
    pub fn each_rows<A: Send, B: Send, C: Send>(
        &self,
        rows_each: usize,
        (a, a_width): (&mut [A], usize),
        (b, b_width): (&mut [B], usize),
        (c, c_width): (&mut [C], usize),
        work: impl Fn(&mut [A], &mut [B], &mut [C]) + Sync,
    ) {
        let n_rows = a.len().checked_div(a_width).unwrap_or(0);
        let lengths = [a_width, b_width, c_width].map(|width| n_rows * width);
        assert_eq!([a.len(), b.len(), c.len()], lengths, "three buffers with as many rows");
        let (a, b, c) = (Disjoint::new(a), Disjoint::new(b), Disjoint::new(c));
        self.pool.run(n_rows.div_ceil(rows_each), &|task| {
            let (first, end) = (task * rows_each, n_rows.min((task + 1) * rows_each));
            let rows = |width: usize| first * width..end * width;
            // SAFETY: these rows of each buffer are this task's alone.
            unsafe { work(a.part(rows(a_width)), b.part(rows(b_width)), c.part(rows(c_width))) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_buffers_are_cut_at_the_same_rows() {
        let processor = Processor::new(Simd::detect(), 3);
        for n_rows in [0, 1, 7, 16, 50] {
            let (mut a, mut b, mut c) =
                (vec![0_u8; 2 * n_rows], vec![0_u16; n_rows], vec![0_u32; 3 * n_rows]);
            b.iter_mut().zip(0..).for_each(|(b, row)| *b = row);
            processor.each_rows(8, (&mut a, 2), (&mut b, 1), (&mut c, 3), |a, b, c| {
                for (b, (a, c)) in b.iter().zip(a.chunks_exact_mut(2).zip(c.chunks_exact_mut(3))) {
                    a.fill(*b as u8);
                    c.fill(u32::from(*b));
                }
            });
            let of_row = |n: usize| (0..n_rows).flat_map(move |row| std::iter::repeat_n(row, n));
            assert!(a.iter().map(|a| usize::from(*a)).eq(of_row(2)), "{n_rows} rows");
            assert!(c.iter().map(|c| *c as usize).eq(of_row(3)), "{n_rows} rows");
        }
    }
}
