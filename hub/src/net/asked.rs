//! What a peer that has joined sends although nobody asked for it. Beats, reports and the padding by which a link is measured are
//! few; all is read on the swarm's thread, which layers need, so the rest is read slowly.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use moex_protocol::answer_bytes;

use crate::pace::Pace;

/// Bytes a second, of each peer.
const BYTES_PER_SECOND: f64 = 256e3;
/// Bytes that are read at once after a pause: all padding of a link's first minute, and a report of a whole model.
const BURST_BYTES: usize = 1 << 20;
/// Answers that a peer may owe: no session has more requests under way. Pings are messages too, and must not save up more.
const MOST_ANSWERS: u64 = 1 << u8::BITS;

/// What one peer was asked for, and the pace of what it sends besides.
pub(super) struct Asked {
    /// Messages to it that it has not answered, as if each asked for an answer; at most [`MOST_ANSWERS`].
    n_answers: AtomicU64,
    pace: Pace,
}

impl Default for Asked {
    fn default() -> Self {
        Self { n_answers: AtomicU64::default(), pace: Pace::new(BYTES_PER_SECOND, BURST_BYTES) }
    }
}

impl Asked {
    /// A message was sent to the peer.
    pub(super) fn has_sent(&self) {
        let owed = |n: u64| Some((n + 1).min(MOST_ANSWERS));
        let _ = self.n_answers.try_update(Relaxed, Relaxed, owed);
    }

    /// How many bytes of a message from the peer no message asked for.
    pub(super) fn unasked_bytes(&self, message: &[u8]) -> usize {
        let [of_answers, others] = answer_bytes(message);
        let is_asked = || self.n_answers.try_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok();
        if of_answers == 0 || is_asked() { others } else { of_answers + others }
    }

    /// Waits until more may be read after so many bytes that nobody asked for.
    pub(super) async fn rest(&self, n_unasked: usize) {
        if n_unasked > 0 {
            self.pace.has_read(n_unasked).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use moex_protocol::{AttemptId, Digest, digests};

    use super::*;

    #[tokio::test]
    async fn answers_are_read_at_once_and_what_nobody_asked_for_slowly() {
        let answer = digests::encode(AttemptId(1), &[Digest([0; 16]); 8]);
        let asked = Asked::default();
        asked.has_sent();
        assert_eq!(asked.unasked_bytes(&answer), 0);
        assert_eq!(asked.unasked_bytes(&answer), answer.len(), "one message asks for one answer");
        assert_eq!(asked.unasked_bytes(b"no frame"), 8);
        (0..3 * MOST_ANSWERS).for_each(|_| asked.has_sent());
        assert!((0..MOST_ANSWERS).all(|_| asked.unasked_bytes(&answer) == 0));
        assert_eq!(asked.unasked_bytes(&answer), answer.len(), "pings save up no more");
        let begun = Instant::now();
        asked.rest(0).await;
        asked.rest(BURST_BYTES + BYTES_PER_SECOND as usize / 4).await;
        assert!(begun.elapsed() >= Duration::from_millis(240), "{:?}", begun.elapsed());
    }
}
