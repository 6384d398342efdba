//! A matrix in any format, seen through its bytes.

use super::{Encoding, Parts, ShapeError, WeightFormat, float};

/// A row-major (rows, cols) = (out, in) matrix over borrowed bytes whose length has been checked.
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a> {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> MatrixView<'a> {
    /// The matrix in `bytes`, at any alignment.
    ///
    /// # Errors
    /// [`ShapeError::MatrixLength`] unless `bytes` has [`WeightFormat::matrix_bytes`] bytes.
    pub fn new(format: WeightFormat, rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, ShapeError> {
        let expected = format.matrix_bytes(rows, cols);
        if bytes.len() != expected {
            return Err(ShapeError::MatrixLength { format, rows, cols, expected, actual: bytes.len() });
        }
        Ok(Self { format, rows, cols, bytes })
    }

    /// The matrix over f32 values as they lie in memory.
    ///
    /// # Errors
    /// [`ShapeError::MatrixLength`] unless there are `rows * cols` values.
    #[cfg(target_endian = "little")]
    pub fn of_f32(rows: usize, cols: usize, values: &'a [f32]) -> Result<Self, ShapeError> {
        Self::new(WeightFormat::F32, rows, cols, bytemuck::cast_slice(values))
    }

    /// How its weights are stored.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Its rows, the width of its output.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Its columns, the width of its input.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Its bytes as stored.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Row `row` as f32 (cols), written to `out`.
    ///
    /// # Panics
    /// If there is no such row or `out` has another length.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "columns of a row");
        match self.format.encoding() {
            Encoding::Float { decode, .. } => decode(self.values(row), out),
            Encoding::Integer { decode_row, .. } => decode_row(self.values(row), self.scales(row), out),
        }
    }

    /// Opens block `block` of row `row`, a multiple of [`WeightFormat::block_cols`] columns in. A float format has none
    /// and leaves `parts` alone.
    pub(crate) fn read_block(&self, row: usize, block: usize, parts: &mut Parts) {
        if let Some(definition) = self.format.definition() {
            let (block, parameters) = definition.block(self.values(row), self.scales(row), block);
            definition.read(block, parameters, parts);
        }
    }

    /// Row `row` as f32 (cols): borrowed if it is f32 already, otherwise decoded into `scratch` (cols).
    ///
    /// # Panics
    /// As [`Self::dequantize_row`].
    pub fn row<'s>(&self, row: usize, scratch: &'s mut [f32]) -> &'s [f32]
    where
        'a: 's,
    {
        if self.format == WeightFormat::F32
            && let Some(values) = float::borrow_f32(self.values(row))
        {
            return values;
        }
        self.dequantize_row(row, scratch);
        scratch
    }

    /// The whole matrix as f32 (rows, cols).
    pub fn dequantize(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.cols];
        for (row, out) in values.chunks_exact_mut(self.cols.max(1)).enumerate() {
            self.dequantize_row(row, out);
        }
        values
    }

    /// The blocks or values of row `row`.
    pub(crate) fn values(&self, row: usize) -> &'a [u8] {
        let row_bytes = self.format.value_bytes(1, self.cols);
        &self.bytes[row * row_bytes..][..row_bytes]
    }

    /// The parameters of its blocks, where they have a plane of their own.
    pub(crate) fn scales(&self, row: usize) -> &'a [u8] {
        let plane = &self.bytes[self.format.value_bytes(self.rows, self.cols)..];
        let row_bytes = self.format.scale_bytes(1, self.cols);
        &plane[row * row_bytes..][..row_bytes]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn another_length_is_no_matrix() {
        for format in WeightFormat::ALL {
            let n = format.matrix_bytes(3, 130);
            assert!(MatrixView::new(format, 3, 130, &vec![0; n]).is_ok());
            assert!(MatrixView::new(format, 3, 130, &vec![0; n + 1]).is_err());
            assert!(MatrixView::new(format, 3, 130, &vec![0; n - 1]).is_err());
            assert!(MatrixView::new(format, usize::MAX, usize::MAX / 2, &[]).is_err());
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for format in WeightFormat::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("q4_9".parse::<WeightFormat>().is_err());
    }

    proptest! {
        #[test]
        fn floats_come_back_to_their_last_bit(rows in 1_usize..4, cols in 1_usize..40, seed in any::<u64>(), shift in 0_usize..3) {
            let values = crate::noise::noise(seed, rows * cols, 3.0);
            for (format, relative, absolute) in [
                (WeightFormat::F32, 0.0, 0.0),
                // 1e-7: values below f16's smallest normal number lose more than their last bit.
                (WeightFormat::F16, 1.0 / 2048.0, 1e-7),
                (WeightFormat::Bf16, 1.0 / 256.0, 0.0),
            ] {
                // At any alignment, as in files.
                let mut bytes = vec![0; shift];
                bytes.extend(format.quantize(rows, cols, &values));
                let matrix = MatrixView::new(format, rows, cols, &bytes[shift..]).unwrap();
                let mut scratch = vec![0.0; cols];
                for (row, expected) in values.chunks(cols).enumerate() {
                    for (a, b) in matrix.row(row, &mut scratch).iter().zip(expected) {
                        prop_assert!((a - b).abs() <= relative * b.abs() + absolute);
                    }
                }
            }
        }
    }
}
