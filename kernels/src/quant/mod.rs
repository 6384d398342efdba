//! Every weight format, defined once: its bytes, how weights become them, and how a row becomes f32 again.
//!
//! A format is one file here and one line in `list.rs`. Kernels, engines and files take all they need to know of it
//! from there; its shader comes from `shader/shared/weights_NAME.wgsl`. A matrix is row-major (rows, cols) = (out, in).
//! [`crate::ExpertShape`] says where a matrix lies in an expert block.

mod activations;
mod affine_scales;
mod definition;
mod dot;
mod error;
mod format;
mod geometry;
mod matrix;
mod noise;
mod parts;
mod planes;

// What formats share.
mod k_affine;
mod k_symmetric;
mod simple;

// The formats.
pub(crate) mod float;
pub(crate) mod int4;
pub(crate) mod int4_zp;
pub(crate) mod iq4;
pub(crate) mod mxfp4;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

pub use activations::Activations;
pub use dot::dot_int8;
pub use error::ShapeError;
pub use int4::GROUP;
pub use matrix::MatrixView;
pub use mxfp4::mxfp4_from_planes;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

#[cfg(feature = "gpu")]
pub(crate) use activations::row_stride;
pub(crate) use activations::{Terms, block_words, columns_at, fill_row, fill_unit};
pub(crate) use definition::{Definition, Minimum, Scale, Zero};
pub(crate) use format::{Encoding, Integer};
pub(crate) use geometry::{Geometry, UNIT};
pub(crate) use parts::Parts;

use format::{Format, RowReader};

include!("list.rs");
pub(crate) use with_formats;

/// `with_formats!(by_format format => function(arguments))` calls `function::<Definition>(arguments)` for the type that
/// defines `format`.
macro_rules! by_format {
    (
        [$format:expr => $function:ident $arguments:tt]
        $($(#[doc = $doc:literal])* $variant:ident $name:literal $definition:path;)*
    ) => {
        match $format {
            $($crate::WeightFormat::$variant => $function::<$definition> $arguments,)*
        }
    };
}
pub(crate) use by_format;

macro_rules! weight_formats {
    ([] $($(#[doc = $doc:literal])* $format:ident $name:literal $definition:path;)*) => {
        /// How the weights of a matrix are stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum WeightFormat {
            $($(#[doc = $doc])* #[serde(rename = $name)] $format,)*
        }

        impl WeightFormat {
            /// Every format: floats, our own, those of others.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$format),*];

            /// The name used in files, flags and messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$format => $name,)*
                }
            }

            /// Its type number in a GGUF, if GGUF has it.
            pub const fn gguf_type(self) -> Option<u32> {
                match self {
                    $(Self::$format => <$definition as Format>::GGUF,)*
                }
            }

            /// How its bytes become values.
            pub(crate) const fn encoding(self) -> Encoding {
                match self {
                    $(Self::$format => <$definition as Format>::ENCODING,)*
                }
            }

            #[cfg(test)]
            pub(crate) fn noise_loss(self) -> f64 {
                match self {
                    $(Self::$format => <$definition as Format>::NOISE_LOSS,)*
                }
            }

            /// The bytes of `values` (rows, cols) in this format, rounded to nearest. The same values give the same
            /// bytes everywhere; for q8_0, q4_0, q4_1, q5_0, q5_1 and mxfp4 they are the bytes of llama.cpp's reference
            /// quantisers.
            ///
            /// # Panics
            /// If there are not `rows * cols` values.
            pub fn quantize(self, rows: usize, cols: usize, values: &[f32]) -> Vec<u8> {
                assert_eq!(values.len(), rows * cols, "values of a ({rows}, {cols}) matrix");
                self.quantize_rows(rows, cols, &mut |row, out| out.copy_from_slice(&values[row * cols..][..cols]))
            }

            /// [`Self::quantize`] for rows that `read_row` writes one by one.
            pub(crate) fn quantize_rows(self, rows: usize, cols: usize, read_row: &mut RowReader<'_>) -> Vec<u8> {
                let bytes = match self {
                    $(Self::$format => <$definition as Format>::quantize(rows, cols, read_row),)*
                };
                debug_assert_eq!(bytes.len(), self.matrix_bytes(rows, cols));
                bytes
            }
        }
    };
}
with_formats!(weight_formats);

impl WeightFormat {
    /// Whether weights share scales: all but the floats.
    pub fn is_quantised(self) -> bool {
        self.definition().is_some()
    }

    /// The bytes of a (rows, cols) matrix; `usize::MAX`, which no slice reaches, if they cannot be addressed. Rows are
    /// padded to whole blocks of [`Self::block_cols`] columns.
    pub fn matrix_bytes(self, rows: usize, cols: usize) -> usize {
        self.value_bytes(rows, cols).saturating_add(self.scale_bytes(rows, cols))
    }

    /// The columns of a block, what a row is padded to: 1 for the floats, then 32, 128 or 256.
    pub fn block_cols(self) -> usize {
        self.definition().map_or(1, |definition| definition.cols)
    }

    /// Where its bits lie; `None` for the floats.
    pub(crate) const fn definition(self) -> Option<&'static Definition> {
        match self.encoding() {
            Encoding::Float { .. } => None,
            Encoding::Integer { definition, .. } => Some(definition),
        }
    }

    /// How columns share scales; `None` for the floats, which have none.
    pub(crate) const fn geometry(self) -> Option<Geometry> {
        match self.definition() {
            Some(definition) => Some(definition.geometry()),
            None => None,
        }
    }

    /// The bytes of the plane of values: all of them, but for the int4 formats the nibbles alone.
    pub(crate) fn value_bytes(self, rows: usize, cols: usize) -> usize {
        let row_bytes = match self.encoding() {
            Encoding::Float { bytes, .. } => cols.saturating_mul(bytes),
            Encoding::Integer { definition, .. } => {
                cols.div_ceil(definition.cols).saturating_mul(definition.bytes)
            }
        };
        rows.saturating_mul(row_bytes)
    }

    /// The bytes of the plane of scales: zero but for the int4 formats.
    pub(crate) fn scale_bytes(self, rows: usize, cols: usize) -> usize {
        self.definition().map_or(0, |definition| {
            rows.saturating_mul(cols.div_ceil(definition.cols)).saturating_mul(definition.plane_bytes)
        })
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
