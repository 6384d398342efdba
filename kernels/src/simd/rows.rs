//! Multiplies panels of any format with some rows, and quantises rows, on a chosen instruction set.

use std::marker::PhantomData;

use super::{
    Simd,
    disjoint::Disjoint,
    format::Panel,
    isa::{Isa, Kernel, ROWS},
};
use crate::{
    WeightFormat,
    pool::Pool,
    quant::{Activations, Geometry, by_format, fill_row, with_formats},
};

/// The most rows that [`multiply`] takes.
pub(super) const MAX_ROWS: usize = 16;

/// `out[n T + t][row] = panels[n][row] . x[t]` for up to [`MAX_ROWS`] rows, T of them, of activations of its format.
pub(super) fn multiply(
    simd: Simd,
    format: WeightFormat,
    panels: &[&[u8]],
    x: &[&[i32]],
    out: &mut [[f32; ROWS]],
) {
    with_formats!(by_format format => in_tiles(simd, panels, x, out));
}

/// Takes the largest tiles first, until no row is left.
fn in_tiles<P: Panel>(simd: Simd, panels: &[&[u8]], x: &[&[i32]], out: &mut [[f32; ROWS]]) {
    let (largest, at_once) = simd.largest_tile();
    for (panels, out) in panels.chunks(at_once).zip(out.chunks_mut(at_once * x.len().max(1))) {
        let mut done = 0;
        while done < x.len() {
            done += match (x.len() - done).min(largest).min(P::MAX_TILE) {
                16.. => tile::<P, 16>(simd, panels, x, done, out),
                8..16 => tile::<P, 8>(simd, panels, x, done, out),
                4..8 => tile::<P, 4>(simd, panels, x, done, out),
                2..4 => tile::<P, 2>(simd, panels, x, done, out),
                _ => tile::<P, 1>(simd, panels, x, done, out),
            };
        }
    }
}

/// Computes T rows from `first` on; returns T.
fn tile<P: Panel, const T: usize>(
    simd: Simd,
    panels: &[&[u8]],
    x: &[&[i32]],
    first: usize,
    out: &mut [[f32; ROWS]],
) -> usize {
    let rows = *x[first..].first_chunk().expect("a tile of rows");
    let out = out.chunks_exact_mut(x.len());
    if T >= 4
        && let [a, b] = *panels
    {
        let products = simd.run(Tile::<P, T, 2> { panels: [a, b], x: rows, format: PhantomData });
        for (out, products) in out.zip(&products) {
            out[first..][..T].copy_from_slice(products);
        }
    } else {
        for (out, panel) in out.zip(panels) {
            let [products] = simd.run(Tile::<P, T, 1> { panels: [*panel], x: rows, format: PhantomData });
            out[first..][..T].copy_from_slice(&products);
        }
    }
    T
}

struct Tile<'a, P, const T: usize, const N: usize> {
    panels: [&'a [u8]; N],
    x: [&'a [i32]; T],
    format: PhantomData<P>,
}

impl<P: Panel, const T: usize, const N: usize> Kernel for Tile<'_, P, T, N> {
    type Output = [[[f32; ROWS]; T]; N];

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        let mut products = [[[f32::NAN; ROWS]; T]; N];
        if const { T > I::MAX_TILE || T > P::MAX_TILE || N > I::MAX_PANELS } {
            return products; // never asked for: compiled away
        }
        for (products, sums) in products.iter_mut().zip(P::product::<I, T, N>(isa, self.panels, self.x)) {
            for (product, sums) in products.iter_mut().zip(sums) {
                *product = isa.to_array(sums);
            }
        }
        products
    }
}

/// Quantises `x` (T, `n_cols`) for matrices of `format`, as [`Activations::fill`] does, to the bit, but on all threads.
///
/// # Panics
/// If `x` is not whole rows.
#[cfg_attr(target_arch = "wasm32", inline(never))]
pub fn fill(simd: Simd, pool: &Pool, rows: &mut Activations, format: WeightFormat, n_cols: usize, x: &[f32]) {
    let n_rows = x.len().checked_div(n_cols).unwrap_or(0);
    assert_eq!(x.len(), n_rows * n_cols, "rows of {n_cols}");
    rows.reshape(format, n_cols, n_rows);
    let (geometry, stride, words) = rows.parts_mut();
    let words = Disjoint::new(words);
    pool.run(n_rows, &|t| {
        // SAFETY: task t alone touches row t.
        let words = unsafe { words.part(t * stride..(t + 1) * stride) };
        simd.run(FillRow { geometry, x: &x[t * n_cols..][..n_cols], words });
    });
}

/// [`fill`], on the calling thread alone.
///
/// # Panics
/// As [`fill`].
pub(crate) fn fill_alone(simd: Simd, rows: &mut Activations, format: WeightFormat, n_cols: usize, x: &[f32]) {
    let n_rows = x.len().checked_div(n_cols).unwrap_or(0);
    assert_eq!(x.len(), n_rows * n_cols, "rows of {n_cols}");
    rows.reshape(format, n_cols, n_rows);
    let (geometry, stride, words) = rows.parts_mut();
    for (x, words) in x.chunks_exact(n_cols.max(1)).zip(words.chunks_exact_mut(stride)) {
        simd.run(FillRow { geometry, x, words });
    }
}

struct FillRow<'a> {
    geometry: Option<Geometry>,
    x: &'a [f32],
    words: &'a mut [i32],
}

impl Kernel for FillRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        fill_row(self.geometry, self.x, self.words);
    }
}
