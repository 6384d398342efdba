//! CANCEL: forget that attempt; no answer is owed.
//!
//! ```text
//! header  type 3, payload length 0, sequence id = the attempt, all else 0
//! ```

use bytes::Bytes;

use crate::compression::Compression;
use crate::frame::MessageWriter;
use crate::header::{Flags, FrameType};
use crate::id::AttemptId;

/// The message that cancels `attempt`.
pub fn encode(attempt: AttemptId) -> Bytes {
    let mut writer = MessageWriter::new(1, 0, Compression::Off);
    writer.frame(FrameType::Cancel, attempt, None, Flags::NONE, 0, |_| {});
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, decode_message};

    #[test]
    fn golden_bytes() {
        let message = encode(AttemptId(0x0102_0304));
        #[rustfmt::skip]
        let golden: [u8; 28] = [
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x03, 0x00,  0x00, 0x00, 0x00, 0x00,  0x04, 0x03, 0x02, 0x01,
            0x00, 0x00,  0x00, 0x00,  0x00, 0x00, 0x00, 0x00,  0x00, 0x00,  0x00,  0x00,
        ];
        assert_eq!(message[..], golden);
        assert_eq!(decode_message(&message), Ok(vec![Frame::Cancel(AttemptId(0x0102_0304))]));
    }
}
