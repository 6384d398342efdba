//! One expert: three matrices in one contiguous, kernel-ready block of bytes.

use crate::quant::{MatrixView, ShapeError, WeightFormat};

/// Every plane of a block starts at a multiple of this, so that a GPU reads it as `vec4<u32>`.
const PLANE_ALIGN: usize = 16;

/// The shape and format that all experts of a model share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ExpertShape {
    /// D, the width of a row.
    pub hidden: usize,
    /// F, the width between.
    pub inner: usize,
    /// How all three matrices are stored.
    pub format: WeightFormat,
}

/// Where a matrix lies in a block, in bytes from the block's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    /// The plane of values (for the int4 formats: of nibbles); the scales follow it, aligned as every plane is.
    pub values: usize,
    /// The plane of scales; empty, and the same as `end`, but for the int4 formats.
    pub scales: usize,
    /// The byte after its last.
    pub end: usize,
}

/// Where everything lies in a block: gate (F, D), up (F, D), down (D, F), in this order, each plane aligned to 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// The gate projection.
    pub gate: MatrixLayout,
    /// The up projection.
    pub up: MatrixLayout,
    /// The down projection.
    pub down: MatrixLayout,
    /// The length of a block, a multiple of 16.
    pub bytes: usize,
}

/// An expert's matrices, over a borrowed block.
#[derive(Clone, Copy, Debug)]
pub struct ExpertView<'a> {
    /// The gate projection (F, D).
    pub gate: MatrixView<'a>,
    /// The up projection (F, D).
    pub up: MatrixView<'a>,
    /// The down projection (D, F).
    pub down: MatrixView<'a>,
}

impl ExpertShape {
    /// The bytes of a block; `usize::MAX` if they cannot be addressed.
    pub fn block_bytes(&self) -> usize {
        self.layout().bytes
    }

    /// Where the planes of a block lie.
    pub fn layout(&self) -> BlockLayout {
        let gate = self.matrix_layout(0, self.inner, self.hidden);
        let up = self.matrix_layout(align(gate.end), self.inner, self.hidden);
        let down = self.matrix_layout(align(up.end), self.hidden, self.inner);
        BlockLayout { gate, up, down, bytes: align(down.end) }
    }

    /// The block of `gate` (F, D), `up` (F, D) and `down` (D, F).
    ///
    /// # Panics
    /// If one of them has another length.
    pub fn pack(&self, gate: &[f32], up: &[f32], down: &[f32]) -> Vec<u8> {
        let layout = self.layout();
        let mut block = Vec::with_capacity(layout.bytes);
        for (place, rows, cols, values) in [
            (layout.gate, self.inner, self.hidden, gate),
            (layout.up, self.inner, self.hidden, up),
            (layout.down, self.hidden, self.inner, down),
        ] {
            block.resize(place.values, 0);
            block.extend(self.format.quantize(rows, cols, values));
        }
        block.resize(layout.bytes, 0);
        block
    }

    /// The expert in `block`.
    ///
    /// # Errors
    /// [`ShapeError::BlockLength`] unless the block has [`Self::block_bytes`] bytes.
    pub fn view<'a>(&self, block: &'a [u8]) -> Result<ExpertView<'a>, ShapeError> {
        let layout = self.layout();
        if block.len() != layout.bytes {
            return Err(ShapeError::BlockLength { expected: layout.bytes, actual: block.len() });
        }
        let matrix = |place: MatrixLayout, rows, cols| {
            MatrixView::new(self.format, rows, cols, &block[place.values..place.end])
        };
        Ok(ExpertView {
            gate: matrix(layout.gate, self.inner, self.hidden)?,
            up: matrix(layout.up, self.inner, self.hidden)?,
            down: matrix(layout.down, self.hidden, self.inner)?,
        })
    }

    fn matrix_layout(&self, start: usize, rows: usize, cols: usize) -> MatrixLayout {
        // The plane of nibbles is whole groups of 64 bytes: the scales behind it are aligned without padding.
        let scales = start.saturating_add(self.format.value_bytes(rows, cols));
        MatrixLayout {
            values: start,
            scales,
            end: scales.saturating_add(self.format.scale_bytes(rows, cols)),
        }
    }
}

fn align(offset: usize) -> usize {
    offset.checked_next_multiple_of(PLANE_ALIGN).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;

    #[test]
    fn qwen3_30b_a3b_in_int4_is_2_43_megabytes() {
        let shape = ExpertShape { hidden: 2048, inner: 768, format: WeightFormat::Int4G128 };
        assert_eq!(shape.block_bytes(), 3 * 768 * 2048 / 2 + 3 * 768 * 16 * 2);
    }

    #[test]
    fn planes_are_aligned_and_come_back() {
        for format in WeightFormat::ALL {
            for (hidden, inner) in [(64, 32), (40, 24), (130, 3), (1, 1)] {
                let shape = ExpertShape { hidden, inner, format };
                let layout = shape.layout();
                for matrix in [layout.gate, layout.up, layout.down] {
                    assert_eq!(matrix.values % 16, 0);
                    assert!(format.scale_bytes(1, 1) == 0 || matrix.scales % 16 == 0);
                }
                let [gate, up, down] = [1, 2, 3].map(|seed| noise(seed, hidden * inner, 1.0));
                let block = shape.pack(&gate, &up, &down);
                assert_eq!(block.len(), shape.block_bytes());
                let view = shape.view(&block).unwrap();
                for (matrix, values) in [(view.gate, &gate), (view.up, &up), (view.down, &down)] {
                    assert!(crate::nmse(&matrix.dequantize(), values) < 0.01);
                }
                assert!(shape.view(&block[1..]).is_err());
            }
        }
    }

    #[test]
    fn a_shape_too_large_to_address_has_no_block() {
        for format in WeightFormat::ALL {
            let shape = ExpertShape { hidden: usize::MAX, inner: usize::MAX, format };
            assert_eq!(shape.block_bytes(), usize::MAX);
            assert!(shape.view(&[]).is_err());
        }
    }
}
