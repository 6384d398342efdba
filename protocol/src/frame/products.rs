//! PRODUCTS: by what a RESULT can be checked, the products of each of its rows with gate and with up.
//!
//! ```text
//! header   type 8, the dispatch's sequence id, its layer; expert 0xFFFF; tokens = P, all rows of the answer; hidden = F; dtype 0
//! payload  (P, 2F) f32: of each row the products with gate, then with up
//! ```
//!
//! One frame, behind the RESULT frames of the same attempt, in the order of their rows; where the dispatch asks for it, and
//! nowhere else.

use bytes::{BufMut, Bytes};

use crate::error::{DecodeError, ShapeError};
use crate::frame::MessageWriter;
use crate::header::{HEADER_BYTES, ProductFields};
use crate::id::{AttemptId, LayerId};
use crate::limits::{MAX_INNER, MAX_PAIRS};

/// The products of gate and up for all rows of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Products {
    /// F, the inner width of an expert.
    pub inner: u16,
    /// (P, 2F) f32, little-endian.
    pub payload: Bytes,
}

impl Products {
    /// Bytes for a row of an expert whose inner width is F.
    pub const fn row_bytes(inner: usize) -> usize {
        2 * 4 * inner
    }

    /// As the products of `values` (P, 2F), if F can be said.
    pub fn new(inner: usize, values: &[f32]) -> Option<Self> {
        let inner = u16::try_from(inner).ok().filter(|inner| (1..=MAX_INNER).contains(inner))?;
        let mut payload = vec![0; 4 * values.len()];
        let (to, _) = payload.as_chunks_mut::<4>();
        to.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
        Some(Self { inner, payload: payload.into() })
    }

    /// Checks that they can be sent beside `n_rows` rows.
    pub(crate) fn check(&self, n_rows: u64) -> Result<(), ShapeError> {
        if !(1..=MAX_INNER).contains(&self.inner) {
            return Err(ShapeError::Inner { inner: self.inner });
        }
        if n_rows > u64::from(MAX_PAIRS) {
            return Err(ShapeError::TooManyPairs { pairs: n_rows });
        }
        let row_bytes = Self::row_bytes(self.inner.into());
        match self.payload.len() as u64 == n_rows * row_bytes as u64 {
            true => Ok(()),
            false => Err(ShapeError::RowBytes { bytes: self.payload.len(), row_bytes }),
        }
    }

    /// Appends the frame.
    pub(crate) fn write(&self, attempt: AttemptId, layer: LayerId, writer: &mut MessageWriter) {
        let rows = self.payload.len() / Self::row_bytes(self.inner.into()).max(1);
        let fields = ProductFields { layer, rows: rows as u32, inner: self.inner };
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
    u64::from(fields.rows) * Products::row_bytes(fields.inner.into()) as u64
}

/// What the frame behind an answer's results says, if it is theirs.
pub(crate) fn read(
    fields: Option<ProductFields>,
    payload: &Bytes,
    layer: LayerId,
) -> Result<Products, DecodeError> {
    let fields = fields.filter(|fields| fields.layer == layer);
    let fields = fields.ok_or(DecodeError::Mixed { reason: "products of another layer" })?;
    Ok(Products { inner: fields.inner, payload: payload.clone() })
}
