//! WEIGHT_SYNC: which experts a worker is to hold, and which it holds.
//!
//! ```text
//! header   type 5, sequence id 0, tensor fields 0
//! payload  {"type": "sync", ...}    hub: blocks to add, where they are, in the order to load; blocks to drop
//!          {"type": "report", ...}  worker: blocks now resident, or failed and why; bytes done of total
//! ```
//!
//! Both say changes, not states, so a long list goes as several frames of the same epoch: the encoders here cut at
//! [`MAX_BLOCKS_PER_FRAME`] and at [`MAX_CONTROL_BYTES`].

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::compression::Compression;
use crate::error::DecodeError;
use crate::frame::{decode_control, decode_type, encode_control, unknown_type};
use crate::header::{FrameType, HEADER_BYTES};
use crate::id::{AttemptId, Block};
use crate::limits::{MAX_BLOCKS_PER_FRAME, MAX_CONTROL_BYTES, MAX_ERROR_TEXT_BYTES};

/// The body of a WEIGHT_SYNC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WeightSyncFrame {
    /// From the hub.
    #[cfg_attr(target_arch = "wasm32", serde(skip_serializing))]
    Sync(WeightSync),
    /// From a worker.
    Report(BlockReport),
}

/// What a worker is to change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightSync {
    /// Which placement this is part of; reports repeat it.
    pub epoch: u64,
    /// Blocks to add, in the order to load.
    #[serde(default)]
    pub hold: Vec<BlockSource>,
    /// Blocks to give up, before adding any.
    #[serde(default)]
    pub drop: Vec<Block>,
}

/// Where a block is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockSource {
    /// Which block.
    pub block: Block,
    /// An absolute path on the hub, or a URL.
    pub url: String,
    /// The first byte.
    pub start: u64,
    /// The end of the range, exclusive.
    pub end: u64,
    /// BLAKE3 of those bytes, in hex.
    pub blake3: String,
}

/// What changed at a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockReport {
    /// The placement it follows.
    pub epoch: u64,
    /// Blocks that are served from now on.
    #[serde(default)]
    pub resident: Vec<Block>,
    /// Blocks that could not be loaded, and why.
    #[serde(default)]
    pub failed: Vec<(Block, String)>,
    /// Bytes resident of this placement.
    #[serde(default)]
    pub bytes_done: u64,
    /// Bytes of this placement.
    #[serde(default)]
    pub bytes_total: u64,
    /// Bytes that came over the network and not from a cache, since the start of the connection.
    #[serde(default)]
    pub bytes_downloaded: u64,
}

impl WeightSyncFrame {
    /// The one message that says it. For lists that may pass the limits of a frame see [`WeightSync::encode`] and
    /// [`BlockReport::encode`].
    pub fn encode(&self, compression: Compression) -> Bytes {
        encode_control(FrameType::WeightSync, AttemptId::default(), self, compression)
    }

    pub(crate) fn from_payload(payload: &[u8]) -> Result<Self, DecodeError> {
        let frame = match decode_type(payload)?.as_str() {
            "sync" => Self::Sync(decode_control(payload)?),
            #[cfg(not(target_arch = "wasm32"))]
            "report" => Self::Report(decode_control(payload)?),
            _ => return Err(unknown_type()),
        };
        let blocks = match &frame {
            Self::Sync(sync) => sync.hold.len() + sync.drop.len(),
            Self::Report(report) => report.resident.len() + report.failed.len(),
        };
        if blocks > MAX_BLOCKS_PER_FRAME {
            return Err(DecodeError::TooManyBlocks { blocks });
        }
        Ok(frame)
    }
}

impl WeightSync {
    /// The messages that say it, at least one: what to drop first, then what to add, in order.
    ///
    /// # Errors
    /// The block whose entry alone is too large for a frame.
    pub fn encode(&self, compression: Compression) -> Result<Vec<Bytes>, Block> {
        let epoch = self.epoch;
        let mut pieces: Vec<_> = (self.drop.chunks(MAX_BLOCKS_PER_FRAME))
            .map(|drop| Self { epoch, hold: Vec::new(), drop: drop.to_vec() })
            .collect();
        let mut hold = self.hold.as_slice();
        while !hold.is_empty() {
            let n = fitting(hold, |source| source.url.len() + source.blake3.len()).ok_or(hold[0].block)?;
            let (piece, rest) = hold.split_at(n);
            hold = rest;
            pieces.push(Self { epoch, hold: piece.to_vec(), drop: Vec::new() });
        }
        if pieces.is_empty() {
            pieces.push(Self { epoch, ..Self::default() });
        }
        Ok(pieces.into_iter().map(|piece| WeightSyncFrame::Sync(piece).encode(compression)).collect())
    }
}

impl BlockReport {
    /// The messages that say it, at least one. All but the blocks is repeated in each; reasons are cut at
    /// [`MAX_ERROR_TEXT_BYTES`].
    pub fn encode(&self, compression: Compression) -> Vec<Bytes> {
        let counts = Self { resident: Vec::new(), failed: Vec::new(), ..self.clone() };
        let mut pieces: Vec<_> = (self.resident.chunks(MAX_BLOCKS_PER_FRAME))
            .map(|resident| Self { resident: resident.to_vec(), ..counts.clone() })
            .collect();
        let failed: Vec<_> = self.failed.iter().map(|(block, reason)| (*block, cut(reason))).collect();
        let mut failed = failed.as_slice();
        // A cut reason always fits, so this ends with the list.
        while let Some(n) = fitting(failed, |(_, reason)| reason.len()) {
            let (piece, rest) = failed.split_at(n);
            failed = rest;
            pieces.push(Self { failed: piece.to_vec(), ..counts.clone() });
        }
        if pieces.is_empty() {
            pieces.push(counts);
        }
        pieces.into_iter().map(|piece| WeightSyncFrame::Report(piece).encode(compression)).collect()
    }
}

/// The most that an entry takes in JSON beside its texts.
const ENTRY_BYTES: usize = 160;

/// Bytes of JSON that one byte of text takes at most: a control character is six.
const ESCAPED_BYTES: usize = 6;

/// How many leading entries fit one frame, whatever their texts hold; `None` when not even the first does, or there is
/// none.
fn fitting<T>(entries: &[T], text_bytes: impl Fn(&T) -> usize) -> Option<usize> {
    let mut room = MAX_CONTROL_BYTES - HEADER_BYTES - 2 * ENTRY_BYTES;
    let fits = |entry: &&T| {
        let bytes = ESCAPED_BYTES * text_bytes(entry) + ENTRY_BYTES;
        let enough = bytes <= room;
        room = room.saturating_sub(bytes);
        enough
    };
    let n = entries.iter().take(MAX_BLOCKS_PER_FRAME).take_while(fits).count();
    (n > 0).then_some(n)
}

fn cut(reason: &str) -> String {
    reason[..reason.floor_char_boundary(MAX_ERROR_TEXT_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, decode_message};
    use crate::id::{ExpertId, LayerId};

    fn block(index: u16) -> Block {
        Block { layer: LayerId(index / 128), expert: ExpertId(index % 128) }
    }

    fn source(index: u16, url: &str) -> BlockSource {
        BlockSource { block: block(index), url: url.into(), start: 0, end: 10, blake3: "ab".repeat(32) }
    }

    #[test]
    fn golden_bytes() {
        let report =
            BlockReport { epoch: 2, resident: vec![block(130)], bytes_done: 10, ..BlockReport::default() };
        let frame = WeightSyncFrame::Report(report);
        let message = frame.encode(Compression::Off);
        #[rustfmt::skip]
        let header: [u8; 28] = [
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x05, 0x00,  0x80, 0x00, 0x00, 0x00,  0x00, 0x00, 0x00, 0x00,
            0x00, 0x00,  0x00, 0x00,  0x00, 0x00, 0x00, 0x00,  0x00, 0x00,  0x00,  0x00,
        ];
        let json = concat!(
            r#"{"type":"report","epoch":2,"resident":[{"layer":1,"expert":2}],"#,
            r#""failed":[],"bytes_done":10,"bytes_total":0,"bytes_downloaded":0}"#
        );
        assert_eq!(std::str::from_utf8(&message[28..]), Ok(json));
        assert_eq!(message[..28], header);
        assert_eq!(decode_message(&message), Ok(vec![Frame::WeightSync(frame)]));
    }

    #[test]
    fn long_lists_go_as_several_frames_of_one_epoch() {
        let sync = WeightSync {
            epoch: 9,
            hold: (0..6144).map(|index| source(index, &"u".repeat(300))).collect(),
            drop: (0..1500).map(block).collect(),
        };
        let mut together = WeightSync { epoch: 9, ..WeightSync::default() };
        for message in sync.encode(Compression::Off).unwrap() {
            let frames = decode_message(&message).unwrap();
            let [Frame::WeightSync(WeightSyncFrame::Sync(piece))] = frames.as_slice() else {
                panic!("a sync")
            };
            assert_eq!(piece.epoch, 9);
            together.hold.extend_from_slice(&piece.hold);
            together.drop.extend_from_slice(&piece.drop);
        }
        assert_eq!(together, sync);
        let huge =
            WeightSync { epoch: 1, hold: vec![source(7, &"u".repeat(MAX_CONTROL_BYTES))], drop: vec![] };
        assert_eq!(huge.encode(Compression::Off), Err(block(7)));
    }

    #[test]
    fn reports_are_cut_to_frames_whatever_their_reasons() {
        let report = BlockReport {
            failed: (0..3000).map(|index| (block(index), "\u{1}".repeat(5000))).collect(),
            ..BlockReport::default()
        };
        let mut n_failed = 0;
        for message in report.encode(Compression::Off) {
            let frames = decode_message(&message).unwrap();
            let [Frame::WeightSync(WeightSyncFrame::Report(piece))] = frames.as_slice() else {
                panic!("a report")
            };
            n_failed += piece.failed.len();
        }
        assert_eq!(n_failed, 3000);
        assert_eq!(BlockReport::default().encode(Compression::Off).len(), 1);
    }
}
