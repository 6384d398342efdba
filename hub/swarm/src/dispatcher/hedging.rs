//! Hedging: when a second copy of a message is sent, and how many bytes such copies may take.
//!
//! With adaptive hedging, a message that its worker has not answered by `Latencies::hedge_delay` is also sent to the
//! best other replica, if the budget allows. The first valid answer to each work item is used, and the other worker is
//! told to cancel it. `candidates` chooses the other replica.

use crate::policy::{DEFAULT_HEDGE_BUDGET, Hedge};

/// The budget may save up the bytes of this many messages, since stalls come in bursts.
const BURST_MESSAGES: f64 = 16.0;

/// Bytes that second copies may take: a fraction of first copies' bytes.
#[derive(Clone, Debug)]
pub(super) struct HedgeBudget {
    rate: f64,
    saved_bytes: f64,
}

impl HedgeBudget {
    pub(super) fn new(hedge: Hedge) -> Self {
        let rate = match hedge {
            Hedge::Fixed(_) => 0.0,
            Hedge::Adaptive { budget } if budget.is_finite() => budget.max(0.0),
            Hedge::Adaptive { .. } => DEFAULT_HEDGE_BUDGET,
        };
        Self { rate, saved_bytes: 0.0 }
    }

    /// Adds to the budget for a first copy.
    pub(super) fn earn(&mut self, bytes: u64) {
        let most = (BURST_MESSAGES * bytes as f64).max(self.saved_bytes);
        self.saved_bytes = (self.saved_bytes + self.rate * bytes as f64).min(most);
    }

    /// Whether a copy of this many bytes may be sent; if so, it is charged.
    pub(super) fn spend(&mut self, bytes: u64) -> bool {
        let may = bytes as f64 <= self.saved_bytes;
        if may {
            self.saved_bytes -= bytes as f64;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn copies_never_take_more_than_their_part(
            messages in proptest::collection::vec((1u64..1_000_000, any::<bool>()), 0..300),
            budget in 0.0f64..0.5,
        ) {
            let mut bucket = HedgeBudget::new(Hedge::Adaptive { budget });
            let (mut first, mut second) = (0, 0);
            for (bytes, is_copy) in messages {
                if !is_copy {
                    bucket.earn(bytes);
                    first += bytes;
                } else if bucket.spend(bytes) {
                    second += bytes;
                }
                prop_assert!(second as f64 <= budget * first as f64 + 1e-6 * first as f64);
            }
        }
    }

    #[test]
    fn what_is_saved_up_is_bounded_and_no_number_breaks_it() {
        let mut bucket = HedgeBudget::new(Hedge::Adaptive { budget: 1.0 });
        (0..1_000).for_each(|_| bucket.earn(100));
        assert!(bucket.spend(1_600) && !bucket.spend(1));
        let mut odd = HedgeBudget::new(Hedge::Adaptive { budget: f64::NAN });
        odd.earn(100);
        assert!(!odd.spend(6) && odd.spend(5));
    }
}
