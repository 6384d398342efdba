//! Matrices repacked into panels of sixteen rows.

use half::f16;

use super::{
    format::{BlockLayout, UNIT},
    isa::{QUAD_BYTES, ROWS},
};
use crate::{
    MatrixView, ShapeError, WeightFormat,
    quant::{Geometry, Parts},
};

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

    /// Packs `matrix`, of this shape, into `out` ([`Self::bytes`]).
    ///
    /// # Panics
    /// If one of them has another shape.
    pub fn pack(&self, matrix: &MatrixView<'_>, out: &mut [u8]) {
        assert_eq!(*self, Self::of(matrix), "the shape of the matrix");
        assert_eq!(out.len(), self.bytes(), "bytes of the panels");
        for (index, panel) in out.chunks_exact_mut(self.panel_bytes().max(1)).enumerate() {
            self.pack_panel(matrix, index, panel);
        }
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
                let value_bytes = self.format.matrix_bytes(1, 1);
                let values = matrix.bytes().chunks_exact(value_bytes);
                for (i, value) in values.enumerate().skip(rows.start * self.cols).take(rows.len() * self.cols)
                {
                    let (row, col) = (i / self.cols - rows.start, i % self.cols);
                    out[(col * ROWS + row) * value_bytes..][..value_bytes].copy_from_slice(value);
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
