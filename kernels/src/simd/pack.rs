//! Matrices repacked into panels of sixteen rows.

use half::f16;

use super::{
    disjoint::Disjoint,
    format::{BlockLayout, UNIT},
    isa::{QUAD_BYTES, ROWS},
};
use crate::{
    MatrixView, ShapeError, WeightFormat,
    pool::Pool,
    quant::{Geometry, Parts},
};

#[cfg(not(target_arch = "wasm32"))]
use super::words;

/// Panels start at multiples of this, a cache line.
const PANEL_ALIGN: usize = 64;

/// The shape and format of a packed matrix.
///
/// Rows are filled up with zeros to whole panels, columns to whole blocks. A panel of an integer format is what the
/// private trait `Format` draws; of a float format, for each column the values of its sixteen rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedShape {
    /// How its weights are stored.
    pub format: WeightFormat,
    /// Its rows, the width of what it gives.
    pub rows: usize,
    /// Its columns, the width of what it takes.
    pub cols: usize,
}

/// A packed matrix over borrowed bytes whose length has been checked.
#[derive(Clone, Copy, Debug)]
pub struct PackedView<'a> {
    shape: PackedShape,
    bytes: &'a [u8],
}

impl PackedShape {
    /// The shape of a matrix.
    pub fn of(matrix: &MatrixView<'_>) -> Self {
        Self { format: matrix.format(), rows: matrix.rows(), cols: matrix.cols() }
    }

    /// The bytes of all panels; `usize::MAX`, which no slice reaches, if they cannot be addressed.
    pub fn bytes(&self) -> usize {
        self.n_panels().saturating_mul(self.panel_bytes())
    }

    /// Packs `matrix`, of this shape, into `out` ([`Self::bytes`]), on all threads of `pool`.
    ///
    /// # Panics
    /// If one of them has another shape.
    pub fn pack(&self, pool: &Pool, matrix: &MatrixView<'_>, out: &mut [u8]) {
        assert_eq!(*self, Self::of(matrix), "the shape of the matrix");
        assert_eq!(out.len(), self.bytes(), "bytes of the panels");
        let panel_bytes = self.panel_bytes();
        let out = Disjoint::new(out);
        pool.run(self.n_panels(), &|index| {
            // SAFETY: task `index` alone touches panel `index`.
            let panel = unsafe { out.part(index * panel_bytes..(index + 1) * panel_bytes) };
            self.pack_panel(matrix, index, panel);
        });
    }

    /// [`Self::pack`] for a matrix in any format: one of another is rounded to this one, panel by panel.
    ///
    /// # Panics
    /// If the matrix or `out` has another shape.
    pub fn pack_as(&self, pool: &Pool, matrix: &MatrixView<'_>, out: &mut [u8]) {
        if matrix.format() == self.format {
            return self.pack(pool, matrix, out);
        }
        assert_eq!((matrix.rows(), matrix.cols()), (self.rows, self.cols), "the shape of the matrix");
        assert_eq!(out.len(), self.bytes(), "bytes of the panels");
        let panel_bytes = self.panel_bytes();
        let out = Disjoint::new(out);
        pool.run(self.n_panels(), &|index| {
            let rows = index * ROWS..self.rows.min((index + 1) * ROWS);
            let mut values = vec![0.0; rows.len() * self.cols];
            for (values, row) in values.chunks_exact_mut(self.cols.max(1)).zip(rows.clone()) {
                matrix.dequantize_row(row, values);
            }
            let bytes = self.format.quantize(rows.len(), self.cols, &values);
            let part = MatrixView::new(self.format, rows.len(), self.cols, &bytes)
                .expect("what was just quantised has its length");
            // SAFETY: task `index` alone touches panel `index`.
            let panel = unsafe { out.part(index * panel_bytes..(index + 1) * panel_bytes) };
            Self { rows: rows.len(), ..*self }.pack_panel(&part, 0, panel);
        });
    }

    /// The matrix packed in `bytes`; kernels are fastest where they start at a cache line.
    ///
    /// # Errors
    /// [`ShapeError::BlockLength`] unless there are [`Self::bytes`].
    pub fn view(self, bytes: &[u8]) -> Result<PackedView<'_>, ShapeError> {
        if bytes.len() != self.bytes() {
            return Err(ShapeError::BlockLength { expected: self.bytes(), actual: bytes.len() });
        }
        Ok(PackedView { shape: self, bytes })
    }

    /// Panels of sixteen rows.
    pub(super) fn n_panels(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }

    pub(super) fn panel_bytes(&self) -> usize {
        let bytes = match self.format.geometry() {
            Some(geometry) => {
                let layout = BlockLayout::of(geometry, self.format.code_bits());
                let block_bytes = layout.code_bytes + layout.parameter_bytes;
                self.cols.div_ceil(geometry.cols).saturating_mul(block_bytes)
            }
            None => {
                let cols = self.cols.div_ceil(UNIT).saturating_mul(UNIT);
                self.format.matrix_bytes(1, cols).saturating_mul(ROWS)
            }
        };
        bytes.checked_next_multiple_of(PANEL_ALIGN).unwrap_or(usize::MAX)
    }

    /// Panel `index`, rows `16 index` and on, to `out` ([`Self::panel_bytes`]).
    pub(super) fn pack_panel(&self, matrix: &MatrixView<'_>, index: usize, out: &mut [u8]) {
        let rows = index * ROWS..self.rows.min((index + 1) * ROWS);
        out.fill(0);
        match self.format.geometry() {
            Some(geometry) => {
                let layout = BlockLayout::of(geometry, self.format.code_bits());
                let n_blocks = self.cols.div_ceil(geometry.cols);
                let (codes, parameters) = out.split_at_mut(n_blocks * layout.code_bytes);
                let parameters = &mut parameters[..n_blocks * layout.parameter_bytes];
                #[cfg(not(target_arch = "wasm32"))]
                if rows.len() == ROWS && words::pack_panel(matrix, rows.start, layout, codes, parameters) {
                    return;
                }
                let codes = codes.chunks_exact_mut(layout.code_bytes);
                let parameters = parameters.chunks_exact_mut(layout.parameter_bytes);
                let mut parts: [Parts; ROWS] = std::array::from_fn(|_| Parts::zeros(geometry));
                for (block, (codes, parameters)) in codes.zip(parameters).enumerate() {
                    for (parts, row) in parts.iter_mut().zip(rows.clone()) {
                        matrix.read_block(row, block, parts);
                    }
                    pack_codes(geometry, self.format.code_bits(), &parts, codes);
                    pack_parameters(geometry, layout, &parts, parameters);
                }
            }
            None => {
                let bytes = &matrix.bytes()[self.format.matrix_bytes(rows.start, self.cols)..];
                match self.format {
                    WeightFormat::F32 => pack_values::<4>(self.cols, rows.len(), bytes, out),
                    _ => pack_values::<2>(self.cols, rows.len(), bytes, out),
                }
            }
        }
    }
}

impl<'a> PackedView<'a> {
    /// Its shape and format.
    pub fn shape(&self) -> PackedShape {
        self.shape
    }

    pub(super) fn panel(&self, index: usize) -> &'a [u8] {
        let n = self.shape.panel_bytes();
        &self.bytes[index * n..][..n]
    }
}

impl Parts {
    /// A block of zeros.
    fn zeros(geometry: Geometry) -> Self {
        let zero = geometry.zero.unwrap_or(0);
        Self { zero, codes: [zero; _], ..Self::default() }
    }
}

/// Rows of values of N bytes, column by column.
fn pack_values<const N: usize>(cols: usize, n_rows: usize, bytes: &[u8], out: &mut [u8]) {
    for (row, values) in bytes.chunks_exact((cols * N).max(1)).take(n_rows).enumerate() {
        for (column, value) in out.chunks_exact_mut(ROWS * N).zip(values.as_chunks::<N>().0) {
            column[row * N..(row + 1) * N].copy_from_slice(value);
        }
    }
}

fn pack_codes(geometry: Geometry, bits: u32, parts: &[Parts; ROWS], out: &mut [u8]) {
    let unit_bytes = out.len() / (geometry.cols / UNIT);
    for (unit, out) in out.chunks_exact_mut(unit_bytes).enumerate() {
        let (vectors, _) = out.as_chunks_mut::<QUAD_BYTES>();
        for (row, parts) in parts.iter().enumerate() {
            let (codes, _) = parts.codes[unit * UNIT..][..UNIT].as_chunks::<4>();
            for column in 0..4 {
                let place = 4 * row + column;
                if bits == 8 {
                    for (vector, codes) in vectors.iter_mut().zip(codes) {
                        vector[place] = codes[column];
                    }
                    continue;
                }
                for v in 0..4 {
                    vectors[v][place] = codes[v][column] & 15 | codes[v + 4][column] << 4;
                }
                match bits {
                    5 => {
                        let bit = |q: usize| (codes[q][column] >> 4 & 1) << q;
                        vectors[4][place] = (0..8).map(bit).fold(0, |a, b| a | b);
                    }
                    6 => {
                        for half in 0..2 {
                            let pair = |q: usize| (codes[4 * half + q][column] >> 4 & 3) << (2 * q);
                            vectors[4 + half][place] = (0..4).map(pair).fold(0, |a, b| a | b);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

fn pack_parameters(geometry: Geometry, layout: BlockLayout, parts: &[Parts; ROWS], out: &mut [u8]) {
    for (row, parts) in parts.iter().enumerate() {
        let mut half = |at: usize, value: f32| {
            out[at + 2 * row..][..2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        };
        half(0, parts.d);
        if let Some(at) = layout.m {
            half(at, parts.m);
        }
        if let Some(at) = layout.zeros {
            out[at + row] = parts.zero;
        }
        for g in 0..geometry.n_groups() {
            if let Some(at) = layout.scales {
                out[at + g * ROWS + row] = parts.scales[g] as u8;
            }
            if let Some(at) = layout.mins {
                out[at + g / 2 * 2 * ROWS + 2 * row + g % 2] = parts.mins[g];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;

    #[test]
    fn the_short_way_gives_the_same_panels() {
        for format in WeightFormat::ALL {
            let Some(geometry) = format.geometry() else { continue };
            let (rows, cols) = (ROWS, 2 * geometry.cols);
            let bytes = format.quantize(rows, cols, &noise(7, rows * cols, 0.3));
            let matrix = MatrixView::new(format, rows, cols, &bytes).unwrap();
            let shape = PackedShape::of(&matrix);
            let layout = BlockLayout::of(geometry, format.code_bits());
            let mut packed = vec![0; shape.bytes()];
            shape.pack(&Pool::new(1), &matrix, &mut packed);
            for block in 0..2 {
                let mut parts: [Parts; ROWS] = std::array::from_fn(|_| Parts::zeros(geometry));
                for (row, parts) in parts.iter_mut().enumerate() {
                    matrix.read_block(row, block, parts);
                }
                let mut codes = vec![0; layout.code_bytes];
                pack_codes(geometry, format.code_bits(), &parts, &mut codes);
                assert_eq!(packed[block * codes.len()..][..codes.len()], codes, "{format}");
                let mut parameters = vec![0; layout.parameter_bytes];
                pack_parameters(geometry, layout, &parts, &mut parameters);
                let at = 2 * codes.len() + block * parameters.len();
                assert_eq!(packed[at..][..parameters.len()], parameters, "{format}");
            }
        }
    }
}
