//! ERROR: what went wrong, for either end, and the attempt it ends if it ends one.
//!
//! ```text
//! header   type 6, sequence id = the attempt or 0, tensor fields 0
//! payload  {"code": "not_resident", "message": "layer 3 expert 42", "attempt": 7}
//! ```
//!
//! Without an attempt it ends the session, but for `draining` from the hub: that asks the worker to finish and leave.

use core::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::compression::Compression;
use crate::error::DecodeError;
use crate::error_code::ErrorCode;
use crate::frame::{RawFrame, decode_control, encode_control};
use crate::header::FrameType;
use crate::id::AttemptId;
use crate::limits::MAX_ERROR_TEXT_BYTES;

/// The body of an ERROR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireError {
    /// What went wrong.
    pub code: ErrorCode,
    /// The same for people, one sentence. Cut at [`MAX_ERROR_TEXT_BYTES`] when sent.
    #[serde(default)]
    pub message: String,
    /// The attempt that it ends; `None` is the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.attempt {
            Some(attempt) => write!(f, "{} (attempt {attempt}): {}", self.code, self.message),
            None => write!(f, "{}: {}", self.code, self.message),
        }
    }
}

impl WireError {
    /// The message that says it.
    pub fn encode(&self, compression: Compression) -> Bytes {
        let body = Self { message: cut(&self.message).to_owned(), ..self.clone() };
        encode_control(FrameType::Error, self.attempt.unwrap_or_default(), &body, compression)
    }

    pub(crate) fn from_frame(frame: &RawFrame) -> Result<Self, DecodeError> {
        let mut error: Self = decode_control(&frame.payload)?;
        if error.attempt.unwrap_or_default() != frame.header.attempt {
            return Err(DecodeError::ErrorAttempt);
        }
        // Kept in events and logs, so what a peer may put there is bounded on this side as well.
        error.message.truncate(cut(&error.message).len());
        Ok(error)
    }
}

/// The longest prefix of whole characters within the limit.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_ERROR_TEXT_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, decode_message};

    #[test]
    fn golden_bytes() {
        let error = WireError {
            code: ErrorCode::NotResident,
            message: "layer 3 expert 42".into(),
            attempt: Some(AttemptId(7)),
        };
        let message = error.encode(Compression::Off);
        #[rustfmt::skip]
        let header: [u8; 28] = [
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x06, 0x00,  0x41, 0x00, 0x00, 0x00,  0x07, 0x00, 0x00, 0x00,
            0x00, 0x00,  0x00, 0x00,  0x00, 0x00, 0x00, 0x00,  0x00, 0x00,  0x00,  0x00,
        ];
        assert_eq!(message[..28], header);
        assert_eq!(&message[28..], br#"{"code":"not_resident","message":"layer 3 expert 42","attempt":7}"#);
        assert_eq!(decode_message(&message), Ok(vec![Frame::Error(error)]));
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let error =
            WireError {
                code: ErrorCode::BadFrame, message: "ä".repeat(MAX_ERROR_TEXT_BYTES), attempt: None
            };
        let message = error.encode(Compression::Off);
        let frames = decode_message(&message).unwrap();
        let [Frame::Error(back)] = frames.as_slice() else {
            panic!("one ERROR");
        };
        assert_eq!(back.message, "ä".repeat(MAX_ERROR_TEXT_BYTES / 2));
    }
}
