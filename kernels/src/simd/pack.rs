//! Repacks matrices into panels of sixteen rows.

use super::{
    disjoint::Disjoint,
    format::{BlockLayout, UNIT},
    isa::ROWS,
    pack_row::PackRow,
};
use crate::{
    MatrixView, ShapeError, WeightFormat,
    pool::Pool,
    quant::{
        Encoding, by_format,
        float::{Bf16, F16, F32},
        with_formats,
    },
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
    /// Its rows, the width of its output.
    pub rows: usize,
    /// Its columns, the width of its input.
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

    /// [`Self::pack`] for a matrix in any format: a different format is rounded to this one, panel by panel.
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
            let mut read_row = |row: usize, out: &mut [f32]| matrix.dequantize_row(rows.start + row, out);
            let bytes = self.format.quantize_rows(rows.len(), self.cols, &mut read_row);
            let part = MatrixView::new(self.format, rows.len(), self.cols, &bytes)
                .expect("what was just quantised has its length");
            // SAFETY: task `index` alone touches panel `index`.
            let panel = unsafe { out.part(index * panel_bytes..(index + 1) * panel_bytes) };
            Self { rows: rows.len(), ..*self }.pack_panel(&part, 0, panel);
        });
    }

    /// The matrix packed in `bytes`; kernels are fastest if they start at a cache line.
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

    /// Whether its last panel is full, so that another matrix can follow.
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    pub(crate) fn fills_panels(&self) -> bool {
        self.rows.is_multiple_of(ROWS)
    }

    pub(crate) fn panel_bytes(&self) -> usize {
        let bytes = match self.format.encoding() {
            Encoding::Integer { definition, .. } => {
                self.cols.div_ceil(definition.cols).saturating_mul(BlockLayout::of(definition).bytes())
            }
            Encoding::Float { bytes, .. } => {
                self.cols.div_ceil(UNIT).saturating_mul(UNIT).saturating_mul(ROWS * bytes)
            }
        };
        bytes.checked_next_multiple_of(PANEL_ALIGN).unwrap_or(usize::MAX)
    }

    /// Packs panel `index`, rows from `16 index` on, to `out` ([`Self::panel_bytes`]).
    pub(super) fn pack_panel(&self, matrix: &MatrixView<'_>, index: usize, out: &mut [u8]) {
        out.fill(0);
        for (place, row) in (index * ROWS..self.rows.min((index + 1) * ROWS)).enumerate() {
            let (values, parameters) = (matrix.values(row), matrix.scales(row));
            with_formats!(by_format self.format => pack_row(values, parameters, place, out));
        }
    }
}

fn pack_row<P: PackRow>(values: &[u8], parameters: &[u8], place: usize, panel: &mut [u8]) {
    P::pack_row(values, parameters, place, panel);
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

/// Writes values of N bytes to one row of columns of sixteen. Values become 0 if their two upper bytes, without the
/// sign, are below `smallest`.
fn pack_values<const N: usize>(values: &[u8], place: usize, panel: &mut [u8], smallest: u16) {
    for (column, value) in panel.chunks_exact_mut(ROWS * N).zip(values.as_chunks::<N>().0) {
        if u16::from_le_bytes([value[N - 2], value[N - 1] & 0x7f]) >= smallest {
            column[place * N..(place + 1) * N].copy_from_slice(value);
        }
    }
}

/// 2^-40 in the upper half of an f32. Smaller weights count as 0, so that no product with activations meets a subnormal
/// number.
const TINY: u16 = (127 - 40) << 7;

impl PackRow for F32 {
    fn pack_row(values: &[u8], _: &[u8], place: usize, panel: &mut [u8]) {
        pack_values::<4>(values, place, panel, TINY);
    }
}

impl PackRow for F16 {
    fn pack_row(values: &[u8], _: &[u8], place: usize, panel: &mut [u8]) {
        pack_values::<2>(values, place, panel, 0);
    }
}

impl PackRow for Bf16 {
    fn pack_row(values: &[u8], _: &[u8], place: usize, panel: &mut [u8]) {
        pack_values::<2>(values, place, panel, TINY);
    }
}
