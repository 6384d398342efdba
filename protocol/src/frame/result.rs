//! RESULT: what a worker computed, gate x expert(row), the gate applied by the worker.
//!
//! ```text
//! header   type 2, the dispatch's sequence id, layer, hidden and dtype; expert; tokens = rows
//! payload  (rows, hidden) in dtype
//! ```
//!
//! One frame for each expert over that expert's rows in the order of its pairs; behind them [`super::products`], where they
//! were asked for.

use bytes::{BufMut, Bytes};

use crate::compression::Compression;
use crate::dtype::Dtype;
use crate::error::{DecodeError, ShapeError};
use crate::frame::digests::Digest;
use crate::frame::products::{self, Products};
use crate::frame::reply::Reply;
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
    /// By what it can be checked, where that was asked for: for all rows of the parts, in their order.
    pub products: Option<Products>,
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
    /// What stands beside them or for them.
    pub reply: Reply,
}

impl Answer {
    /// Its shape, to compare with [`Dispatch::answer_shape`](super::dispatch::Dispatch::answer_shape).
    pub fn shape(&self) -> AnswerShape {
        let parts = self.parts.iter().map(|part| (part.expert, part.rows)).collect();
        let reply = if self.products.is_some() { Reply::RowsAndProducts } else { Reply::Rows };
        AnswerShape { layer: self.layer, hidden: self.hidden, dtype: self.dtype, parts, reply }
    }

    /// Whether it is of `shape`, or what digests of that shape are of. Allocates nothing.
    pub fn has_shape(&self, shape: &AnswerShape) -> bool {
        (self.layer, self.hidden, self.dtype) == (shape.layer, shape.hidden, shape.dtype)
            && self.products.is_some() == (shape.reply == Reply::RowsAndProducts)
            && self.parts.iter().map(|part| (part.expert, part.rows)).eq(shape.parts.iter().copied())
    }

    /// Whether any value is an infinity or a NaN. Products are not looked at: they are compared with others.
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
        if self.n_frames() > MAX_FRAMES_PER_MESSAGE {
            return Err(ShapeError::TooManyFrames { frames: self.n_frames() });
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
        if let Some(products) = &self.products {
            products.check(self.parts.iter().map(|part| u64::from(part.rows)).sum())?;
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
        let payload_bytes = self.message_bytes() as usize - self.n_frames() * HEADER_BYTES;
        let mut writer = MessageWriter::new(self.n_frames(), payload_bytes, compression);
        for AnswerPart { expert, rows, payload } in &self.parts {
            let tensor = self.tensor(*expert, *rows);
            let write = |out: &mut bytes::BytesMut| out.put_slice(payload);
            writer.frame(FrameType::Result, attempt, Some(tensor), Flags::NONE, payload.len(), write);
        }
        if let Some(products) = &self.products {
            products.write(attempt, self.layer, &mut writer);
        }
        Ok(writer.finish())
    }

    /// What stands for its rows as the answer to `attempt`.
    pub fn digests(&self, attempt: AttemptId) -> Vec<Digest> {
        let digest =
            |part: &AnswerPart| Digest::of(attempt, self.tensor(part.expert, part.rows), &part.payload);
        self.parts.iter().map(digest).collect()
    }

    fn tensor(&self, expert: ExpertId, rows: u32) -> TensorFields {
        TensorFields { layer: self.layer, expert, rows, hidden: self.hidden, dtype: self.dtype }
    }

    /// The answer that consecutive frames of one attempt make up. `frames` is not empty, all are RESULT but perhaps the last,
    /// which may be PRODUCTS, and their payloads are of the lengths that their headers imply.
    pub(crate) fn from_frames(frames: &[RawFrame]) -> Result<Self, DecodeError> {
        let (frames, products) = match frames.split_last() {
            Some((last, frames)) if last.header.frame_type == FrameType::Products => (frames, Some(last)),
            _ => (frames, None),
        };
        let tensors = frames.iter().map(|frame| (frame.header.tensor, &frame.payload));
        let mut answer: Option<Self> = None;
        for (tensor, payload) in tensors {
            let TensorFields { layer, expert, rows, hidden, dtype } =
                tensor.ok_or(DecodeError::Mixed { reason: "a tensor frame without a tensor" })?;
            let answer = answer.get_or_insert_with(|| Self {
                layer,
                hidden,
                dtype,
                parts: Vec::new(),
                products: None,
            });
            if (layer, hidden, dtype) != (answer.layer, answer.hidden, answer.dtype) {
                return Err(DecodeError::Mixed { reason: "layer, width or dtype differ" });
            }
            answer.parts.push(AnswerPart { expert, rows, payload: payload.clone() });
        }
        let mut answer = answer.ok_or(DecodeError::Empty)?;
        if let Some(frame) = products {
            answer.products = Some(products::read(frame.header.products, &frame.payload, answer.layer)?);
        }
        answer.check()?;
        Ok(answer)
    }

    /// Bytes of the whole message, uncompressed.
    pub(crate) fn message_bytes(&self) -> u64 {
        let parts = self.parts.iter().map(|part| (HEADER_BYTES + part.payload.len()) as u64);
        parts.sum::<u64>() + self.products.as_ref().map_or(0, Products::frame_bytes)
    }

    fn n_frames(&self) -> usize {
        self.parts.len() + usize::from(self.products.is_some())
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
    use crate::frame::products::{ProductFormat, ProductShape};
    use crate::frame::{Frame, decode_message};

    fn sample(experts: &[u16]) -> Answer {
        let part = |expert: &u16| AnswerPart {
            expert: ExpertId(*expert),
            rows: 1,
            payload: Bytes::from_static(&[0x00, 0x3C]),
        };
        let parts = experts.iter().map(part).collect();
        Answer { layer: LayerId(3), hidden: 1, dtype: Dtype::F16, parts, products: None }
    }

    #[test]
    #[rustfmt::skip]
    fn golden_bytes() {
        let message = sample(&[5, 42]).encode(AttemptId(1), Compression::Off).unwrap();
        let golden = [
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x02, 0x00,  0x02, 0x00, 0x00, 0x00,  0x01, 0x00, 0x00, 0x00,
            0x03, 0x00,  0x05, 0x00,  0x01, 0x00, 0x00, 0x00,  0x01, 0x00,  0x01,  0x00,
            0x00, 0x3C,
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x02, 0x00,  0x02, 0x00, 0x00, 0x00,  0x01, 0x00, 0x00, 0x00,
            0x03, 0x00,  0x2A, 0x00,  0x01, 0x00, 0x00, 0x00,  0x01, 0x00,  0x01,  0x00,
            0x00, 0x3C,
        ];
        assert_eq!(message[..], golden);
        let back = decode_message(&message);
        assert_eq!(back, Ok(vec![Frame::Result(AttemptId(1), sample(&[5, 42]))]));
    }

    #[test]
    #[rustfmt::skip]
    fn golden_bytes_with_products() {
        let halves: &[u8] = &[
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x08, 0x00,  0x08, 0x00, 0x00, 0x00,  0x01, 0x00, 0x00, 0x00,
            0x03, 0x00,  0xFF, 0xFF,  0x01, 0x00, 0x00, 0x00,  0x02, 0x00,  0x01,  0x00,
            /* gate */ 0x00, 0x3C,  0x00, 0xC0,
            /* up */   0x00, 0x38,  0x00, 0x00,
        ];
        let floats: &[u8] = &[
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x08, 0x00,  0x10, 0x00, 0x00, 0x00,  0x01, 0x00, 0x00, 0x00,
            0x03, 0x00,  0xFF, 0xFF,  0x01, 0x00, 0x00, 0x00,  0x02, 0x00,  0x00,  0x00,
            /* gate */ 0x00, 0x00, 0x80, 0x3F,  0x00, 0x00, 0x00, 0xC0,
            /* up */   0x00, 0x00, 0x00, 0x3F,  0x00, 0x00, 0x00, 0x00,
        ];
        for (format, golden) in [(ProductFormat::F16, halves), (ProductFormat::F32, floats)] {
            let products = Products::new(ProductShape { inner: 2, format }, &[1.0, -2.0, 0.5, 0.0]);
            let answer = Answer { products, ..sample(&[42]) };
            let message = answer.encode(AttemptId(1), Compression::Off).unwrap();
            assert_eq!(&message[28 + 2..], golden);
            assert_eq!(decode_message(&message), Ok(vec![Frame::Result(AttemptId(1), answer)]));
        }
    }

    #[test]
    fn products_are_those_of_the_results_before_them() {
        let shape = ProductShape { inner: 1, format: ProductFormat::F32 };
        let products = |values: &[f32]| Products::new(shape, values);
        let answer = Answer { products: products(&[1.0, 2.0, 3.0, 4.0]), ..sample(&[5, 42]) };
        let message = answer.encode(AttemptId(1), Compression::Off).unwrap();
        let results = 2 * (28 + 2);
        let refused = |message: Vec<u8>| decode_message(&message.into()).unwrap_err();
        let alone = refused(message[results..].to_vec());
        assert_eq!(alone, DecodeError::Mixed { reason: "products without a result" });
        let twice = [&message[..], &message[results..]].concat();
        assert_eq!(refused(twice), DecodeError::Mixed { reason: "products without a result" });
        let changed = |at: usize, byte: u8| {
            let mut message = message.to_vec();
            message[results + at] = byte;
            refused(message)
        };
        assert_eq!(changed(0x10, 4), DecodeError::Mixed { reason: "products of another layer" });
        assert_eq!(changed(0x0C, 9), DecodeError::Mixed { reason: "products without a result" });
        assert_eq!(changed(0x12, 0), DecodeError::Mixed { reason: "products of one expert" });
        assert_eq!(changed(0x1A, 1), DecodeError::Length { bytes: 16, implied: 8 });
        assert_eq!(changed(0x1A, 2), DecodeError::Dtype { byte: 2 });
        assert_eq!(changed(0x1B, 8), DecodeError::Flags { flags: 8 });
        assert_eq!(changed(0x18, 2), DecodeError::Length { bytes: 16, implied: 32 });
        let too_few = Answer { products: products(&[1.0, 2.0]), ..sample(&[5, 42]) };
        assert_eq!(too_few.check(), Err(ShapeError::RowBytes { bytes: 8, row_bytes: 8 }));
        assert_eq!(Products::new(ProductShape { inner: 40_000, ..shape }, &[]), None);
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
