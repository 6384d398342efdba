//! The breakdown of a layer's time, and the timeline of one token.

use std::time::Duration;

use moex_swarm::trace::{AttemptRecord, Outcome as Ended};

use crate::world::{Leg, TimedLayer};

/// An activity of the hub or a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The hub: attention and router.
    Attention,
    /// The hub: writing messages.
    Serialise,
    /// Network: a message or its answer is under way.
    Network,
    /// Worker: a message waits for the device.
    Queue,
    /// Device: launching, and waiting for the result.
    Sync,
    /// Device: computing experts.
    Compute,
    /// Hub: answers wait for the slowest one.
    Slowest,
    /// The hub: adding up answers.
    Combine,
    /// The hub: head and sampler.
    Head,
}

impl Part {
    /// In the order of time.
    pub const ALL: [Self; 9] = [
        Self::Attention,
        Self::Serialise,
        Self::Network,
        Self::Queue,
        Self::Sync,
        Self::Compute,
        Self::Slowest,
        Self::Combine,
        Self::Head,
    ];

    /// The name in tables and legends.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Serialise => "serialise",
            Self::Network => "network",
            Self::Queue => "queue",
            Self::Sync => "sync",
            Self::Compute => "compute",
            Self::Slowest => "wait_for_slowest",
            Self::Combine => "combine",
            Self::Head => "head",
        }
    }
}

/// Time by part. Together they are all of the hub's time, except when it was idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts([Duration; Part::ALL.len()]);

/// An activity with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The lane: 0 is the hub, n the n-th worker.
    pub lane: usize,
    /// The activity.
    pub part: Part,
    /// Since the world's start.
    pub from: Duration,
    /// See `from`.
    pub to: Duration,
}

impl Parts {
    /// The time of a part.
    pub fn of(&self, part: Part) -> Duration {
        self.0[part as usize]
    }

    /// The whole time between a layer's start and its last answer.
    pub fn experts(&self) -> Duration {
        [Part::Network, Part::Queue, Part::Sync, Part::Compute, Part::Slowest]
            .map(|part| self.of(part))
            .iter()
            .sum()
    }

    /// The sum of all parts.
    pub fn total(&self) -> Duration {
        self.0.iter().sum()
    }

    pub(super) fn add(&mut self, part: Part, time: Duration) {
        self.0[part as usize] += time;
    }

    /// Adds a layer whose experts took `took`. The parts are the means of the answers that counted; the rest is the
    /// wait for the slowest of them. A computation by the hub counts as an answer without network.
    pub(super) fn add_layer(&mut self, took: Duration, layer: &TimedLayer) {
        let micros = Duration::from_micros;
        let (mut sums, mut n) = ([Duration::ZERO; Part::ALL.len()], 0);
        for (attempt, leg) in winners(layer) {
            for span in spans(attempt, leg, 0) {
                sums[span.part as usize] += span.to.saturating_sub(span.from);
            }
            n += 1;
        }
        for work in &layer.record.hub {
            if let Some(ended) = work.ended {
                sums[Part::Compute as usize] += micros(ended).saturating_sub(micros(work.sent));
                n += 1;
            }
        }
        let mut left = took;
        for (part, sum) in Part::ALL.into_iter().zip(sums) {
            let mean = (sum / n.max(1)).min(left);
            self.add(part, mean);
            left -= mean;
        }
        self.add(Part::Slowest, left);
    }
}

/// The answers that contribute to a layer's sum.
pub(super) fn winners(layer: &TimedLayer) -> impl Iterator<Item = (&AttemptRecord, &Leg)> {
    let attempts = layer.record.attempts.iter().zip(&layer.legs);
    attempts
        .filter(|(attempt, _)| attempt.outcome == Ended::Answered && attempt.won > 0)
        .filter_map(|(a, leg)| leg.as_ref().map(|leg| (a, leg)))
}

/// A message's way to the worker, its time there and its way back, in its worker's lane.
pub(super) fn spans(attempt: &AttemptRecord, leg: &Leg, lane: usize) -> Vec<Span> {
    let span = |part, from: Duration, to: Duration| Span { lane, part, from, to: to.max(from) };
    let mut spans = vec![span(Part::Network, Duration::from_micros(attempt.sent), leg.arrived)];
    if let Some(work) = leg.work {
        let synced = work.began + work.sync;
        spans.push(span(Part::Queue, leg.arrived, work.began));
        spans.push(span(Part::Sync, work.began, synced));
        spans.push(span(Part::Compute, synced, work.ends()));
        if attempt.outcome == Ended::Answered {
            spans.push(span(Part::Network, work.ends(), Duration::from_micros(attempt.ended)));
        }
    }
    spans
}
