//! One expert: three matrices, and biases if its kind has any, in one contiguous, kernel-ready block of bytes.

use std::borrow::Cow;

use crate::{
    expert_format::ExpertFormat,
    expert_kind::ExpertKind,
    noise::noise,
    quant::{MatrixView, ShapeError, WeightFormat},
};

/// Every plane of a block starts at a multiple of this, so that a GPU reads it as `vec4<u32>`.
const PLANE_ALIGN: usize = 16;

/// The shape and formats that all experts of a layer share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ExpertShape {
    /// D, the width of a row.
    pub hidden: usize,
    /// F, the width between the projections.
    pub inner: usize,
    /// How its matrices are stored.
    pub format: ExpertFormat,
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

/// Where everything lies in a block: gate (F, D), up (F, D), down (D, F), and where there are biases those of gate (F),
/// up (F) and down (D) in f32, in this order, each plane aligned to 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// The gate projection.
    pub gate: MatrixLayout,
    /// The up projection.
    pub up: MatrixLayout,
    /// The down projection.
    pub down: MatrixLayout,
    /// Where the biases of gate, up and down start; the end of the block if there are none.
    pub biases: [usize; 3],
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
    /// Its biases, if it is of a kind that has them.
    pub biases: Option<ExpertBiases<'a>>,
}

/// The biases of an expert's projections, in f32.
#[derive(Clone, Copy, Debug)]
pub struct ExpertBiases<'a> {
    /// The function between the projections.
    pub kind: ExpertKind,
    /// Of the gate projection (1, F).
    pub gate: MatrixView<'a>,
    /// Of the up projection (1, F).
    pub up: MatrixView<'a>,
    /// Of the down projection (1, D).
    pub down: MatrixView<'a>,
}

impl ExpertView<'_> {
    /// The function between the projections.
    pub fn kind(&self) -> ExpertKind {
        self.biases.map_or(ExpertKind::Silu, |biases| biases.kind)
    }
}

impl ExpertShape {
    /// The shape of experts with one format for all three matrices.
    pub const fn uniform(hidden: usize, inner: usize, format: WeightFormat) -> Self {
        Self { hidden, inner, format: ExpertFormat::uniform(format) }
    }

    /// The bytes of a block; `usize::MAX` if they cannot be addressed.
    pub fn block_bytes(&self) -> usize {
        self.layout().bytes
    }

    /// Where the planes of a block lie.
    pub fn layout(&self) -> BlockLayout {
        let ExpertFormat { gate_up, down, kind } = self.format;
        let gate = matrix_layout(gate_up, 0, self.inner, self.hidden);
        let up = matrix_layout(gate_up, align(gate.end), self.inner, self.hidden);
        let down = matrix_layout(down, align(up.end), self.hidden, self.inner);
        let mut end = align(down.end);
        let biases = self.bias_widths().map(|width| {
            let start = end;
            if kind.has_biases() {
                end = align(start.saturating_add(width.saturating_mul(4)));
            }
            start
        });
        BlockLayout { gate, up, down, biases, bytes: end }
    }

    /// The block of `gate` (F, D), `up` (F, D) and `down` (D, F); biases, if there are any, are zero.
    ///
    /// # Panics
    /// If one of them has another length.
    pub fn pack(&self, gate: &[f32], up: &[f32], down: &[f32]) -> Vec<u8> {
        let ExpertFormat { gate_up, down: of_down, .. } = self.format;
        let matrices = [
            gate_up.quantize(self.inner, self.hidden, gate),
            gate_up.quantize(self.inner, self.hidden, up),
            of_down.quantize(self.hidden, self.inner, down),
        ];
        self.join(matrices.each_ref().map(Vec::as_slice), [&[]; 3])
    }

    /// A block of random weights, few of them above `magnitude`, for trying kernels; the same for the same seed.
    pub fn noise(&self, seed: u64, magnitude: f32) -> Vec<u8> {
        let ExpertFormat { gate_up, down, .. } = self.format;
        let [first, second, third] = [1, 2, 3].map(|i| seed.wrapping_mul(4).wrapping_add(i));
        let matrices = [
            gate_up.noise(self.inner, self.hidden, first, magnitude),
            gate_up.noise(self.inner, self.hidden, second, magnitude),
            down.noise(self.hidden, self.inner, third, magnitude),
        ];
        // Gate and up of a row of noise sum to about one: biases count as much.
        let biases = self.bias_widths().map(|width| noise(seed.wrapping_mul(4), width, 1.0));
        let biases = biases.each_ref().map(|bias| bytemuck::cast_slice(bias));
        self.join(matrices.each_ref().map(Vec::as_slice), biases)
    }

    /// Packs an expert in any formats into a block of this shape. A matrix that already has the right format is copied;
    /// any other is quantised anew.
    ///
    /// # Panics
    /// If a matrix has another shape.
    pub fn convert(&self, expert: &ExpertView<'_>) -> Vec<u8> {
        let ExpertFormat { gate_up, down, .. } = self.format;
        let matrices = [
            in_format(&expert.gate, gate_up, self.inner, self.hidden),
            in_format(&expert.up, gate_up, self.inner, self.hidden),
            in_format(&expert.down, down, self.hidden, self.inner),
        ];
        let biases = match &expert.biases {
            Some(biases) => [biases.gate, biases.up, biases.down].map(|bias| bias.bytes()),
            None => [&[][..]; 3],
        };
        self.join(matrices.each_ref().map(|matrix| &**matrix), biases)
    }

    /// Joins the block from three matrices' bytes, each of its full length, and biases, each of its full length or
    /// empty.
    fn join(&self, matrices: [&[u8]; 3], biases: [&[u8]; 3]) -> Vec<u8> {
        let layout = self.layout();
        let mut block = Vec::with_capacity(layout.bytes);
        for (place, bytes) in [layout.gate, layout.up, layout.down].iter().zip(matrices) {
            block.resize(place.values, 0);
            block.extend_from_slice(bytes);
        }
        if self.format.kind.has_biases() {
            for (start, bytes) in layout.biases.into_iter().zip(biases) {
                block.resize(start, 0);
                block.extend_from_slice(bytes);
            }
        }
        block.resize(layout.bytes, 0);
        block
    }

    /// F, F and D, the widths of the biases of gate, up and down.
    fn bias_widths(&self) -> [usize; 3] {
        [self.inner, self.inner, self.hidden]
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
        let ExpertFormat { gate_up, down, kind } = self.format;
        let bias = |index: usize| {
            let (start, width) = (layout.biases[index], self.bias_widths()[index]);
            MatrixView::new(WeightFormat::F32, 1, width, &block[start..start + 4 * width])
        };
        let biases = match kind.has_biases() {
            false => None,
            true => Some(ExpertBiases { kind, gate: bias(0)?, up: bias(1)?, down: bias(2)? }),
        };
        let matrix = |place: MatrixLayout, format, rows, cols| {
            MatrixView::new(format, rows, cols, &block[place.values..place.end])
        };
        Ok(ExpertView {
            gate: matrix(layout.gate, gate_up, self.inner, self.hidden)?,
            up: matrix(layout.up, gate_up, self.inner, self.hidden)?,
            down: matrix(layout.down, down, self.hidden, self.inner)?,
            biases,
        })
    }
}

/// A (rows, cols) matrix's bytes in `format`.
fn in_format<'a>(matrix: &MatrixView<'a>, format: WeightFormat, rows: usize, cols: usize) -> Cow<'a, [u8]> {
    assert_eq!((matrix.rows(), matrix.cols()), (rows, cols), "a matrix of this shape");
    match matrix.format() == format {
        true => matrix.bytes().into(),
        false => format.quantize_rows(rows, cols, &mut |row, out| matrix.dequantize_row(row, out)).into(),
    }
}

fn matrix_layout(format: WeightFormat, start: usize, rows: usize, cols: usize) -> MatrixLayout {
    // The plane of nibbles is whole groups of 64 bytes: the scales behind it are aligned without padding.
    let scales = start.saturating_add(format.value_bytes(rows, cols));
    MatrixLayout { values: start, scales, end: scales.saturating_add(format.scale_bytes(rows, cols)) }
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
        let shape = ExpertShape::uniform(2048, 768, WeightFormat::Int4G128);
        assert_eq!(shape.block_bytes(), 3 * 768 * 2048 / 2 + 3 * 768 * 16 * 2);
    }

    #[test]
    fn planes_are_aligned_and_come_back() {
        for format in WeightFormat::ALL {
            for (hidden, inner) in [(64, 32), (40, 24), (130, 3), (1, 1)] {
                let shape = ExpertShape::uniform(hidden, inner, format);
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
                    // A few values are sometimes fitted worse than noise on average.
                    let most = (2.0 * format.noise_loss()).max(0.01);
                    assert!(crate::nmse(&matrix.dequantize(), values) < most, "{format}");
                }
                assert!(shape.view(&block[1..]).is_err());
            }
        }
    }

    #[test]
    fn each_matrix_has_the_format_of_its_place() {
        let format = ExpertFormat::new(WeightFormat::Q4K, WeightFormat::Q6K);
        let shape = ExpertShape { hidden: 512, inner: 256, format };
        let [gate, up, down] = [1, 2, 3].map(|seed| noise(seed, 512 * 256, 1.0));
        let block = shape.pack(&gate, &up, &down);
        let view = shape.view(&block).unwrap();
        assert_eq!(view.up.bytes(), WeightFormat::Q4K.quantize(256, 512, &up));
        assert_eq!(view.down.bytes(), WeightFormat::Q6K.quantize(512, 256, &down));
        assert_eq!(shape.block_bytes(), 2 * 256 * 2 * 144 + 512 * 210);
        assert_eq!(shape.convert(&view), block, "not a bit is lost");
        let other = ExpertShape::uniform(512, 256, WeightFormat::Q4K);
        let converted = other.convert(&view);
        let converted = other.view(&converted).unwrap();
        assert_eq!(converted.gate.bytes(), view.gate.bytes(), "nothing is quantised twice");
        assert!(crate::nmse(&converted.down.dequantize(), &down) < 0.01);
    }

    #[test]
    fn biases_follow_the_matrices() {
        let kind = ExpertKind::ClampedSwiglu;
        let plain = ExpertShape::uniform(64, 40, WeightFormat::Mxfp4);
        let shape = ExpertShape { format: plain.format.of_kind(kind), ..plain };
        assert_eq!(shape.block_bytes(), plain.block_bytes() + 4 * (40 + 40 + 64));
        let block = shape.noise(7, 0.1);
        assert_eq!(block[..plain.block_bytes()], plain.noise(7, 0.1));
        let view = shape.view(&block).unwrap();
        assert_eq!(view.kind(), kind);
        let biases = view.biases.unwrap();
        assert_eq!([biases.gate, biases.up, biases.down].map(|bias| bias.cols()), [40, 40, 64]);
        assert_eq!(shape.convert(&view), block, "not a bit is lost");
        assert_eq!(plain.view(&block[..plain.block_bytes()]).unwrap().kind(), ExpertKind::Silu);
    }

    #[test]
    fn a_shape_too_large_to_address_has_no_block() {
        for format in WeightFormat::ALL {
            let shape = ExpertShape::uniform(usize::MAX, usize::MAX, format);
            assert_eq!(shape.block_bytes(), usize::MAX);
            assert!(shape.view(&[]).is_err());
        }
    }
}
