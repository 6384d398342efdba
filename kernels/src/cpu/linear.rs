//! A matrix times rows.

use super::{dot, parallel};
use crate::MatrixView;

/// `out[t][o] = sum over i of x[t][i] * w[o][i]`: rows `x` (T, in) through `w` (out, in) to `out` (T, out).
///
/// Each row of weights is decoded once and meets all T rows of `x`.
///
/// # Panics
/// If the lengths do not fit one T.
pub fn linear(x: &[f32], w: &MatrixView<'_>, out: &mut [f32]) {
    let (n_in, n_out) = (w.cols(), w.rows());
    if n_in == 0 || n_out == 0 {
        return out.fill(0.0);
    }
    let n_rows = x.len() / n_in; // T
    assert_eq!(x.len(), n_rows * n_in, "rows of {n_in}");
    assert_eq!(out.len(), n_rows * n_out, "{n_rows} rows of {n_out}");
    if n_rows == 1 {
        return outputs(x, w, out);
    }
    let mut by_output = vec![0.0; out.len()]; // (out, T), so that a thread writes one piece
    outputs(x, w, &mut by_output);
    for (t, row) in out.chunks_exact_mut(n_out).enumerate() {
        for (value, column) in row.iter_mut().zip(by_output.chunks_exact(n_rows)) {
            *value = column[t];
        }
    }
}

/// Computes `out` (out, T).
fn outputs(x: &[f32], w: &MatrixView<'_>, out: &mut [f32]) {
    let (n_in, n_rows) = (w.cols(), x.len() / w.cols());
    if n_rows == 0 {
        return;
    }
    let weight_rows = (parallel::TASK_MULTIPLICATIONS / x.len()).max(1);
    parallel::for_each_chunk(out, weight_rows * n_rows, |chunk, out| {
        let mut scratch = vec![0.0; n_in];
        for (i, out) in out.chunks_exact_mut(n_rows).enumerate() {
            let weights = w.row(chunk * weight_rows + i, &mut scratch);
            for (value, x) in out.iter_mut().zip(x.chunks_exact(n_in)) {
                *value = dot(x, weights);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{WeightFormat, nmse, noise::noise};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn is_the_product_and_a_row_keeps_its_bits_in_any_batch(
            n_rows in 1_usize..6,
            n_in in 1_usize..300,
            n_out in 1_usize..300,
            format in prop::sample::select(&WeightFormat::ALL[..]),
            seed in any::<u64>(),
        ) {
            let x = noise(seed, n_rows * n_in, 1.0);
            let bytes = format.quantize(n_out, n_in, &noise(seed ^ 1, n_out * n_in, 1.0));
            let w = MatrixView::new(format, n_out, n_in, &bytes).unwrap();
            let mut out = vec![f32::NAN; n_rows * n_out];
            linear(&x, &w, &mut out);

            let weights = w.dequantize();
            let exact: Vec<f32> = x
                .chunks(n_in)
                .flat_map(|x| weights.chunks(n_in).map(|w| {
                    x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>() as f32
                }))
                .collect();
            prop_assert!(nmse(&out, &exact) < 1e-10);

            for (x, together) in x.chunks(n_in).zip(out.chunks(n_out)) {
                let mut alone = vec![f32::NAN; n_out];
                linear(x, &w, &mut alone);
                prop_assert_eq!(&alone, together);
            }
        }
    }

    #[cfg(feature = "threads")]
    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let (n_rows, n_in, n_out) = (3, 700, 900);
        let x = noise(1, n_rows * n_in, 1.0);
        let bytes = WeightFormat::Int4G128.quantize(n_out, n_in, &noise(2, n_out * n_in, 1.0));
        let w = MatrixView::new(WeightFormat::Int4G128, n_out, n_in, &bytes).unwrap();
        let with_threads = |n| {
            let mut out = vec![f32::NAN; n_rows * n_out];
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
            pool.install(|| linear(&x, &w, &mut out));
            out
        };
        assert_eq!(with_threads(1), with_threads(7));
    }

    #[test]
    fn nothing_in_gives_nothing_or_zeros() {
        let w = MatrixView::new(WeightFormat::F32, 2, 0, &[]).unwrap();
        let mut out = [f32::NAN; 2];
        linear(&[], &w, &mut out);
        assert_eq!(out, [0.0; 2]);
        let bytes = [0; 24];
        linear(&[], &MatrixView::new(WeightFormat::F32, 2, 3, &bytes).unwrap(), &mut []);
    }
}
