//! DISPATCH: what one message asks of one worker in one layer.
//!
//! Plain, one frame per expert, each with the rows that chose it:
//!
//! ```text
//! header   type 1, layer, expert, tokens = R, hidden, dtype, no flags but compressed
//! payload  rows (R, hidden) in dtype | R gates, f16
//! ```
//!
//! Rows once, when a worker holds several of a layer's experts: the rows once, then which expert takes which.
//!
//! ```text
//! header   type 1, layer, expert 0xFFFF, tokens = R, hidden, dtype
//! payload  rows (R, hidden) in dtype
//! header   type 1, layer, expert, tokens = P, hidden, dtype, flag by-row
//! payload  P pairs: row index u16, gate f16
//! ```
//!
//! With flag products, on every frame or on none, the answer is to come with what it can be checked by. With flag digests, on
//! every frame or on none and never beside products, it is [`super::digests`].
//!
//! Else the answer to both is one tensor for each expert, [`super::result`].

use bytes::{Buf, BufMut, Bytes, BytesMut};
use half::f16;

use crate::compression::Compression;
use crate::dtype::Dtype;
use crate::error::{DecodeError, ShapeError};
use crate::frame::reply::Reply;
use crate::frame::result::AnswerShape;
use crate::frame::{MessageWriter, RawFrame};
use crate::header::{Flags, FrameType, HEADER_BYTES, TensorFields};
use crate::id::{AttemptId, ExpertId, LayerId};
use crate::limits::{MAX_FRAMES_PER_MESSAGE, MAX_HIDDEN, MAX_MESSAGE_BYTES, MAX_PAIRS, MAX_ROWS};

/// What one message asks of one worker: rows (R, D) once, and for each expert which rows with which gate.
///
/// However it came over the wire it reads the same; decoding a plain dispatch gives rows that are the concatenation of
/// the frames' and pairs that count upwards from 0. One frame's rows stay a slice of the message; those of several
/// plain frames, which gates and headers lie between, are copied once.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// The layer.
    pub layer: LayerId,
    /// D, the width of a row.
    pub hidden: u16,
    /// The format of `rows`, and of the answer.
    pub dtype: Dtype,
    /// How it is written.
    pub form: Form,
    /// (R, D): R x [`Dtype::row_bytes`] bytes.
    pub rows: Bytes,
    /// One for each expert, in ascending order.
    pub calls: Vec<Call>,
    /// What it is to be answered with.
    pub reply: Reply,
}

/// How a dispatch is written. It is answered alike: the sum at the hub does not depend on who computed what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// Every expert's rows beside it.
    #[default]
    Plain,
    /// The rows once, and for each expert which of them it takes.
    RowsOnce,
}

/// One expert's share of a dispatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The expert.
    pub expert: ExpertId,
    /// Its rows, at least one.
    pub pairs: Vec<Pair>,
}

/// One row for one expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Index into [`Dispatch::rows`].
    pub row: u16,
    /// What the expert's output is multiplied by, on the worker and nowhere else.
    pub gate: f16,
}

/// Bytes of one pair on the wire.
const PAIR_BYTES: usize = 4;

/// Bytes of one gate on the wire.
const GATE_BYTES: usize = 2;

impl Dispatch {
    /// R, the number of rows.
    pub fn n_rows(&self) -> usize {
        self.rows.len() / self.row_bytes().max(1)
    }

    /// P, the number of (row, expert) pairs.
    pub fn n_pairs(&self) -> usize {
        self.calls.iter().map(|call| call.pairs.len()).sum()
    }

    /// The bytes of row `index` (D,), if there is such a row.
    pub fn row(&self, index: usize) -> Option<&[u8]> {
        let row_bytes = self.row_bytes();
        self.rows.get(index.checked_mul(row_bytes)?..)?.get(..row_bytes)
    }

    /// The shape of the answer that it asks for.
    pub fn answer_shape(&self) -> AnswerShape {
        let parts = self.calls.iter().map(|call| (call.expert, call.pairs.len() as u32)).collect();
        AnswerShape { layer: self.layer, hidden: self.hidden, dtype: self.dtype, parts, reply: self.reply }
    }

    /// Checks that it can be sent and answered: everything that decoding it at the other end will check.
    ///
    /// # Errors
    /// The first contradiction or passed limit.
    pub fn check(&self) -> Result<(), ShapeError> {
        if self.hidden == 0 || self.hidden > MAX_HIDDEN {
            return Err(ShapeError::Hidden { hidden: self.hidden });
        }
        let row_bytes = self.row_bytes();
        if !self.rows.len().is_multiple_of(row_bytes) {
            return Err(ShapeError::RowBytes { bytes: self.rows.len(), row_bytes });
        }
        if self.rows.is_empty() || self.calls.is_empty() {
            return Err(ShapeError::Empty);
        }
        let n_rows = self.n_rows();
        if n_rows > MAX_ROWS as usize {
            return Err(ShapeError::TooManyRows { rows: n_rows as u64 });
        }
        if self.n_frames() > MAX_FRAMES_PER_MESSAGE {
            return Err(ShapeError::TooManyFrames { frames: self.n_frames() });
        }
        let ascending = self.calls.windows(2).all(|two| two[0].expert < two[1].expert);
        // 0xFFFF is the greatest id, so it could only be the last.
        if !ascending || self.calls.last().is_some_and(|call| call.expert == ExpertId::NONE) {
            return Err(ShapeError::ExpertOrder);
        }
        for call in &self.calls {
            check_call(call, n_rows)?;
        }
        self.check_size()
    }

    /// The message that asks for it, as `attempt`: one buffer, one allocation when uncompressed.
    ///
    /// # Errors
    /// See [`Dispatch::check`].
    pub fn encode(&self, attempt: AttemptId, compression: Compression) -> Result<Bytes, ShapeError> {
        self.check()?;
        let payload_bytes = self.message_bytes() - self.n_frames() as u64 * HEADER_BYTES as u64;
        let mut writer = MessageWriter::new(self.n_frames(), payload_bytes as usize, compression);
        match self.form {
            Form::Plain => self.write_plain(attempt, &mut writer),
            Form::RowsOnce => self.write_rows_once(attempt, &mut writer),
        }
        Ok(writer.finish())
    }

    /// The dispatch that consecutive frames of one attempt make up. `frames` is not empty, all are DISPATCH, and their
    /// payloads are of the lengths that [`implied_bytes`] gives.
    pub(crate) fn from_frames(frames: &[RawFrame]) -> Result<Self, DecodeError> {
        let head = tensor_of(&frames[0])?;
        let reply = Reply::of(frames[0].header.flags)?;
        for frame in frames {
            let tensor = tensor_of(frame)?;
            if Reply::of(frame.header.flags)? != reply {
                return Err(DecodeError::Mixed { reason: "products or digests wanted in some frames only" });
            }
            if (tensor.layer, tensor.hidden, tensor.dtype) != (head.layer, head.hidden, head.dtype) {
                return Err(DecodeError::Mixed { reason: "layer, width or dtype differ" });
            }
        }
        let (form, rows, calls) =
            if head.expert == ExpertId::NONE { read_rows_once(frames)? } else { read_plain(frames)? };
        let (layer, hidden, dtype) = (head.layer, head.hidden, head.dtype);
        let dispatch = Self { layer, hidden, dtype, form, rows, calls, reply };
        dispatch.check()?;
        Ok(dispatch)
    }

    fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(usize::from(self.hidden))
    }

    fn n_frames(&self) -> usize {
        self.calls.len() + usize::from(self.form != Form::Plain)
    }

    /// Bytes of the whole message, uncompressed.
    pub(crate) fn message_bytes(&self) -> u64 {
        let (row_bytes, n_pairs) = (self.row_bytes() as u64, self.n_pairs() as u64);
        let headers = self.n_frames() as u64 * HEADER_BYTES as u64;
        headers
            + match self.form {
                Form::Plain => n_pairs * (row_bytes + GATE_BYTES as u64),
                Form::RowsOnce => self.rows.len() as u64 + n_pairs * PAIR_BYTES as u64,
            }
    }

    /// Bytes of the whole answer, uncompressed.
    fn answer_bytes(&self) -> u64 {
        (self.calls.len() * HEADER_BYTES) as u64 + self.n_pairs() as u64 * self.row_bytes() as u64
    }

    fn check_size(&self) -> Result<(), ShapeError> {
        let pairs = self.n_pairs() as u64;
        if pairs > u64::from(MAX_PAIRS) {
            return Err(ShapeError::TooManyPairs { pairs });
        }
        // Read back, a plain dispatch has a row for each pair.
        if self.form == Form::Plain && pairs > u64::from(MAX_ROWS) {
            return Err(ShapeError::TooManyRows { rows: pairs });
        }
        let bytes = self.message_bytes().max(self.answer_bytes());
        if bytes > MAX_MESSAGE_BYTES as u64 {
            return Err(ShapeError::TooLarge { bytes });
        }
        Ok(())
    }

    fn tensor(&self, expert: ExpertId, rows: usize) -> Option<TensorFields> {
        Some(TensorFields {
            layer: self.layer,
            expert,
            rows: rows as u32,
            hidden: self.hidden,
            dtype: self.dtype,
        })
    }

    fn write_plain(&self, attempt: AttemptId, writer: &mut MessageWriter) {
        let row_bytes = self.row_bytes();
        for Call { expert, pairs } in &self.calls {
            let tensor = self.tensor(*expert, pairs.len());
            let payload_bytes = pairs.len() * (row_bytes + GATE_BYTES);
            writer.frame(FrameType::Dispatch, attempt, tensor, self.reply.flags(), payload_bytes, |out| {
                for pair in pairs {
                    let at = usize::from(pair.row) * row_bytes;
                    out.put_slice(&self.rows[at..at + row_bytes]);
                }
                for pair in pairs {
                    out.put_u16_le(pair.gate.to_bits());
                }
            });
        }
    }

    fn write_rows_once(&self, attempt: AttemptId, writer: &mut MessageWriter) {
        let union = self.tensor(ExpertId::NONE, self.n_rows());
        writer.frame(FrameType::Dispatch, attempt, union, self.reply.flags(), self.rows.len(), |out| {
            out.put_slice(&self.rows);
        });
        for Call { expert, pairs } in &self.calls {
            let tensor = self.tensor(*expert, pairs.len());
            let payload_bytes = pairs.len() * PAIR_BYTES;
            let flags = self.reply.flags().with(Flags::BY_ROW);
            writer.frame(FrameType::Dispatch, attempt, tensor, flags, payload_bytes, |out| {
                for pair in pairs {
                    out.put_u16_le(pair.row);
                    out.put_u16_le(pair.gate.to_bits());
                }
            });
        }
    }
}

/// How many bytes the payload of a DISPATCH has by its header.
pub(crate) fn implied_bytes(tensor: &TensorFields, flags: Flags) -> Result<u64, DecodeError> {
    let is_union = tensor.expert == ExpertId::NONE;
    let rows = u64::from(tensor.rows);
    match (is_union, flags.has(Flags::BY_ROW)) {
        (true, true) => Err(DecodeError::Mixed { reason: "a by-row frame without an expert" }),
        (true, false) => Ok(tensor.tensor_bytes()),
        (false, true) => Ok(rows * PAIR_BYTES as u64),
        (false, false) => Ok(tensor.tensor_bytes() + rows * GATE_BYTES as u64),
    }
}

fn check_call(call: &Call, n_rows: usize) -> Result<(), ShapeError> {
    if call.pairs.is_empty() {
        return Err(ShapeError::Empty);
    }
    if call.pairs.len() > MAX_ROWS as usize {
        return Err(ShapeError::TooManyRows { rows: call.pairs.len() as u64 });
    }
    match call.pairs.iter().find(|pair| usize::from(pair.row) >= n_rows) {
        Some(pair) => Err(ShapeError::Row { row: pair.row, rows: n_rows }),
        None => Ok(()),
    }
}

fn tensor_of(frame: &RawFrame) -> Result<&TensorFields, DecodeError> {
    frame.header.tensor.as_ref().ok_or(DecodeError::Mixed { reason: "a tensor frame without a tensor" })
}

fn read_plain(frames: &[RawFrame]) -> Result<(Form, Bytes, Vec<Call>), DecodeError> {
    let mut calls = Vec::with_capacity(frames.len());
    let mut slices = Vec::with_capacity(frames.len());
    let mut n_rows = 0_u32;
    for frame in frames {
        let tensor = tensor_of(frame)?;
        if tensor.expert == ExpertId::NONE || frame.header.flags.has(Flags::BY_ROW) {
            return Err(DecodeError::Mixed { reason: "plain frames among rows-once frames" });
        }
        let first = n_rows;
        n_rows += tensor.rows;
        // Each frame has at most MAX_ROWS, and there are at most MAX_FRAMES_PER_MESSAGE: no overflow before this.
        if n_rows > MAX_ROWS {
            return Err(DecodeError::TooManyRows { rows: u64::from(n_rows) });
        }
        let mut gates = frame.payload.clone();
        slices.push(gates.split_to(gates.len() - tensor.rows as usize * GATE_BYTES));
        let gates = gates.chunks_exact(GATE_BYTES).map(|bytes| f16::from_le_bytes([bytes[0], bytes[1]]));
        let pairs = (first as u16..).zip(gates).map(|(row, gate)| Pair { row, gate }).collect();
        calls.push(Call { expert: tensor.expert, pairs });
    }
    Ok((Form::Plain, concatenate(slices), calls))
}

fn read_rows_once(frames: &[RawFrame]) -> Result<(Form, Bytes, Vec<Call>), DecodeError> {
    let (union, by_row) = frames.split_first().ok_or(DecodeError::Empty)?;
    let mut calls = Vec::with_capacity(by_row.len());
    for frame in by_row {
        if !frame.header.flags.has(Flags::BY_ROW) {
            return Err(DecodeError::Mixed { reason: "plain frames among rows-once frames" });
        }
        let mut bytes = frame.payload.clone();
        let mut pairs = Vec::with_capacity(bytes.len() / PAIR_BYTES);
        while bytes.len() >= PAIR_BYTES {
            pairs.push(Pair { row: bytes.get_u16_le(), gate: f16::from_bits(bytes.get_u16_le()) });
        }
        calls.push(Call { expert: tensor_of(frame)?.expert, pairs });
    }
    Ok((Form::RowsOnce, union.payload.clone(), calls))
}

/// One slice stays itself; several are copied once.
fn concatenate(mut slices: Vec<Bytes>) -> Bytes {
    if slices.len() == 1 {
        return slices.remove(0);
    }
    let mut rows = BytesMut::with_capacity(slices.iter().map(Bytes::len).sum());
    slices.iter().for_each(|slice| rows.put_slice(slice));
    rows.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, decode_message};

    fn sample(form: Form) -> Dispatch {
        let pair = |row, gate| Pair { row, gate: f16::from_f32(gate) };
        Dispatch {
            layer: LayerId(3),
            hidden: 1,
            dtype: Dtype::F16,
            form,
            rows: Bytes::from_static(&[0x00, 0x3C, 0x00, 0xC0]),
            calls: vec![
                Call { expert: ExpertId(5), pairs: vec![pair(1, 0.5)] },
                Call { expert: ExpertId(42), pairs: vec![pair(1, 1.0), pair(0, 2.0)] },
            ],
            reply: Reply::Rows,
        }
    }

    #[test]
    fn golden_bytes_of_the_design() {
        let dispatch = Dispatch {
            layer: LayerId(3),
            hidden: 2048,
            dtype: Dtype::F16,
            form: Form::Plain,
            rows: vec![0x11; 4096].into(),
            calls: vec![Call { expert: ExpertId(42), pairs: vec![Pair { row: 0, gate: f16::ONE }] }],
            reply: Reply::Rows,
        };
        let message = dispatch.encode(AttemptId(7), Compression::Off).unwrap();
        let header: String = message[..28].iter().map(|byte| format!("{byte:02X}")).collect();
        assert_eq!(
            header,
            "4D6F4578 0200 0100 02100000 07000000 0300 2A00 01000000 0008 01 00".replace(' ', "")
        );
        assert_eq!(message.len(), 28 + 4098);
        assert_eq!(message[28 + 4096..], [0x00, 0x3C]);
        let frames = decode_message(&message).unwrap();
        let [Frame::Dispatch(AttemptId(7), back)] = frames.as_slice() else { panic!("one dispatch") };
        assert_eq!(*back, dispatch);
        assert_eq!(back.rows.as_ptr(), message[28..].as_ptr(), "the rows of one plain frame are not copied");
    }

    #[test]
    #[rustfmt::skip]
    fn golden_bytes_plain() {
        let message = sample(Form::Plain).encode(AttemptId(1), Compression::Off).unwrap();
        let golden = [
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x01, 0x00,  0x04, 0x00, 0x00, 0x00,  0x01, 0x00, 0x00, 0x00,
            0x03, 0x00,  0x05, 0x00,  0x01, 0x00, 0x00, 0x00,  0x01, 0x00,  0x01,  0x00,
            /* row 1 */ 0x00, 0xC0,  /* gate */ 0x00, 0x38,
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x01, 0x00,  0x08, 0x00, 0x00, 0x00,  0x01, 0x00, 0x00, 0x00,
            0x03, 0x00,  0x2A, 0x00,  0x02, 0x00, 0x00, 0x00,  0x01, 0x00,  0x01,  0x00,
            /* rows 1, 0 */ 0x00, 0xC0, 0x00, 0x3C,  /* gates */ 0x00, 0x3C, 0x00, 0x40,
        ];
        assert_eq!(message[..], golden);
    }

    #[test]
    #[rustfmt::skip]
    fn golden_bytes_rows_once() {
        let message = sample(Form::RowsOnce).encode(AttemptId(1), Compression::Off).unwrap();
        let golden = [
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x01, 0x00,  0x04, 0x00, 0x00, 0x00,  0x01, 0x00, 0x00, 0x00,
            0x03, 0x00,  0xFF, 0xFF,  0x02, 0x00, 0x00, 0x00,  0x01, 0x00,  0x01,  0x00,
            /* rows */ 0x00, 0x3C, 0x00, 0xC0,
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x01, 0x00,  0x04, 0x00, 0x00, 0x00,  0x01, 0x00, 0x00, 0x00,
            0x03, 0x00,  0x05, 0x00,  0x01, 0x00, 0x00, 0x00,  0x01, 0x00,  0x01,  0x04,
            /* row, gate */ 0x01, 0x00, 0x00, 0x38,
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x01, 0x00,  0x08, 0x00, 0x00, 0x00,  0x01, 0x00, 0x00, 0x00,
            0x03, 0x00,  0x2A, 0x00,  0x02, 0x00, 0x00, 0x00,  0x01, 0x00,  0x01,  0x04,
            /* row, gate */ 0x01, 0x00, 0x00, 0x3C,  0x00, 0x00, 0x00, 0x40,
        ];
        assert_eq!(message[..], golden);
        assert_eq!(decode_message(&message), Ok(vec![Frame::Dispatch(AttemptId(1), sample(Form::RowsOnce))]));
    }

    #[test]
    fn products_or_digests_are_wanted_by_every_frame_or_by_none() {
        for (form, reply, flags) in [
            (Form::Plain, Reply::RowsAndProducts, 8),
            (Form::RowsOnce, Reply::RowsAndProducts, 8),
            (Form::Plain, Reply::Digests, 16),
            (Form::RowsOnce, Reply::Digests, 16),
        ] {
            let dispatch = Dispatch { reply, ..sample(form) };
            let message = dispatch.encode(AttemptId(1), Compression::Off).unwrap();
            assert_eq!(message[0x1B], flags);
            assert_eq!(decode_message(&message), Ok(vec![Frame::Dispatch(AttemptId(1), decoded(&dispatch))]));
            let mut message = message.to_vec();
            message[0x1B] = 0;
            let refused = decode_message(&message.clone().into());
            let reason = "products or digests wanted in some frames only";
            assert_eq!(refused, Err(DecodeError::Mixed { reason }));
            message[0x1B] = 8 + 16;
            let reason = "products and digests wanted";
            assert_eq!(decode_message(&message.into()), Err(DecodeError::Mixed { reason }));
        }
    }

    /// A plain dispatch is read back with a row for each pair.
    fn decoded(dispatch: &Dispatch) -> Dispatch {
        let plain = Dispatch { reply: Reply::Rows, ..dispatch.clone() };
        let message = plain.encode(AttemptId(1), Compression::Off).unwrap();
        let frames = decode_message(&message).unwrap();
        let [Frame::Dispatch(_, plain)] = frames.as_slice() else { panic!("one dispatch") };
        Dispatch { reply: dispatch.reply, ..plain.clone() }
    }

    #[test]
    fn contradictions_are_named() {
        let break_it = |change: &dyn Fn(&mut Dispatch)| {
            let mut dispatch = sample(Form::RowsOnce);
            change(&mut dispatch);
            dispatch.check().unwrap_err()
        };
        assert_eq!(break_it(&|d| d.calls.clear()), ShapeError::Empty);
        assert_eq!(break_it(&|d| d.calls[0].pairs.clear()), ShapeError::Empty);
        assert_eq!(break_it(&|d| d.hidden = 0), ShapeError::Hidden { hidden: 0 });
        assert_eq!(
            break_it(&|d| d.rows = d.rows.slice(1..)),
            ShapeError::RowBytes { bytes: 3, row_bytes: 2 }
        );
        assert_eq!(break_it(&|d| d.calls.swap(0, 1)), ShapeError::ExpertOrder);
        assert_eq!(break_it(&|d| d.calls[1].expert = ExpertId::NONE), ShapeError::ExpertOrder);
        assert_eq!(break_it(&|d| d.calls[1].pairs[0].row = 2), ShapeError::Row { row: 2, rows: 2 });
    }
}
