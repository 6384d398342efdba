//! Packed matrices times rows.

use std::ops::{Range, RangeInclusive};

use super::{
    PackedView, Simd,
    disjoint::Disjoint,
    isa::ROWS,
    rows::{MAX_ROWS, multiply},
};
use crate::{pool::Pool, quant::Activations};

/// Bytes of weights handed to a thread at once: at least enough to pay for the start of a stream from memory.
const TASK_BYTES: RangeInclusive<usize> = (32 << 10)..=(256 << 10);
/// Tasks of each thread, between those bounds: so many that threads end together.
const TASKS_EACH: usize = 4;

/// `out[t][o] = sum over i of x[t][i] * w[o][i]`: rows `x` (T, in) through `w` (out, in) to `out` (T, out).
///
/// A row gets the same bits whatever other rows are with it and however many threads there are.
///
/// # Panics
/// If `x` was filled for another format or width, or `out` is not T rows.
pub fn linear(simd: Simd, pool: &Pool, w: &PackedView<'_>, x: &Activations, out: &mut [f32]) {
    linears(simd, pool, [*w], x, [out]);
}

/// [`linear`] for several matrices and the same rows, as one parallel job.
///
/// # Panics
/// As [`linear`], for any of them.
pub fn linears<const N: usize>(
    simd: Simd,
    pool: &Pool,
    w: [PackedView<'_>; N],
    x: &Activations,
    out: [&mut [f32]; N],
) {
    for (w, out) in w.iter().zip(&out) {
        let shape = w.shape();
        assert!(x.fits(shape.format, shape.cols), "activations for this matrix");
        assert_eq!(out.len(), x.n_rows() * shape.rows, "{} rows of {}", x.n_rows(), shape.rows);
    }
    let out = out.map(Disjoint::new);
    let n_bytes = w.iter().fold(0, |sum: usize, w| sum.saturating_add(w.shape().bytes()));
    let panels_each = w.map(|w| panels_of_task(pool, n_bytes, w.shape().panel_bytes()));
    let tasks: [usize; N] = std::array::from_fn(|i| w[i].shape().n_panels().div_ceil(panels_each[i]));
    pool.run(tasks.iter().sum(), &|task| {
        let (mut i, mut task) = (0, task);
        while task >= tasks[i] {
            task -= tasks[i];
            i += 1;
        }
        let end = w[i].shape().n_panels().min((task + 1) * panels_each[i]);
        panels(simd, &w[i], task * panels_each[i]..end, x, &out[i]);
    });
}

/// How many panels of so many bytes are a task of a job that reads `n_bytes` of weights.
pub(super) fn panels_of_task(pool: &Pool, n_bytes: usize, panel_bytes: usize) -> usize {
    let bytes = n_bytes / (TASKS_EACH * pool.n_threads());
    (bytes.clamp(*TASK_BYTES.start(), *TASK_BYTES.end()) / panel_bytes.max(1)).max(1)
}

/// Computes the columns of `out` that belong to these panels.
fn panels(simd: Simd, w: &PackedView<'_>, panels: Range<usize>, x: &Activations, out: &Disjoint<'_, f32>) {
    let shape = w.shape();
    for first in (0..x.n_rows()).step_by(MAX_ROWS) {
        let n = MAX_ROWS.min(x.n_rows() - first);
        let rows: [&[i32]; MAX_ROWS] = std::array::from_fn(|t| if t < n { x.row(first + t) } else { &[] });
        for panel in panels.clone().step_by(2) {
            let both: [&[u8]; 2] = std::array::from_fn(|n| w.panel((panel + n).min(panels.end - 1)));
            let n_panels = both.len().min(panels.end - panel);
            let mut products = [[0.0; ROWS]; 2 * MAX_ROWS];
            let products = &mut products[..n_panels * n];
            multiply(simd, shape.format, &both[..n_panels], &rows[..n], products);
            for (index, product) in products.iter().enumerate() {
                let (t, column) = (index % n, (panel + index / n) * ROWS);
                let width = ROWS.min(shape.rows - column);
                let start = (first + t) * shape.rows + column;
                // SAFETY: these columns are these panels', and their task's alone.
                unsafe { out.part(start..start + width) }.copy_from_slice(&product[..width]);
            }
        }
    }
}
