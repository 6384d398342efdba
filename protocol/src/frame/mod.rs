//! Messages: one or more whole frames. Here are the walk over a message's frames and the writer of a message; what
//! a frame says lives in its own file.
//!
//! Decoding is total: any bytes give frames or a [`DecodeError`], and nothing is allocated before its size has been
//! checked. Consecutive DISPATCH frames of one attempt are one [`Dispatch`], consecutive RESULT frames one [`Answer`].

pub mod digests;
pub mod dispatch;
pub mod products;
pub mod reply;
pub mod result;

pub mod cancel;
pub mod error;
pub mod heartbeat;
pub mod padding;
pub mod weight_sync;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::compression::{Compression, Expected, announced_size, compress, expand};
use crate::error::DecodeError;
use crate::header::{Decoded, Flags, FrameType, HEADER_BYTES, Header, ProductFields, TensorFields};
use crate::id::AttemptId;
use crate::limits::{MAX_CONTROL_BYTES, MAX_FRAMES_PER_MESSAGE, MAX_MESSAGE_BYTES};

use digests::Digest;
use dispatch::Dispatch;
use error::WireError;
use heartbeat::Heartbeat;
use result::Answer;
use weight_sync::WeightSyncFrame;

/// One thing that a message says.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// DISPATCH, all consecutive ones of an attempt.
    Dispatch(AttemptId, Dispatch),
    /// RESULT, all consecutive ones of an attempt, and the PRODUCTS behind them, if there are any.
    Result(AttemptId, Answer),
    /// DIGESTS, one for each expert of the attempt.
    Digests(AttemptId, Vec<Digest>),
    /// CANCEL.
    Cancel(AttemptId),
    /// HEARTBEAT.
    Heartbeat(Heartbeat),
    /// WEIGHT_SYNC.
    WeightSync(WeightSyncFrame),
    /// ERROR.
    Error(WireError),
}

/// What a message says, in its order. Payloads of tensors are slices of `message`, or of their expansion.
///
/// # Errors
/// When anything in it is malformed or passes a limit: a message is taken whole or not at all.
pub fn decode_message(message: &Bytes) -> Result<Vec<Frame>, DecodeError> {
    decode_message_within(message, MAX_MESSAGE_BYTES)
}

/// [`decode_message`] with a limit of its own on the message as received and as expanded.
pub(crate) fn decode_message_within(message: &Bytes, limit: usize) -> Result<Vec<Frame>, DecodeError> {
    let raw = split(message, limit)?;
    let mut frames = Vec::with_capacity(raw.len());
    let mut rest = raw.as_slice();
    while let Some(first) = rest.first() {
        let header = &first.header;
        let run = match header.frame_type {
            FrameType::Dispatch | FrameType::Result => run_length(rest),
            _ => 1,
        };
        let (these, others) = rest.split_at(run);
        rest = others;
        frames.push(match header.frame_type {
            FrameType::Dispatch => Frame::Dispatch(header.attempt, Dispatch::from_frames(these)?),
            FrameType::Result => Frame::Result(header.attempt, Answer::from_frames(these)?),
            FrameType::Digests => Frame::Digests(header.attempt, digests::read(first)?),
            FrameType::Cancel => Frame::Cancel(header.attempt),
            FrameType::Heartbeat => Frame::Heartbeat(Heartbeat::from_payload(&first.payload)?),
            FrameType::WeightSync => Frame::WeightSync(WeightSyncFrame::from_payload(&first.payload)?),
            FrameType::Error => Frame::Error(WireError::from_frame(first)?),
            FrameType::Products => return Err(DecodeError::Mixed { reason: "products without a result" }),
        });
    }
    Ok(frames)
}

/// How many bytes of a message from a worker belong to answers (RESULT, PRODUCTS, DIGESTS), and how many do not. Looks at headers
/// alone; what follows one that cannot be read belongs to no answer.
#[cfg(not(target_arch = "wasm32"))]
pub fn answer_bytes(message: &[u8]) -> [usize; 2] {
    let (mut at, mut of_answers) = (0, 0);
    for _ in 0..MAX_FRAMES_PER_MESSAGE {
        let header = message.get(at..).and_then(|rest| rest.first_chunk::<HEADER_BYTES>());
        let Some(Ok(decoded)) = header.map(Header::decode) else { break };
        let (Decoded::Unknown { payload_bytes } | Decoded::Known(Header { payload_bytes, .. })) = decoded;
        let end = (at + HEADER_BYTES).saturating_add(payload_bytes as usize).min(message.len());
        let is_answer = |of| matches!(of, FrameType::Result | FrameType::Products | FrameType::Digests);
        if matches!(decoded, Decoded::Known(Header { frame_type, .. }) if is_answer(frame_type)) {
            of_answers += end - at;
        }
        at = end;
    }
    [of_answers, message.len() - of_answers]
}

/// A frame whose payload is expanded and of the length its header implies.
#[derive(Clone, Debug)]
pub(crate) struct RawFrame {
    pub(crate) header: Header,
    pub(crate) payload: Bytes,
}

/// How many frames from the first on belong to the same attempt and are of the same type; with results, the products behind
/// them.
fn run_length(frames: &[RawFrame]) -> usize {
    let Header { frame_type, attempt, .. } = frames[0].header;
    let is_of =
        |frame: &&RawFrame, of_type| frame.header.frame_type == of_type && frame.header.attempt == attempt;
    let n = frames.iter().take_while(|frame| is_of(frame, frame_type)).count();
    let has_products = frame_type == FrameType::Result
        && frames.get(n).is_some_and(|next| is_of(&next, FrameType::Products));
    n + usize::from(has_products)
}

/// The frames of known types in a message, checked and expanded.
fn split(message: &Bytes, limit: usize) -> Result<Vec<RawFrame>, DecodeError> {
    if message.is_empty() {
        return Err(DecodeError::Empty);
    }
    if message.len() > limit {
        return Err(DecodeError::MessageTooLarge { bytes: message.len(), limit });
    }
    let mut frames = Vec::new();
    let mut n_frames = 0;
    let mut room = limit;
    let mut at = 0;
    while at < message.len() {
        n_frames += 1;
        if n_frames > MAX_FRAMES_PER_MESSAGE {
            return Err(DecodeError::TooManyFrames);
        }
        let Some(header) = message[at..].first_chunk::<HEADER_BYTES>() else {
            return Err(DecodeError::Truncated { missing: (HEADER_BYTES - (message.len() - at)) as u64 });
        };
        at += HEADER_BYTES;
        let decoded = Header::decode(header)?;
        let (Decoded::Unknown { payload_bytes } | Decoded::Known(Header { payload_bytes, .. })) = decoded;
        let available = message.len() - at;
        // A u32 fits a usize on every target there is; compared in 64 bits all the same.
        if u64::from(payload_bytes) > available as u64 {
            return Err(DecodeError::Truncated { missing: u64::from(payload_bytes) - available as u64 });
        }
        let payload = at..at + payload_bytes as usize;
        at = payload.end;
        if let Decoded::Known(header) = decoded {
            let payload = message.slice(payload);
            let size = expanded_size(&header, &payload)?;
            room = room.checked_sub(size).ok_or(DecodeError::ExpandedTooLarge { limit })?;
            let is_compressed = header.flags.has(Flags::COMPRESSED);
            let payload = if is_compressed { expand(&payload, size)? } else { payload };
            frames.push(RawFrame { header, payload });
        }
    }
    Ok(frames)
}

/// The size of a payload, or that it announces if it is compressed, checked against its header.
fn expanded_size(header: &Header, payload: &Bytes) -> Result<usize, DecodeError> {
    let expected = expected_bytes(header)?;
    if header.flags.has(Flags::COMPRESSED) {
        return announced_size(payload, expected);
    }
    let bytes = payload.len() as u64;
    match expected {
        Expected::Exactly(implied) if bytes != implied => Err(DecodeError::Length { bytes, implied }),
        Expected::AtMost(limit) if payload.len() > limit => Err(DecodeError::ControlTooLarge { bytes }),
        _ => Ok(payload.len()),
    }
}

fn expected_bytes(header: &Header) -> Result<Expected, DecodeError> {
    if let Some(fields) = &header.products {
        return Ok(Expected::Exactly(products::implied_bytes(fields)));
    }
    let implied = match (header.frame_type, &header.tensor) {
        (FrameType::Dispatch, Some(tensor)) => dispatch::implied_bytes(tensor, header.flags)?,
        (FrameType::Result, Some(tensor)) => result::implied_bytes(tensor)?,
        (FrameType::Cancel, _) => 0,
        _ => return Ok(Expected::AtMost(MAX_CONTROL_BYTES)),
    };
    Ok(Expected::Exactly(implied))
}

/// Writes the frames of one message into one buffer.
pub(crate) struct MessageWriter {
    out: BytesMut,
    compression: Compression,
}

impl MessageWriter {
    /// A writer for `n_frames` frames with `payload_bytes` altogether: exactly what it allocates.
    pub(crate) fn new(n_frames: usize, payload_bytes: usize, compression: Compression) -> Self {
        Self { out: BytesMut::with_capacity(n_frames * HEADER_BYTES + payload_bytes), compression }
    }

    /// Appends one frame, whose payload of `payload_bytes` bytes `write` appends.
    pub(crate) fn frame(
        &mut self,
        frame_type: FrameType,
        attempt: AttemptId,
        tensor: Option<TensorFields>,
        flags: Flags,
        payload_bytes: usize,
        write: impl FnOnce(&mut BytesMut),
    ) {
        let payload_bytes = payload_bytes as u32;
        self.put(Header { frame_type, payload_bytes, attempt, tensor, products: None, flags }, write);
    }

    /// Appends a PRODUCTS frame, whose payload of `payload_bytes` bytes `write` appends.
    pub(crate) fn products(
        &mut self,
        attempt: AttemptId,
        fields: ProductFields,
        payload_bytes: usize,
        write: impl FnOnce(&mut BytesMut),
    ) {
        let (payload_bytes, flags) = (payload_bytes as u32, Flags::NONE);
        let (frame_type, products) = (FrameType::Products, Some(fields));
        self.put(Header { frame_type, payload_bytes, attempt, tensor: None, products, flags }, write);
    }

    fn put(&mut self, header: Header, write: impl FnOnce(&mut BytesMut)) {
        let start = self.out.len();
        header.encode(&mut self.out);
        write(&mut self.out);
        let payload_at = start + HEADER_BYTES;
        let written = self.out.len() - payload_at;
        debug_assert_eq!(written, header.payload_bytes as usize, "the payload is as long as announced");
        if self.compression == Compression::Off {
            return;
        }
        if let Some(packed) = compress(&self.out[payload_at..]) {
            self.out.truncate(start);
            let flags = header.flags.with(Flags::COMPRESSED);
            Header { payload_bytes: packed.len() as u32, flags, ..header }.encode(&mut self.out);
            self.out.put_slice(&packed);
        }
    }

    pub(crate) fn finish(self) -> Bytes {
        self.out.freeze()
    }
}

/// A message of one control frame with `body` as JSON.
pub(crate) fn encode_control(
    frame_type: FrameType,
    attempt: AttemptId,
    body: &impl Serialize,
    compression: Compression,
) -> Bytes {
    let json = serde_json::to_vec(body).expect("control bodies have string keys and no failing parts");
    let mut writer = MessageWriter::new(1, json.len(), compression);
    writer.frame(frame_type, attempt, None, Flags::NONE, json.len(), |out| out.put_slice(&json));
    writer.finish()
}

/// The `type` of a control frame's JSON body. Read apart from the body, since serde's own tagged enums, which keep what they
/// read before they know its type, are a thirtieth of the worker's bundle.
pub(crate) fn decode_type(payload: &[u8]) -> Result<String, DecodeError> {
    #[derive(serde::Deserialize)]
    struct Typed {
        r#type: String,
    }
    decode_control(payload).map(|Typed { r#type }| r#type)
}

/// The error for a body of a type that the frame does not have, or that nobody sends here.
pub(crate) fn unknown_type() -> DecodeError {
    DecodeError::Json { reason: "it is of an unknown type".into() }
}

/// The JSON body of a control frame.
pub(crate) fn decode_control<T: DeserializeOwned>(payload: &[u8]) -> Result<T, DecodeError> {
    serde_json::from_slice(payload).map_err(|error| DecodeError::Json { reason: error.to_string() })
}
