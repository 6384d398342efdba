//! DIGESTS: in place of RESULT frames a digest of each, where the dispatch asks for it, and nowhere else.
//!
//! ```text
//! header   type 9, the dispatch's sequence id, all else 0
//! payload  16 bytes for each expert of the dispatch, in their order
//! ```
//!
//! A digest is the first half of the BLAKE3 of the RESULT frame that it stands for, its 28 bytes of header and its payload,
//! uncompressed. The frame names the attempt, which is one worker's alone: no digest is worth anything at another attempt or from
//! another worker.

use bytes::{BufMut, Bytes};

use crate::compression::Compression;
use crate::error::DecodeError;
use crate::frame::{MessageWriter, RawFrame};
use crate::header::{Flags, FrameType, HEADER_BYTES, Header, TensorFields};
use crate::id::AttemptId;
use crate::limits::MAX_DIGESTS;

/// Bytes of a digest.
pub const DIGEST_BYTES: usize = 16;

/// What stands for the rows of one expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub [u8; DIGEST_BYTES]);

impl Digest {
    /// The digest of the RESULT frame that answers `attempt` with `payload`, (rows, D) of this `tensor`.
    pub fn of(attempt: AttemptId, tensor: TensorFields, payload: &[u8]) -> Self {
        let (frame_type, payload_bytes) = (FrameType::Result, payload.len() as u32);
        let (tensor, flags) = (Some(tensor), Flags::NONE);
        // In one piece: a tab's bundle has no hasher of several.
        let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len());
        Header { frame_type, payload_bytes, attempt, tensor, products: None, flags }.encode(&mut frame);
        frame.extend_from_slice(payload);
        let mut digest = [0; DIGEST_BYTES];
        digest.copy_from_slice(&blake3::hash(&frame).as_bytes()[..DIGEST_BYTES]);
        Self(digest)
    }
}

/// The message that answers `attempt` with `digests`, of which there are at most [`MAX_DIGESTS`].
pub fn encode(attempt: AttemptId, digests: &[Digest]) -> Bytes {
    let n_bytes = digests.len() * DIGEST_BYTES;
    let mut writer = MessageWriter::new(1, n_bytes, Compression::Off);
    writer.frame(FrameType::Digests, attempt, None, Flags::NONE, n_bytes, |out| {
        digests.iter().for_each(|digest| out.put_slice(&digest.0));
    });
    writer.finish()
}

/// The digests of a frame: whole ones, and at most [`MAX_DIGESTS`].
pub(crate) fn read(frame: &RawFrame) -> Result<Vec<Digest>, DecodeError> {
    match frame.payload.as_chunks::<DIGEST_BYTES>() {
        ([], []) => Err(DecodeError::Empty),
        (digests, []) if digests.len() <= MAX_DIGESTS => Ok(digests.iter().copied().map(Digest).collect()),
        (digests, _) => {
            let (bytes, whole) = (frame.payload.len() as u64, digests.len().min(MAX_DIGESTS));
            Err(DecodeError::Length { bytes, implied: (whole * DIGEST_BYTES) as u64 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::frame::{Frame, decode_message};
    use crate::id::{ExpertId, LayerId};
    use crate::{Answer, AnswerPart};

    fn tensor() -> TensorFields {
        TensorFields { layer: LayerId(3), expert: ExpertId(42), rows: 1, hidden: 2, dtype: Dtype::F16 }
    }

    #[test]
    fn golden_bytes() {
        let message = encode(AttemptId(7), &[Digest([0xAB; 16])]);
        #[rustfmt::skip]
        let golden = [
            0x4D, 0x6F, 0x45, 0x78,  0x02, 0x00,  0x09, 0x00,  0x10, 0x00, 0x00, 0x00,  0x07, 0x00, 0x00, 0x00,
            0x00, 0x00,  0x00, 0x00,  0x00, 0x00, 0x00, 0x00,  0x00, 0x00,  0x00,  0x00,
        ];
        assert_eq!((&message[..28], &message[28..]), (&golden[..], &[0xAB; 16][..]));
        assert_eq!(
            decode_message(&message),
            Ok(vec![Frame::Digests(AttemptId(7), vec![Digest([0xAB; 16])])])
        );
    }

    #[test]
    fn a_digest_is_of_the_result_frame_that_it_stands_for() {
        let payload = [0x00, 0x3C, 0x00, 0xC0];
        let part = AnswerPart { expert: ExpertId(42), rows: 1, payload: payload.to_vec().into() };
        let (layer, dtype, parts) = (LayerId(3), Dtype::F16, vec![part]);
        let answer = Answer { layer, hidden: 2, dtype, parts, products: None };
        let message = answer.encode(AttemptId(7), Compression::Off).unwrap();
        let digest = Digest::of(AttemptId(7), tensor(), &payload);
        assert_eq!(digest.0[..], blake3::hash(&message).as_bytes()[..16]);
        assert_eq!(answer.digests(AttemptId(7)), [digest]);
    }

    #[test]
    fn a_digest_depends_on_all_that_its_frame_says() {
        let payload = [0x00, 0x3C, 0x00, 0xC0];
        let of = |attempt, tensor, payload: &[u8]| Digest::of(AttemptId(attempt), tensor, payload);
        let digest = of(7, tensor(), &payload);
        assert_ne!(digest, of(8, tensor(), &payload));
        assert_ne!(digest, of(7, TensorFields { layer: LayerId(4), ..tensor() }, &payload));
        assert_ne!(digest, of(7, TensorFields { expert: ExpertId(43), ..tensor() }, &payload));
        assert_ne!(digest, of(7, TensorFields { rows: 2, ..tensor() }, &payload));
        assert_ne!(digest, of(7, tensor(), &[0x01, 0x3C, 0x00, 0xC0]));
    }

    #[test]
    fn contradictions_are_named() {
        let message = encode(AttemptId(7), &[Digest([0xAB; 16])]);
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut message = message.to_vec();
            change(&mut message);
            decode_message(&message.into()).unwrap_err()
        };
        let short = |message: &mut Vec<u8>| {
            message[8] = 15;
            message.pop();
        };
        assert_eq!(refused(&short), DecodeError::Length { bytes: 15, implied: 0 });
        let none = |message: &mut Vec<u8>| {
            message[8] = 0;
            message.truncate(28);
        };
        assert_eq!(refused(&none), DecodeError::Empty);
        assert_eq!(refused(&|message| message[0x12] = 1), DecodeError::NotZero);
        assert_eq!(refused(&|message| message[0x1B] = 1), DecodeError::Flags { flags: 1 });
    }
}
