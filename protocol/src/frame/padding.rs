//! PADDING: bytes that say nothing, in front of a message, to see how long a link takes for them.
//!
//! ```text
//! header   type 7, sequence id 0, tensor fields 0
//! payload  any bytes
//! ```
//!
//! No decoder knows the type, so all skip it by its length.

use bytes::{BufMut, Bytes, BytesMut};

use crate::VERSION;
use crate::header::{HEADER_BYTES, MAGIC};

/// The header's type.
const TYPE: u16 = 7;

/// The most bytes of one: a few milliseconds of a slow Wi-Fi.
pub const MAX_PADDING_BYTES: usize = 64 * 1024;

/// `message` behind `padding_bytes` of padding, or as it is if they are none. The bytes do not shrink, whatever is under way.
pub(crate) fn before(message: &Bytes, padding_bytes: usize) -> Bytes {
    let padding_bytes = padding_bytes.min(MAX_PADDING_BYTES);
    if padding_bytes == 0 {
        return message.clone();
    }
    let mut out = BytesMut::with_capacity(HEADER_BYTES + padding_bytes + message.len());
    out.put_slice(&MAGIC);
    out.put_u16_le(VERSION);
    out.put_u16_le(TYPE);
    out.put_u32_le(padding_bytes as u32);
    out.put_bytes(0, HEADER_BYTES - 12);
    let mut state = 0x2545_F491_u32;
    for _ in 0..padding_bytes {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        out.put_u8(state as u8);
    }
    out.put_slice(message);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::heartbeat::{Heartbeat, Ping};
    use crate::frame::{Frame, decode_message};
    use crate::{AttemptId, Compression, Digest, answer_bytes, compression, digests};

    #[test]
    fn is_skipped_and_does_not_shrink() {
        let ping = Heartbeat::Ping(Ping { hub_micros: 7, ..Ping::default() });
        let message = ping.encode(Compression::Off);
        let padded = before(&message, usize::MAX);
        assert_eq!(padded.len(), HEADER_BYTES + MAX_PADDING_BYTES + message.len());
        assert_eq!(decode_message(&padded), Ok(vec![Frame::Heartbeat(ping)]));
        assert!(compression::compress(&padded).is_none());
        assert_eq!(before(&message, 0), message);
    }

    #[test]
    fn is_told_from_answers_by_headers_alone() {
        let answer = digests::encode(AttemptId(7), &[Digest([1; 16])]);
        let padded = before(&answer, 100);
        assert_eq!(answer_bytes(&padded), [answer.len(), HEADER_BYTES + 100]);
        let beat = Heartbeat::Ping(Ping::default()).encode(Compression::Off);
        assert_eq!(answer_bytes(&beat), [0, beat.len()]);
        assert_eq!(answer_bytes(&answer[..answer.len() - 1]), [answer.len() - 1, 0], "as long as it is");
        assert_eq!(answer_bytes(b"MX, and then nothing"), [0, 20]);
    }
}
