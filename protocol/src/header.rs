//! The 28 bytes before every payload.
//!
//! ```text
//! 0x00  4  magic           4D 6F 45 78, "MoEx"
//! 0x04  2  version         2
//! 0x06  2  type            1 DISPATCH, 2 RESULT, 3 CANCEL, 4 HEARTBEAT, 5 WEIGHT_SYNC, 6 ERROR, 8 PRODUCTS, 9 DIGESTS
//! 0x08  4  payload length  bytes after the header
//! 0x0C  4  sequence id     the attempt; 0 where there is none
//! 0x10  2  layer           DISPATCH, RESULT and PRODUCTS only from here on; 0 elsewhere
//! 0x12  2  expert          0xFFFF: none
//! 0x14  4  tokens          rows, or (row, gate) pairs
//! 0x18  2  hidden width    in PRODUCTS the inner width
//! 0x1A  1  dtype           1 f16, 2 bf16, 3 int8, 4 int4; in PRODUCTS 0 f32 or 1
//! 0x1B  1  flags           bit 0 compressed, bit 2 by-row, bit 3 products wanted, bit 4 digests wanted; the others must be 0
//! ```
//!
//! The magic is those four bytes in that order; every other field is little-endian. What follows a header, and whether
//! its length fits it, is each frame's own.

use bytes::BufMut;

use crate::VERSION;
use crate::dtype::Dtype;
use crate::error::DecodeError;
use crate::frame::products::{ProductFormat, ProductShape};
use crate::id::{AttemptId, ExpertId, LayerId};
use crate::limits::{MAX_HIDDEN, MAX_INNER, MAX_PAIRS, MAX_ROWS};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 28;

/// The first four bytes of every frame: `MoEx`.
pub const MAGIC: [u8; 4] = *b"MoEx";

/// What a frame is, from the header's type field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameType {
    /// Rows for a worker to compute.
    Dispatch,
    /// What it computed.
    Result,
    /// Forget an attempt.
    Cancel,
    /// Join, accepted, ping, beat.
    Heartbeat,
    /// Blocks to hold; blocks now held.
    WeightSync,
    /// What went wrong.
    Error,
    /// By what a result can be checked.
    Products,
    /// What stands for results.
    Digests,
}

impl FrameType {
    /// The header's value.
    pub const fn wire(self) -> u16 {
        match self {
            Self::Dispatch => 1,
            Self::Result => 2,
            Self::Cancel => 3,
            Self::Heartbeat => 4,
            Self::WeightSync => 5,
            Self::Error => 6,
            Self::Products => 8,
            Self::Digests => 9,
        }
    }

    /// The type that a header's value names; `None` is a frame to skip.
    pub const fn from_wire(value: u16) -> Option<Self> {
        match value {
            1 => Some(Self::Dispatch),
            2 => Some(Self::Result),
            3 => Some(Self::Cancel),
            4 => Some(Self::Heartbeat),
            5 => Some(Self::WeightSync),
            6 => Some(Self::Error),
            8 => Some(Self::Products),
            9 => Some(Self::Digests),
            _ => None,
        }
    }
}

/// The header's last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// None set.
    pub const NONE: Self = Self(0);
    /// The payload is LZ4 behind its expanded size.
    pub const COMPRESSED: Self = Self(1);
    /// The payload is (row, gate) pairs into the message's rows.
    pub const BY_ROW: Self = Self(1 << 2);
    /// The answer is to come with products.
    pub const PRODUCTS: Self = Self(1 << 3);
    /// The answer is to be digests of the results.
    pub const DIGESTS: Self = Self(1 << 4);

    /// The flags set in either.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags set here and not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// What a DISPATCH's or a RESULT's header says of its tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorFields {
    /// The layer.
    pub layer: LayerId,
    /// The expert, or [`ExpertId::NONE`].
    pub expert: ExpertId,
    /// Rows, or pairs in a by-row frame: 1 to [`MAX_ROWS`].
    pub rows: u32,
    /// D: 1 to [`MAX_HIDDEN`].
    pub hidden: u16,
    /// The number format of the rows.
    pub dtype: Dtype,
}

impl TensorFields {
    /// Bytes of `rows` rows. In 64 bits: the limits alone allow more than a wasm32 `usize` holds.
    pub fn tensor_bytes(&self) -> u64 {
        u64::from(self.rows) * self.dtype.row_bytes(usize::from(self.hidden)) as u64
    }
}

/// What a PRODUCTS' header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductFields {
    /// The layer.
    pub layer: LayerId,
    /// P, the rows of the answer: 1 to [`MAX_PAIRS`].
    pub rows: u32,
    /// Of each row; its F is 1 to [`MAX_INNER`].
    pub shape: ProductShape,
}

/// One decoded header of a type this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub frame_type: FrameType,
    /// Bytes that follow.
    pub payload_bytes: u32,
    /// The attempt, 0 where there is none.
    pub attempt: AttemptId,
    /// Of DISPATCH and RESULT, and of nothing else.
    pub tensor: Option<TensorFields>,
    /// Of PRODUCTS, and of nothing else.
    pub products: Option<ProductFields>,
    /// Compressed, by-row, products or digests wanted.
    pub flags: Flags,
}

/// A header, or how many bytes of payload to skip behind one of an unknown type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    Known(Header),
    Unknown { payload_bytes: u32 },
}

impl Header {
    /// Appends the 28 bytes.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_slice(&MAGIC);
        out.put_u16_le(VERSION);
        out.put_u16_le(self.frame_type.wire());
        out.put_u32_le(self.payload_bytes);
        out.put_u32_le(self.attempt.0);
        match (&self.tensor, &self.products) {
            (Some(tensor), _) => {
                out.put_u16_le(tensor.layer.0);
                out.put_u16_le(tensor.expert.0);
                out.put_u32_le(tensor.rows);
                out.put_u16_le(tensor.hidden);
                out.put_u8(tensor.dtype.wire());
            }
            (None, Some(products)) => {
                out.put_u16_le(products.layer.0);
                out.put_u16_le(ExpertId::NONE.0);
                out.put_u32_le(products.rows);
                out.put_u16_le(products.shape.inner);
                out.put_u8(products.shape.format.wire());
            }
            (None, None) => out.put_bytes(0, 11),
        }
        out.put_u8(self.flags.0);
    }

    /// Reads the 28 bytes and checks every field that can be checked without the payload.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Decoded, DecodeError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != MAGIC {
            return Err(DecodeError::Magic);
        }
        let version = u16_at(0x04);
        if version != VERSION {
            return Err(DecodeError::Version { version });
        }
        let payload_bytes = u32_at(0x08);
        let Some(frame_type) = FrameType::from_wire(u16_at(0x06)) else {
            return Ok(Decoded::Unknown { payload_bytes });
        };
        let flags = Flags(bytes[0x1B]);
        if flags.without(allowed_flags(frame_type)) != Flags::NONE {
            return Err(DecodeError::Flags { flags: flags.0 });
        }
        let mut products = None;
        let tensor = match frame_type {
            FrameType::Products => {
                let dtype = bytes[0x1A];
                let format = ProductFormat::from_wire(dtype).ok_or(DecodeError::Dtype { byte: dtype })?;
                let shape = ProductShape { inner: u16_at(0x18), format };
                let fields = ProductFields { layer: LayerId(u16_at(0x10)), rows: u32_at(0x14), shape };
                check_products(&fields, ExpertId(u16_at(0x12)))?;
                products = Some(fields);
                None
            }
            FrameType::Dispatch | FrameType::Result => {
                let tensor = TensorFields {
                    layer: LayerId(u16_at(0x10)),
                    expert: ExpertId(u16_at(0x12)),
                    rows: u32_at(0x14),
                    hidden: u16_at(0x18),
                    dtype: Dtype::from_wire(bytes[0x1A]).ok_or(DecodeError::Dtype { byte: bytes[0x1A] })?,
                };
                check_tensor(&tensor)?;
                Some(tensor)
            }
            _ if bytes[0x10..0x1B].iter().any(|&byte| byte != 0) => return Err(DecodeError::NotZero),
            _ => None,
        };
        Ok(Decoded::Known(Header {
            frame_type,
            payload_bytes,
            attempt: AttemptId(u32_at(0x0C)),
            tensor,
            products,
            flags,
        }))
    }
}

const fn allowed_flags(frame_type: FrameType) -> Flags {
    match frame_type {
        FrameType::Dispatch => {
            Flags::COMPRESSED.with(Flags::BY_ROW).with(Flags::PRODUCTS).with(Flags::DIGESTS)
        }
        FrameType::Result | FrameType::Products => Flags::COMPRESSED,
        FrameType::Cancel | FrameType::Digests => Flags::NONE,
        FrameType::Heartbeat | FrameType::WeightSync | FrameType::Error => Flags::COMPRESSED,
    }
}

fn check_products(fields: &ProductFields, expert: ExpertId) -> Result<(), DecodeError> {
    match *fields {
        _ if expert != ExpertId::NONE => Err(DecodeError::Mixed { reason: "products of one expert" }),
        ProductFields { rows: 0, .. } => Err(DecodeError::NoRows),
        ProductFields { shape: ProductShape { inner: 0, .. }, .. } => Err(DecodeError::NoHidden),
        ProductFields { rows, .. } if rows > MAX_PAIRS => {
            Err(DecodeError::TooManyRows { rows: u64::from(rows) })
        }
        ProductFields { shape: ProductShape { inner, .. }, .. } if inner > MAX_INNER => {
            Err(DecodeError::InnerTooWide { inner })
        }
        _ => Ok(()),
    }
}

fn check_tensor(tensor: &TensorFields) -> Result<(), DecodeError> {
    match tensor {
        TensorFields { rows: 0, .. } => Err(DecodeError::NoRows),
        TensorFields { hidden: 0, .. } => Err(DecodeError::NoHidden),
        &TensorFields { rows, .. } if rows > MAX_ROWS => {
            Err(DecodeError::TooManyRows { rows: u64::from(rows) })
        }
        &TensorFields { hidden, .. } if hidden > MAX_HIDDEN => Err(DecodeError::HiddenTooWide { hidden }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_header_of_the_design() {
        let header = Header {
            frame_type: FrameType::Dispatch,
            payload_bytes: 4098,
            attempt: AttemptId(7),
            tensor: Some(TensorFields {
                layer: LayerId(3),
                expert: ExpertId(42),
                rows: 1,
                hidden: 2048,
                dtype: Dtype::F16,
            }),
            products: None,
            flags: Flags::NONE,
        };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        #[rustfmt::skip]
        let golden: [u8; HEADER_BYTES] = [
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x01, 0x00,  0x02, 0x10, 0x00, 0x00,  0x07, 0x00, 0x00, 0x00,
            0x03, 0x00,  0x2A, 0x00,  0x01, 0x00, 0x00, 0x00,  0x00, 0x08,  0x01,  0x00,
        ];
        assert_eq!(bytes, golden);
        assert_eq!(Header::decode(&golden), Ok(Decoded::Known(header)));
    }
}
