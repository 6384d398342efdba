//! Every weight format, defined once: its bytes, how weights become them, and how a row becomes f32 again.
//!
//! A matrix is row-major (rows, cols) = (out, in). Where it lies in an expert block is [`crate::ExpertShape`]'s matter.

mod float;
mod int4;
mod matrix;

pub use int4::GROUP;
pub use matrix::MatrixView;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

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
}

impl WeightFormat {
    /// Every format, widest first.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Int4G128];

    /// The name used in files, flags and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int4G128 => "int4",
        }
    }

    /// The bytes of a (rows, cols) matrix; `usize::MAX`, which no slice reaches, if they cannot be addressed.
    pub fn matrix_bytes(self, rows: usize, cols: usize) -> usize {
        self.value_bytes(rows, cols).saturating_add(self.scale_bytes(rows, cols))
    }

    /// The bytes of the plane of values: all of them, but for int4 the nibbles alone.
    pub(crate) fn value_bytes(self, rows: usize, cols: usize) -> usize {
        let row_bytes = match self {
            Self::F32 => cols.saturating_mul(4),
            Self::F16 | Self::Bf16 => cols.saturating_mul(2),
            Self::Int4G128 => int4::n_groups(cols).saturating_mul(int4::GROUP_BYTES),
        };
        rows.saturating_mul(row_bytes)
    }

    /// The bytes of the plane of scales: zero but for int4.
    pub(crate) fn scale_bytes(self, rows: usize, cols: usize) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 0,
            Self::Int4G128 => rows.saturating_mul(int4::n_groups(cols)).saturating_mul(2),
        }
    }

    /// The bytes of `values` (rows, cols) in this format, rounded to nearest. The same values give the same bytes
    /// everywhere.
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
        };
        debug_assert_eq!(bytes.len(), self.matrix_bytes(rows, cols));
        bytes
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
    #[error("no weight format is called {0:?}: there are f32, f16, bf16, int4")]
    UnknownFormat(String),
}
