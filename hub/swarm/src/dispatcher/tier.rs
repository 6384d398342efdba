//! Tiers of workers: decode steps, prompts' chunks, or only items that nobody else can compute.
//!
//! ```text
//!                 sync >= 20 ms              its chunks are slower than the hub's
//!  (joined) ---------------------> Prefill ---------------------------------------> Fallback
//!      \---------------> Decode ---------------------------------------------------/
//!          sync < 20 ms            its steps are slower than the hub's
//! ```
//! A tier is a preference: a worker of any tier gets items that no other worker can compute.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::latency::Latencies;

/// Jobs of at least this many rows are chunks of prompts: that many rows share a slow sync.
const PREFILL_ROWS: usize = 16;
/// A GPU sync as long as this costs a model of 48 layers a second a token. Chrome takes 0.5 ms, Firefox 100 ms.
const SLOW_SYNC: Duration = Duration::from_millis(20);
/// The hub leaves to workers what they answer within this time: its cores are better used for attention, which only the
/// hub computes, and smaller differences are noise.
pub(super) const HUB_YIELDS_WITHIN: Duration = Duration::from_millis(10);
/// Beyond that time, a worker this many times as slow as the hub makes the swarm slower.
pub(super) const HUB_MARGIN: u32 = 2;
/// A worker this many times as slow as the others' median gets only items that they do not hold.
const PEER_MARGIN: u32 = 3;

/// The kind of work that a worker gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Anything.
    #[default]
    Decode,
    /// Jobs of many rows.
    Prefill,
    /// Only items that no other worker can compute. It keeps its blocks.
    Fallback,
}

impl Tier {
    /// Whether this tier gets jobs of this many rows.
    pub(super) fn takes(self, n_rows: usize) -> bool {
        match self {
            Self::Decode => true,
            Self::Prefill => n_rows >= PREFILL_ROWS,
            Self::Fallback => false,
        }
    }
}

/// The tier of a worker with this sync latency and these latencies, compared with the hub's, and why it is not the
/// first.
pub(super) fn classify(
    sync: Duration,
    worker: &Latencies,
    hub: Option<&Latencies>,
) -> (Tier, Option<String>) {
    let is_slow = sync >= SLOW_SYNC;
    let seen = if is_slow { worker.prefill_median() } else { worker.decode_median() };
    if let Some((n_pairs, median)) = seen
        && let Some(alone) = hub.and_then(|hub| hub.expected(n_pairs))
        && is_slower(median, alone, HUB_MARGIN)
    {
        let reason =
            format!("slower than the hub: {} per message, the hub takes {}", show(median), show(alone));
        return (Tier::Fallback, Some(reason));
    }
    if is_slow {
        let reason = format!("a GPU sync takes {}: too long for single tokens, not for prompts", show(sync));
        return (Tier::Prefill, Some(reason));
    }
    (Tier::Decode, None)
}

/// Why a worker with this median gets only what others do not hold, given their median; none if it does not.
pub(super) fn passed_over(median: Duration, others: Duration) -> Option<String> {
    is_slower(median, others, PEER_MARGIN).then(|| {
        format!(
            "slower than the others: {} per message, they take {}; used only for experts that they do not hold",
            show(median),
            show(others)
        )
    })
}

/// Whether `median` is so far above `other` that waiting for it is slower.
fn is_slower(median: Duration, other: Duration, margin: u32) -> bool {
    median > HUB_YIELDS_WITHIN && median > other.saturating_mul(margin)
}

fn show(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn measured(n_pairs: usize, median_millis: u64) -> Latencies {
        let mut latencies = Latencies::default();
        (0..20).for_each(|_| latencies.record(n_pairs, millis(median_millis)));
        latencies
    }

    #[test]
    fn a_slow_sync_is_for_prompts() {
        let (tier, reason) = classify(millis(103), &Latencies::default(), None);
        assert_eq!(tier, Tier::Prefill);
        assert!(reason.unwrap().contains("103.0 ms"));
        assert!(!tier.takes(1) && !tier.takes(8) && tier.takes(128));
        assert_eq!(classify(millis(1), &Latencies::default(), None), (Tier::Decode, None));
    }

    #[test]
    fn slower_than_the_hub_alone_is_a_fallback() {
        let tier_of = |worker, hub| classify(millis(1), &measured(8, worker), Some(&measured(8, hub))).0;
        assert_eq!(tier_of(60, 4), Tier::Fallback);
        assert_eq!(tier_of(60, 40), Tier::Decode, "not by much");
        assert_eq!(tier_of(9, 1), Tier::Decode, "the hub has better things to do");
        assert_eq!(classify(millis(1), &measured(8, 60), None).0, Tier::Decode, "the hub does not compute");
        assert_eq!(classify(millis(1), &measured(8, 60), Some(&Latencies::default())).0, Tier::Decode);
        let chunks = classify(millis(100), &measured(1_024, 900), Some(&measured(1_024, 90)));
        assert_eq!(chunks.0, Tier::Fallback, "not even for prompts");
        assert!(!Tier::Fallback.takes(10_000));
    }

    #[test]
    fn slower_than_its_peers_is_said() {
        assert!(passed_over(millis(80), millis(2)).unwrap().contains("80.0 ms"));
        assert_eq!(passed_over(millis(5), millis(1)), None);
        assert_eq!(passed_over(millis(80), millis(40)), None);
    }
}
