//! The matrices of these tests' models.

use crate::{MatrixView, WeightFormat, graph::MatrixSource, noise::noise};

/// Its format, rows, columns and blocks.
#[derive(Debug)]
pub(super) struct Matrix(WeightFormat, usize, usize, Vec<u8>);

impl Matrix {
    pub(super) fn noise(seed: u64, format: WeightFormat, rows: usize, cols: usize) -> Self {
        Self::of(format, (rows, cols), &noise(seed, rows * cols, 0.2))
    }

    /// Of these values (rows, cols).
    pub(super) fn of(format: WeightFormat, (rows, cols): (usize, usize), values: &[f32]) -> Self {
        let mut read = |row: usize, out: &mut [f32]| out.copy_from_slice(&values[row * cols..][..cols]);
        Self(format, rows, cols, format.quantize_rows(rows, cols, &mut read))
    }

    /// With zeros in its first row.
    pub(super) fn beginning_with_zeros(mut self) -> Self {
        let row_bytes = self.3.len() / self.1;
        self.3[..row_bytes].fill(0);
        self
    }
}

impl MatrixSource for Matrix {
    fn shape(&self) -> (usize, usize) {
        (self.1, self.2)
    }

    fn format(&self) -> WeightFormat {
        self.0
    }

    fn view(&self) -> MatrixView<'_> {
        MatrixView::new(self.0, self.1, self.2, &self.3).unwrap()
    }

    fn read(&self, read: &mut dyn FnMut(MatrixView<'_>)) {
        read(self.view());
    }
}
