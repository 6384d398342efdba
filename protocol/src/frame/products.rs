//! PRODUCTS: by what a RESULT can be checked, the products of each of its rows with gate and with up.
//!
//! ```text
//! header   type 8, the dispatch's sequence id, its layer; expert 0xFFFF; tokens = P, all rows of the answer; hidden = F; dtype
//! payload  (P, 2F) in dtype: of each row the products with gate, then with up
//! ```
//!
//! With int8 activations an expert's products are f16 by the arithmetic's definition, and so they are on the wire; with f32
//! activations they are f32.
//!
//! One frame, behind the RESULT frames of the same attempt, in the order of their rows; where the dispatch asks for it, and
//! nowhere else.

use bytes::{BufMut, Bytes};

use crate::dtype::Dtype;
use crate::error::{DecodeError, ShapeError};
use crate::frame::MessageWriter;
use crate::header::{HEADER_BYTES, ProductFields};
use crate::id::{AttemptId, LayerId};
use crate::limits::{MAX_INNER, MAX_PAIRS};
use crate::tensor;

/// The number format of products: what an expert computes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductFormat {
    /// With f32 activations.
    F32,
    /// With int8 activations.
    F16,
}

/// The form of a row's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductShape {
    /// F, the inner width of an expert.
    pub inner: u16,
    /// Of each value.
    pub format: ProductFormat,
}

/// The products of gate and up for all rows of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Products {
    /// Of each row.
    pub shape: ProductShape,
    /// (P, 2F) in its format, little-endian.
    pub payload: Bytes,
}

impl ProductFormat {
    /// Bytes of a value.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }

    /// The header's byte.
    pub(crate) const fn wire(self) -> u8 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
        }
    }

    /// The format that the header's byte names, if any.
    pub(crate) const fn from_wire(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::F32),
            1 => Some(Self::F16),
            _ => None,
        }
    }
}

impl ProductShape {
    /// Bytes of a row.
    pub const fn row_bytes(self) -> usize {
        2 * self.inner as usize * self.format.bytes()
    }
}

impl Products {
    /// As the products of `values` (P, 2F), if F is within the limits. Values are rounded to the format.
    pub fn new(shape: ProductShape, values: &[f32]) -> Option<Self> {
        let ProductShape { inner, format } = shape;
        if !(1..=MAX_INNER).contains(&inner) {
            return None;
        }
        let mut payload = Vec::with_capacity(values.len() * format.bytes());
        match format {
            ProductFormat::F32 => payload.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            ProductFormat::F16 => {
                tensor::encode_rows(Dtype::F16, values, 2 * usize::from(inner), &mut payload);
            }
        }
        Some(Self { shape, payload: payload.into() })
    }

    /// Checks that they can be sent beside `n_rows` rows.
    pub(crate) fn check(&self, n_rows: u64) -> Result<(), ShapeError> {
        let inner = self.shape.inner;
        if !(1..=MAX_INNER).contains(&inner) {
            return Err(ShapeError::Inner { inner });
        }
        if n_rows > u64::from(MAX_PAIRS) {
            return Err(ShapeError::TooManyPairs { pairs: n_rows });
        }
        let row_bytes = self.shape.row_bytes();
        match self.payload.len() as u64 == n_rows * row_bytes as u64 {
            true => Ok(()),
            false => Err(ShapeError::RowBytes { bytes: self.payload.len(), row_bytes }),
        }
    }

    /// Appends the frame.
    pub(crate) fn write(&self, attempt: AttemptId, layer: LayerId, writer: &mut MessageWriter) {
        let rows = self.payload.len() / self.shape.row_bytes().max(1);
        let fields = ProductFields { layer, rows: rows as u32, shape: self.shape };
        let write = |out: &mut bytes::BytesMut| out.put_slice(&self.payload);
        writer.products(attempt, fields, self.payload.len(), write);
    }

    /// Bytes of the whole frame, uncompressed.
    pub(crate) fn frame_bytes(&self) -> u64 {
        (HEADER_BYTES + self.payload.len()) as u64
    }
}

/// How many bytes the payload of a PRODUCTS has by its header.
pub(crate) fn implied_bytes(fields: &ProductFields) -> u64 {
    u64::from(fields.rows) * fields.shape.row_bytes() as u64
}

/// What the frame behind an answer's results says, if it is theirs.
pub(crate) fn read(
    fields: Option<ProductFields>,
    payload: &Bytes,
    layer: LayerId,
) -> Result<Products, DecodeError> {
    let fields = fields.filter(|fields| fields.layer == layer);
    let fields = fields.ok_or(DecodeError::Mixed { reason: "products of another layer" })?;
    Ok(Products { shape: fields.shape, payload: payload.clone() })
}
