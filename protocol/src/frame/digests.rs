//! DIGESTS: in place of RESULT frames a digest of each, where the dispatch asks for it, and nowhere else.
//!
//! ```text
//! header   type 9, the dispatch's sequence id, all else 0
//! payload  16 bytes for each expert of the dispatch, in their order
//! ```
//!
//! A digest is the first half of the keyed BLAKE3 of the RESULT frame that it stands for, its 28 bytes of header and its
//! payload, uncompressed. The frame names the attempt, and the key is the session's: no digest is worth anything at another
//! attempt or from another worker.

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

/// By what a worker's digests are keyed: drawn by the hub for each session, and said in `accepted`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DigestKey(pub [u8; 32]);

impl DigestKey {
    /// The key in 64 hex digits, if it is one.
    pub fn from_hex(hex: &str) -> Option<Self> {
        blake3::Hash::from_hex(hex).ok().map(|bytes| Self(bytes.into()))
    }

    /// 64 hex digits.
    pub fn to_hex(self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// The digest of the RESULT frame that answers `attempt` with `payload`, (rows, D) of this `tensor`.
    pub fn digest(&self, attempt: AttemptId, tensor: TensorFields, payload: &[u8]) -> Digest {
        let (frame_type, payload_bytes) = (FrameType::Result, payload.len() as u32);
        let (tensor, flags) = (Some(tensor), Flags::NONE);
        let mut header = [0; HEADER_BYTES];
        Header { frame_type, payload_bytes, attempt, tensor, products: None, flags }
            .encode(&mut &mut header[..]);
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        let hash = hasher.update(&header).update(payload).finalize();
        let mut digest = [0; DIGEST_BYTES];
        digest.copy_from_slice(&hash.as_bytes()[..DIGEST_BYTES]);
        Digest(digest)
    }
}

/// Never the secret.
impl core::fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("DigestKey")
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

/// The digests of a frame.
pub(crate) fn read(frame: &RawFrame) -> Result<Vec<Digest>, DecodeError> {
    match frame.payload.as_chunks::<DIGEST_BYTES>() {
        ([], []) => Err(DecodeError::Empty),
        (digests, []) if digests.len() <= MAX_DIGESTS => Ok(digests.iter().copied().map(Digest).collect()),
        _ => Err(DecodeError::Digests { bytes: frame.payload.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::frame::{Frame, decode_message};
    use crate::id::{ExpertId, LayerId};
    use crate::{Answer, AnswerPart};

    const KEY: DigestKey = DigestKey([7; 32]);

    fn tensor() -> TensorFields {
        TensorFields { layer: LayerId(3), expert: ExpertId(42), rows: 1, hidden: 2, dtype: Dtype::F16 }
    }

    #[test]
    fn golden_bytes() {
        let message = encode(AttemptId(7), &[Digest([0xAB; 16])]);
        #[rustfmt::skip]
        let golden = [
            0x4D, 0x6F, 0x45, 0x78,  0x01, 0x00,  0x09, 0x00,  0x10, 0x00, 0x00, 0x00,  0x07, 0x00, 0x00, 0x00,
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
        let digest = KEY.digest(AttemptId(7), tensor(), &payload);
        assert_eq!(digest.0[..], blake3::keyed_hash(&KEY.0, &message).as_bytes()[..16]);
        assert_eq!(answer.digests(AttemptId(7), &KEY), [digest]);
    }

    #[test]
    fn a_digest_depends_on_all_that_its_frame_says_and_on_the_key() {
        let payload = [0x00, 0x3C, 0x00, 0xC0];
        let of = |attempt, tensor, payload: &[u8]| KEY.digest(AttemptId(attempt), tensor, payload);
        let digest = of(7, tensor(), &payload);
        assert_ne!(digest, of(8, tensor(), &payload));
        assert_ne!(digest, of(7, TensorFields { layer: LayerId(4), ..tensor() }, &payload));
        assert_ne!(digest, of(7, TensorFields { expert: ExpertId(43), ..tensor() }, &payload));
        assert_ne!(digest, of(7, TensorFields { rows: 2, ..tensor() }, &payload));
        assert_ne!(digest, of(7, tensor(), &[0x01, 0x3C, 0x00, 0xC0]));
        assert_ne!(digest, DigestKey([8; 32]).digest(AttemptId(7), tensor(), &payload));
    }

    #[test]
    fn keys_are_64_hex_digits() {
        assert_eq!(KEY.to_hex(), "07".repeat(32));
        assert_eq!(DigestKey::from_hex(&KEY.to_hex()), Some(KEY));
        assert_eq!((DigestKey::from_hex("07"), DigestKey::from_hex(&"xy".repeat(32))), (None, None));
        assert_eq!(format!("{KEY:?}"), "DigestKey");
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
        assert_eq!(refused(&short), DecodeError::Digests { bytes: 15 });
        let none = |message: &mut Vec<u8>| {
            message[8] = 0;
            message.truncate(28);
        };
        assert_eq!(refused(&none), DecodeError::Empty);
        assert_eq!(refused(&|message| message[0x12] = 1), DecodeError::NotZero);
        assert_eq!(refused(&|message| message[0x1B] = 1), DecodeError::Flags { flags: 1 });
    }
}
