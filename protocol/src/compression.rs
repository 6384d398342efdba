//! LZ4 payloads: the expanded size as a little-endian u32, then one LZ4 block.
//!
//! The announced size is compared with what the header implies before anything is allocated, and the length that came
//! out with the announced size after. Which frames compress is the sender's choice, frame by frame.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::DecodeError;

/// When the two ends of a connection compress what they send. The hub chooses; a worker that takes compressed payloads
/// follows, and nothing is compressed for one that does not say that it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompressionMode {
    /// Never.
    #[default]
    Off,
    /// Where the link is measured to be so slow, and payloads shrink so much, that it saves time.
    Auto,
    /// Always.
    On,
}

impl CompressionMode {
    pub(crate) fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

/// Whether to try LZ4 when encoding. A payload that would not shrink is sent as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Payloads as they are.
    #[default]
    Off,
    /// LZ4 where it makes a frame smaller.
    Lz4,
}

/// `payload` compressed, if that makes it smaller. In wasm32 nothing is: what a tab sends shrinks too little to be worth a
/// hundredth of its bundle (`cargo xtask bench compression`), and it expands what it is sent all the same.
pub(crate) fn compress(payload: &[u8]) -> Option<Vec<u8>> {
    if cfg!(target_arch = "wasm32") {
        return None;
    }
    let packed = lz4_flex::block::compress_prepend_size(payload);
    (packed.len() < payload.len()).then_some(packed)
}

/// What sizes an expanded payload may have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// Exactly these bytes: the header implies them.
    Exactly(u64),
    /// At most these: a control frame's limit.
    AtMost(usize),
}

/// The size that a compressed payload announces, if it is one that was expected.
pub(crate) fn announced_size(payload: &[u8], expected: Expected) -> Result<usize, DecodeError> {
    let prefix: [u8; 4] = payload.first_chunk().copied().ok_or(DecodeError::Lz4)?;
    let announced = u32::from_le_bytes(prefix);
    match expected {
        Expected::Exactly(bytes) if u64::from(announced) != bytes => {
            Err(DecodeError::Length { bytes: u64::from(announced), implied: bytes })
        }
        Expected::AtMost(limit) if announced as usize > limit => {
            Err(DecodeError::ControlTooLarge { bytes: u64::from(announced) })
        }
        _ => Ok(announced as usize),
    }
}

/// Expands a payload whose [`announced_size`] is `size`.
pub(crate) fn expand(payload: &[u8], size: usize) -> Result<Bytes, DecodeError> {
    let block = payload.get(4..).ok_or(DecodeError::Lz4)?;
    let expanded = lz4_flex::block::decompress(block, size).map_err(|_| DecodeError::Lz4)?;
    if expanded.len() != size {
        return Err(DecodeError::Lz4);
    }
    Ok(Bytes::from(expanded))
}
