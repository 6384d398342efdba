//! RESULT: what a worker computed, gate x expert(row), the gate applied by the worker.
//!
//! ```text
//! header   type 2, the dispatch's sequence id, layer, hidden and dtype; expert; tokens = rows
//! payload  (rows, hidden) in dtype
//! ```
//!
//! One frame for each expert over that expert's rows in the order of its pairs.

use bytes::{BufMut, Bytes};

use crate::compression::Compression;
use crate::dtype::Dtype;
use crate::error::{DecodeError, ShapeError};
use crate::frame::{MessageWriter, RawFrame};
use crate::header::{Flags, FrameType, HEADER_BYTES, TensorFields};
use crate::id::{AttemptId, ExpertId, LayerId};
use crate::limits::{MAX_FRAMES_PER_MESSAGE, MAX_HIDDEN, MAX_MESSAGE_BYTES, MAX_ROWS};
use crate::tensor::has_non_finite;

/// The answer to one dispatch: one part for each call, in the order of the calls, with that call's pairs as rows, in
/// order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The layer.
    pub layer: LayerId,
    /// D, the width of a row.
    pub hidden: u16,
    /// The format of every part.
    pub dtype: Dtype,
    /// In ascending order of experts.
    pub parts: Vec<AnswerPart>,
}

/// One tensor of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerPart {
    /// Whose.
    pub expert: ExpertId,
    /// How many rows.
    pub rows: u32,
    /// (rows, D): rows x [`Dtype::row_bytes`] bytes.
    pub payload: Bytes,
}

/// Everything about an answer but its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerShape {
    /// The layer.
    pub layer: LayerId,
    /// D, the width of a row.
    pub hidden: u16,
    /// The format.
    pub dtype: Dtype,
    /// Expert and rows of each part, in order.
    pub parts: Vec<(ExpertId, u32)>,
}

impl Answer {
    /// Its shape, to compare with [`Dispatch::answer_shape`](super::dispatch::Dispatch::answer_shape).
    pub fn shape(&self) -> AnswerShape {
        let parts = self.parts.iter().map(|part| (part.expert, part.rows)).collect();
        AnswerShape { layer: self.layer, hidden: self.hidden, dtype: self.dtype, parts }
    }

    /// Whether it is of `shape`. Allocates nothing.
    pub fn has_shape(&self, shape: &AnswerShape) -> bool {
        (self.layer, self.hidden, self.dtype) == (shape.layer, shape.hidden, shape.dtype)
            && self.parts.iter().map(|part| (part.expert, part.rows)).eq(shape.parts.iter().copied())
    }

    /// Whether any value is an infinity or a NaN.
    pub fn has_non_finite(&self) -> bool {
        self.parts.iter().any(|part| has_non_finite(self.dtype, usize::from(self.hidden), &part.payload))
    }

    /// Checks that it can be sent: everything that decoding it at the other end will check.
    ///
    /// # Errors
    /// The first contradiction or passed limit.
    pub fn check(&self) -> Result<(), ShapeError> {
        if self.hidden == 0 || self.hidden > MAX_HIDDEN {
            return Err(ShapeError::Hidden { hidden: self.hidden });
        }
        if self.parts.is_empty() {
            return Err(ShapeError::Empty);
        }
        if self.parts.len() > MAX_FRAMES_PER_MESSAGE {
            return Err(ShapeError::TooManyFrames { frames: self.parts.len() });
        }
        let ascending = self.parts.windows(2).all(|two| two[0].expert < two[1].expert);
        // 0xFFFF is the greatest id, so it could only be the last.
        if !ascending || self.parts.last().is_some_and(|part| part.expert == ExpertId::NONE) {
            return Err(ShapeError::ExpertOrder);
        }
        let row_bytes = self.dtype.row_bytes(usize::from(self.hidden));
        for AnswerPart { rows, payload, .. } in &self.parts {
            match *rows {
                0 => return Err(ShapeError::Empty),
                rows if rows > MAX_ROWS => return Err(ShapeError::TooManyRows { rows: u64::from(rows) }),
                rows if payload.len() as u64 != u64::from(rows) * row_bytes as u64 => {
                    return Err(ShapeError::RowBytes { bytes: payload.len(), row_bytes });
                }
                _ => {}
            }
        }
        let bytes = self.message_bytes();
        if bytes > MAX_MESSAGE_BYTES as u64 {
            return Err(ShapeError::TooLarge { bytes });
        }
        Ok(())
    }

    /// The message that answers `attempt`: one buffer, one allocation when uncompressed.
    ///
    /// # Errors
    /// See [`Answer::check`].
    pub fn encode(&self, attempt: AttemptId, compression: Compression) -> Result<Bytes, ShapeError> {
        self.check()?;
        let payload_bytes = self.parts.iter().map(|part| part.payload.len()).sum();
        let mut writer = MessageWriter::new(self.parts.len(), payload_bytes, compression);
        for AnswerPart { expert, rows, payload } in &self.parts {
            let tensor = TensorFields {
                layer: self.layer,
                expert: *expert,
                rows: *rows,
                hidden: self.hidden,
                dtype: self.dtype,
            };
            let write = |out: &mut bytes::BytesMut| out.put_slice(payload);
            writer.frame(FrameType::Result, attempt, Some(tensor), Flags::NONE, payload.len(), write);
        }
        Ok(writer.finish())
    }

    /// The answer that consecutive frames of one attempt make up. `frames` is not empty, all are RESULT, and their
    /// payloads are of the lengths that [`implied_bytes`] gives.
    pub(crate) fn from_frames(frames: &[RawFrame]) -> Result<Self, DecodeError> {
        let tensors = frames.iter().map(|frame| (frame.header.tensor, &frame.payload));
        let mut answer: Option<Self> = None;
        for (tensor, payload) in tensors {
            let TensorFields { layer, expert, rows, hidden, dtype } =
                tensor.ok_or(DecodeError::Mixed { reason: "a tensor frame without a tensor" })?;
            let answer = answer.get_or_insert_with(|| Self { layer, hidden, dtype, parts: Vec::new() });
            if (layer, hidden, dtype) != (answer.layer, answer.hidden, answer.dtype) {
                return Err(DecodeError::Mixed { reason: "layer, width or dtype differ" });
            }
            answer.parts.push(AnswerPart { expert, rows, payload: payload.clone() });
        }
        let answer = answer.ok_or(DecodeError::Empty)?;
        answer.check()?;
        Ok(answer)
    }

    /// Bytes of the whole message, uncompressed.
    pub(crate) fn message_bytes(&self) -> u64 {
        self.parts.iter().map(|part| (HEADER_BYTES + part.payload.len()) as u64).sum()
    }
}

/// How many bytes the payload of a RESULT has by its header.
pub(crate) fn implied_bytes(tensor: &TensorFields) -> Result<u64, DecodeError> {
    if tensor.expert == ExpertId::NONE {
        return Err(DecodeError::Mixed { reason: "a result without an expert" });
    }
    Ok(tensor.tensor_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, decode_message};

    fn sample(experts: &[u16]) -> Answer {
        let part = |expert: &u16| AnswerPart {
            expert: ExpertId(*expert),
            rows: 1,
            payload: Bytes::from_static(&[0x00, 0x3C]),
        };
        Answer { layer: LayerId(3), hidden: 1, dtype: Dtype::F16, parts: experts.iter().map(part).collect() }
    }

    #[test]
    #[rustfmt::skip]
    fn golden_bytes() {
        let message = sample(&[5, 42]).encode(AttemptId(1), Compression::Off).unwrap();
        let golden = [
            0x4D, 0x6F, 0x45, 0x78,  0x01, 0x00,  0x02, 0x00,  0x02, 0x00, 0x00, 0x00,  0x01, 0x00, 0x00, 0x00,
            0x03, 0x00,  0x05, 0x00,  0x01, 0x00, 0x00, 0x00,  0x01, 0x00,  0x01,  0x00,
            0x00, 0x3C,
            0x4D, 0x6F, 0x45, 0x78,  0x01, 0x00,  0x02, 0x00,  0x02, 0x00, 0x00, 0x00,  0x01, 0x00, 0x00, 0x00,
            0x03, 0x00,  0x2A, 0x00,  0x01, 0x00, 0x00, 0x00,  0x01, 0x00,  0x01,  0x00,
            0x00, 0x3C,
        ];
        assert_eq!(message[..], golden);
        let back = decode_message(&message);
        assert_eq!(back, Ok(vec![Frame::Result(AttemptId(1), sample(&[5, 42]))]));
    }

    #[test]
    fn payloads_are_slices_of_the_message() {
        let message = sample(&[5, 42]).encode(AttemptId(1), Compression::Off).unwrap();
        let frames = decode_message(&message).unwrap();
        let [Frame::Result(_, answer)] = frames.as_slice() else { panic!("one answer") };
        assert_eq!(answer.parts[1].payload.as_ptr(), message[28 + 2 + 28..].as_ptr());
    }

    #[test]
    fn contradictions_are_named() {
        assert_eq!(sample(&[]).check(), Err(ShapeError::Empty));
        assert_eq!(sample(&[1, 1]).check(), Err(ShapeError::ExpertOrder));
        assert_eq!(sample(&[0xFFFF]).check(), Err(ShapeError::ExpertOrder));
        let mut short = sample(&[1]);
        short.parts[0].rows = 2;
        assert_eq!(short.check(), Err(ShapeError::RowBytes { bytes: 2, row_bytes: 2 }));
    }
}
