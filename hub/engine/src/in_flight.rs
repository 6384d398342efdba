//! Chooses the number of groups of rows in flight, so that one is computed here while the experts of others are away.
//!
//! A prompt's rows fill several groups of maximum size. While one group's experts are away for a time `away`, others
//! can be computed here for a time `own` each, so `1 + away / own` groups hide the round trip. Decode rows are few, and
//! both halves would read the same weights, so a trial decides whether two groups are faster. (llm.npu, arXiv
//! 2407.05858, executes chunks of a prompt out of order for the same reason; its equation 5 is the bubble rate, here
//! the part of a step in which the engine waits.)

use std::time::Duration;

use moex_model::{Experts, ExpertsError, LayerRequest, Ticket};

use super::clock::Clock;

/// Measurements so far.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// A fixed number of groups, if one is configured.
    fixed: Option<usize>,
    /// `away / own` over recent steps with prompts.
    ratio: f64,
    trial: Trial,
}

/// Compares one group with two, for steps with rows of a given number of sequences.
#[derive(Debug, Default)]
struct Trial {
    n_sequences: usize,
    n_steps: u32,
    /// The shortest step of the last trial with one group and with two, in seconds.
    best: [f64; 2],
}

/// Steps of each kind in a trial.
const TRIAL_STEPS: u32 = 4;
/// Steps from one trial to the next.
const TRIAL_EVERY: u32 = 256;
/// Fraction of a step that two groups must save.
const WORTH: f64 = 0.03;

impl InFlight {
    pub(super) fn new(fixed: Option<usize>) -> Self {
        Self { fixed, ..Self::default() }
    }

    /// Maximum groups of full size in a step with prompts.
    pub(super) fn of_prompts(&self, most: usize) -> usize {
        let wanted = self.fixed.unwrap_or(1 + (self.ratio + 0.5) as usize);
        wanted.clamp(1, most.max(1))
    }

    /// Number of groups for a step with rows of `n_sequences` that fits into one group.
    pub(super) fn of_step(&mut self, n_sequences: usize, most: usize) -> usize {
        if n_sequences < 2 || most < 2 {
            return 1;
        }
        if let Some(fixed) = self.fixed {
            return fixed.clamp(1, most.min(n_sequences));
        }
        if self.trial.n_sequences != n_sequences || self.trial.n_steps >= TRIAL_EVERY {
            self.trial = Trial { n_sequences, n_steps: 0, best: [f64::INFINITY; 2] };
        }
        let [one, two] = self.trial.best;
        match self.trial.n_steps {
            n if n < 2 * TRIAL_STEPS => 1 + (n % 2) as usize,
            _ if two < one * (1.0 - WORTH) => 2,
            _ => 1,
        }
    }

    /// Records that a step with rows of `n_sequences` in `n_groups` took this long.
    pub(super) fn learn(&mut self, n_sequences: usize, n_groups: usize, took: Duration, times: &Times) {
        if self.trial.n_sequences == n_sequences && (1..=2).contains(&n_groups) {
            self.trial.n_steps += 1;
            let best = &mut self.trial.best[n_groups - 1];
            *best = best.min(took.as_secs_f64());
        }
        let own = took.saturating_sub(times.waited).as_secs_f64();
        if times.n > 0 && own > 0.0 {
            // Both are sums over all layers of all groups.
            let ratio = times.away.as_secs_f64() / own;
            // If the engine never waited, answers came before they were needed, and `away` is an overestimate.
            let ratio = if times.waited < took / 50 { ratio - 0.5 } else { ratio };
            self.ratio += (ratio - self.ratio) / 4.0;
        }
    }
}

/// How long experts of a step's layers were away.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// Number of layers with experts away.
    n: u32,
    /// Sum of the times from submission to result.
    away: Duration,
    /// Part of that in which the engine had nothing else to do.
    pub(super) waited: Duration,
}

/// Wraps experts and measures their times.
pub(super) struct Timed<'a> {
    experts: &'a mut dyn Experts,
    clock: &'a Clock,
    /// Submitted layers with their start times.
    away: Vec<(Ticket, Duration)>,
    pub(super) times: Times,
}

impl<'a> Timed<'a> {
    pub(super) fn new(experts: &'a mut dyn Experts, clock: &'a Clock) -> Self {
        Self { experts, clock, away: Vec::new(), times: Times::default() }
    }

    /// The caller has waited since `asked` for this layer.
    fn finished(&mut self, ticket: Ticket, asked: Duration) {
        let now = (self.clock)();
        if let Some(at) = self.away.iter().position(|(away, _)| *away == ticket) {
            let (_, since) = self.away.swap_remove(at);
            self.times.n += 1;
            self.times.away += now.saturating_sub(since);
            self.times.waited += now.saturating_sub(asked);
        }
    }
}

impl Experts for Timed<'_> {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        let ticket = self.experts.begin(asked, sum)?;
        if let Some(ticket) = ticket {
            self.away.push((ticket, (self.clock)()));
        }
        Ok(ticket)
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        let asked = (self.clock)();
        let result = self.experts.finish(ticket, sum);
        self.finished(ticket, asked);
        result
    }

    fn finish_early(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        let asked = (self.clock)();
        let result = self.experts.finish_early(ticket, sum);
        self.finished(ticket, asked);
        result
    }

    fn confirm(&mut self) -> Result<(), ExpertsError> {
        self.experts.confirm()
    }

    fn max_in_flight(&self) -> usize {
        self.experts.max_in_flight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_long_way_fills_with_groups_of_a_prompt_and_a_short_one_does_not() {
        for (away, own, wanted) in [(10, 10, 2), (30, 10, 4), (1, 10, 1), (1000, 1, 8)] {
            let mut in_flight = InFlight::default();
            assert_eq!(in_flight.of_prompts(8), 1);
            for _ in 0..20 {
                let n = in_flight.of_prompts(8) as u32;
                // Each group is away while the others are computed.
                let waited = (away * MS).saturating_sub((n - 1) * own * MS);
                let times = Times { n, away: n * ((n - 1) * own * MS).max(away * MS), waited };
                in_flight.learn(128, n as usize, n * own * MS + waited, &times);
            }
            assert_eq!(in_flight.of_prompts(8), wanted, "{away} ms away, {own} ms here");
        }
        assert_eq!(InFlight::new(Some(2)).of_prompts(1), 1, "computed here");
    }

    #[test]
    fn two_groups_are_kept_where_they_were_faster() {
        for (two, wanted) in [(8, 2), (12, 1), (10, 1)] {
            let mut in_flight = InFlight::default();
            assert_eq!(in_flight.of_step(1, 8), 1);
            for _ in 0..2 * TRIAL_STEPS {
                let n = in_flight.of_step(6, 8);
                let took = if n == 2 { two } else { 10 };
                in_flight.learn(6, n, took * MS, &Times::default());
            }
            assert_eq!(in_flight.of_step(6, 8), wanted, "{two} ms instead of 10");
        }
    }
}
