//! A worker's message that answers an attempt.

use moex_protocol::{Answer, AttemptId, Digest, digests::DIGEST_BYTES, header::HEADER_BYTES};

use super::layer::EncodedLayer;
use super::parts::Part;

/// What a worker sent for an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Received<'a> {
    /// Rows, with products where they were asked for.
    Answer(&'a Answer),
    /// A digest for each item.
    Digests(&'a [Digest]),
}

impl Received<'_> {
    /// One part per item of an attempt. None if the shape differs from the request.
    pub(super) fn read(self, layer: &EncodedLayer, items: &[usize], attempt: AttemptId) -> Option<Vec<Part>> {
        match self {
            Self::Answer(answer) => layer.read(items, answer),
            Self::Digests(digests) => layer.read_digests(items, digests, attempt),
        }
    }

    /// Bytes of the message.
    pub(super) fn n_bytes(self) -> u64 {
        let n_bytes = match self {
            Self::Answer(Answer { parts, products, .. }) => {
                let frames = parts.iter().map(|part| &part.payload);
                let frames = frames.chain(products.as_ref().map(|products| &products.payload));
                frames.map(|payload| HEADER_BYTES + payload.len()).sum()
            }
            Self::Digests(digests) => HEADER_BYTES + digests.len() * DIGEST_BYTES,
        };
        n_bytes as u64
    }
}
