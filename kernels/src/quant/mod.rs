//! Every weight format, defined once: its bytes, how weights become them, and how a row becomes f32 again.
//!
//! A matrix is row-major (rows, cols) = (out, in). Where it lies in an expert block is [`crate::ExpertShape`]'s matter.

mod activations;
mod dot;
mod float;
mod int4;
mod int4_zp;
mod k_affine;
mod matrix;
mod noise;
mod parts;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod simple;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

pub use activations::Activations;
pub use dot::dot_int8;
pub use int4::GROUP;
pub use matrix::MatrixView;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

pub(crate) use activations::{Terms, UNIT, block_words, columns_at, fill_row};
use parts::{Block, decode_row, encode};
pub(crate) use parts::{Geometry, Parts};

/// How the weights of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WeightFormat {
    /// IEEE single, little-endian.
    #[serde(rename = "f32")]
    F32,
    /// IEEE half, little-endian.
    #[serde(rename = "f16")]
    F16,
    /// The upper half of a single, little-endian.
    #[serde(rename = "bf16")]
    Bf16,
    /// 4 bits a weight and one f16 scale for each group of 128 columns, symmetric: `(nibble - 8) * scale`.
    ///
    /// Two planes. First the nibbles: each row padded to whole groups with nibble 8 (zero), two columns a byte, the lower
    /// nibble first, so that a little-endian u32 holds eight columns in order. Then the scales, (rows, groups) f16.
    #[serde(rename = "int4")]
    Int4G128,
    /// 4 bits a weight, one f16 scale and a zero point for each group of 128 columns: `(nibble - zero) * scale`.
    ///
    /// Two planes. First the nibbles as in [`Self::Int4G128`], padded with the zero point. Then a little-endian u32 for
    /// each of (rows, groups): the scale in the lower half, the zero point in the third byte, 0 in the fourth.
    #[serde(rename = "int4-zp")]
    Int4ZpG128,
    /// llama.cpp's q8_0: 8 bits and a scale for each 32 columns.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// llama.cpp's q4_0: 4 bits and a scale for each 32 columns.
    #[serde(rename = "q4_0")]
    Q4_0,
    /// llama.cpp's q4_1: 4 bits, a scale and a minimum for each 32 columns.
    #[serde(rename = "q4_1")]
    Q4_1,
    /// llama.cpp's q5_0: 5 bits and a scale for each 32 columns.
    #[serde(rename = "q5_0")]
    Q5_0,
    /// llama.cpp's q5_1: 5 bits, a scale and a minimum for each 32 columns.
    #[serde(rename = "q5_1")]
    Q5_1,
    /// llama.cpp's q4_K: 4 bits in blocks of 256 columns, a 6-bit scale and minimum for each 32.
    #[serde(rename = "q4_K")]
    Q4K,
    /// llama.cpp's q5_K: 5 bits in blocks of 256 columns, a 6-bit scale and minimum for each 32.
    #[serde(rename = "q5_K")]
    Q5K,
    /// llama.cpp's q6_K: 6 bits in blocks of 256 columns, an 8-bit scale for each 16.
    #[serde(rename = "q6_K")]
    Q6K,
}

impl WeightFormat {
    /// Every format: floats, our own, llama.cpp's.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Int4G128,
        Self::Int4ZpG128,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// The name used in files, flags and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int4G128 => "int4",
            Self::Int4ZpG128 => "int4-zp",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q4K => "q4_K",
            Self::Q5K => "q5_K",
            Self::Q6K => "q6_K",
        }
    }

    /// Whether weights share scales: all but the floats.
    pub fn is_quantised(self) -> bool {
        self.geometry().is_some()
    }

    /// The bytes of a (rows, cols) matrix; `usize::MAX`, which no slice reaches, if they cannot be addressed. Rows are
    /// padded to whole blocks of [`Self::block_cols`] columns.
    pub fn matrix_bytes(self, rows: usize, cols: usize) -> usize {
        self.value_bytes(rows, cols).saturating_add(self.scale_bytes(rows, cols))
    }

    /// The columns of a block, what a row is padded to: 1 for the floats, then 32, 128 or 256.
    pub fn block_cols(self) -> usize {
        self.geometry().map_or(1, |geometry| geometry.cols)
    }

    /// How columns share scales; `None` for the floats, which have none.
    pub(crate) const fn geometry(self) -> Option<Geometry> {
        match self.layout() {
            Layout::Values { .. } => None,
            Layout::Planes { geometry, .. } => Some(geometry),
            Layout::Blocks(blocks) => Some(blocks.geometry),
        }
    }

    /// The bits of a code; 0 for the floats, which have none.
    pub(crate) const fn code_bits(self) -> u32 {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 0,
            Self::Int4G128 | Self::Int4ZpG128 | Self::Q4_0 | Self::Q4_1 | Self::Q4K => 4,
            Self::Q5_0 | Self::Q5_1 | Self::Q5K => 5,
            Self::Q6K => 6,
            Self::Q8_0 => 8,
        }
    }

    /// The bytes of the plane of values: all of them, but for the int4 formats the nibbles alone.
    pub(crate) fn value_bytes(self, rows: usize, cols: usize) -> usize {
        let row_bytes = match self.layout() {
            Layout::Values { bytes } => cols.saturating_mul(bytes),
            Layout::Planes { .. } => int4::n_groups(cols).saturating_mul(int4::GROUP_BYTES),
            Layout::Blocks(blocks) => cols.div_ceil(blocks.geometry.cols).saturating_mul(blocks.bytes),
        };
        rows.saturating_mul(row_bytes)
    }

    /// The bytes of the plane of scales: zero but for the int4 formats.
    pub(crate) fn scale_bytes(self, rows: usize, cols: usize) -> usize {
        match self.layout() {
            Layout::Planes { scale_bytes, .. } => {
                rows.saturating_mul(int4::n_groups(cols)).saturating_mul(scale_bytes)
            }
            Layout::Values { .. } | Layout::Blocks(_) => 0,
        }
    }

    /// The bytes of `values` (rows, cols) in this format, rounded to nearest. The same values give the same bytes
    /// everywhere; for q8_0, q4_0, q4_1, q5_0 and q5_1 those of llama.cpp's reference quantisers.
    ///
    /// # Panics
    /// If there are not `rows * cols` values.
    pub fn quantize(self, rows: usize, cols: usize, values: &[f32]) -> Vec<u8> {
        assert_eq!(values.len(), rows * cols, "values of a ({rows}, {cols}) matrix");
        let bytes = match self {
            Self::F32 => float::encode_f32(values),
            Self::F16 => float::encode_f16(values),
            Self::Bf16 => float::encode_bf16(values),
            Self::Int4G128 => int4::encode(cols, values),
            Self::Int4ZpG128 => int4_zp::encode(cols, values),
            Self::Q8_0 => encode::<q8_0::Q8_0>(cols, values),
            Self::Q4_0 => encode::<q4_0::Q4_0>(cols, values),
            Self::Q4_1 => encode::<q4_1::Q4_1>(cols, values),
            Self::Q5_0 => encode::<q5_0::Q5_0>(cols, values),
            Self::Q5_1 => encode::<q5_1::Q5_1>(cols, values),
            Self::Q4K => encode::<q4_k::Q4K>(cols, values),
            Self::Q5K => encode::<q5_k::Q5K>(cols, values),
            Self::Q6K => encode::<q6_k::Q6K>(cols, values),
        };
        debug_assert_eq!(bytes.len(), self.matrix_bytes(rows, cols));
        bytes
    }

    const fn layout(self) -> Layout {
        match self {
            Self::F32 => Layout::Values { bytes: 4 },
            Self::F16 | Self::Bf16 => Layout::Values { bytes: 2 },
            Self::Int4G128 => Layout::Planes { geometry: int4::GEOMETRY, scale_bytes: 2 },
            Self::Int4ZpG128 => {
                Layout::Planes { geometry: int4_zp::GEOMETRY, scale_bytes: int4_zp::PARAMETER_BYTES }
            }
            Self::Q8_0 => Layout::Blocks(Blocks::of::<q8_0::Q8_0>()),
            Self::Q4_0 => Layout::Blocks(Blocks::of::<q4_0::Q4_0>()),
            Self::Q4_1 => Layout::Blocks(Blocks::of::<q4_1::Q4_1>()),
            Self::Q5_0 => Layout::Blocks(Blocks::of::<q5_0::Q5_0>()),
            Self::Q5_1 => Layout::Blocks(Blocks::of::<q5_1::Q5_1>()),
            Self::Q4K => Layout::Blocks(Blocks::of::<q4_k::Q4K>()),
            Self::Q5K => Layout::Blocks(Blocks::of::<q5_k::Q5K>()),
            Self::Q6K => Layout::Blocks(Blocks::of::<q6_k::Q6K>()),
        }
    }
}

/// Where the bytes of a matrix lie.
#[derive(Clone, Copy)]
enum Layout {
    /// One value after another, of so many bytes.
    Values { bytes: usize },
    /// A plane of nibbles in groups of 128, then a plane with so many bytes for each group.
    Planes { geometry: Geometry, scale_bytes: usize },
    /// Rows of whole blocks, each with its scales inside.
    Blocks(Blocks),
}

/// A format in blocks, behind functions.
#[derive(Clone, Copy)]
struct Blocks {
    geometry: Geometry,
    bytes: usize,
    read: fn(&[u8], &mut Parts),
    decode_row: fn(&[u8], &mut [f32]),
}

impl Blocks {
    const fn of<B: Block>() -> Self {
        Self { geometry: B::GEOMETRY, bytes: B::BYTES, read: B::read, decode_row: decode_row::<B> }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WeightFormat {
    type Err = ShapeError;

    fn from_str(name: &str) -> Result<Self, ShapeError> {
        let known = Self::ALL.into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| ShapeError::UnknownFormat(name.chars().take(32).collect()))
    }
}

/// Bytes that are not the matrix or the block they are said to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A matrix of another length.
    #[error("a ({rows}, {cols}) {format} matrix has {expected} bytes, not {actual}")]
    MatrixLength {
        /// Its format.
        format: WeightFormat,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
        /// The bytes such a matrix has.
        expected: usize,
        /// The bytes given.
        actual: usize,
    },
    /// An expert block of another length.
    #[error("an expert block of this shape has {expected} bytes, not {actual}")]
    BlockLength {
        /// The bytes such a block has.
        expected: usize,
        /// The bytes given.
        actual: usize,
    },
    /// No format has this name.
    #[error("no weight format is called {0:?}: there are {known}", known = WeightFormat::ALL.map(WeightFormat::name).join(", "))]
    UnknownFormat(String),
}
