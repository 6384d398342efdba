//! Attempts of a trace as messages to workers: their content, concurrent messages, and their time.

use std::collections::BTreeMap;

use moex_protocol::WorkerId;
use moex_swarm::trace::{AttemptRecord, Outcome};

use crate::replay::trace::{Step, Trace};

/// One observation of an attempt's worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    /// The layer's number among those of the fitted steps.
    pub layer: usize,
    /// The number of experts in the message.
    pub experts: f64,
    /// (row, expert) pairs.
    pub pairs: f64,
    /// Experts and pairs of each message that another worker computed at the same time.
    pub beside: Vec<(f64, f64)>,
    /// The time until its answer, or a lower bound of that time.
    pub took_ms: f64,
    pub is_answered: bool,
    /// Whether the worker may have been busy with something else first.
    pub queued: bool,
    /// Whether its layer had one row. With one reader, every step has, except those of a prompt.
    pub is_single: bool,
}

impl Message {
    /// An answered message on its own.
    pub(super) fn of(rows: u32, experts: u32, pairs: u32) -> Self {
        Self {
            experts: experts.into(),
            pairs: pairs.into(),
            is_answered: true,
            is_single: rows == 1,
            ..Self::default()
        }
    }
}

/// All messages that were observed, by worker, in the order they were sent.
pub(super) fn of(trace: &Trace, steps: &[Step]) -> BTreeMap<WorkerId, Vec<Message>> {
    let mut messages: BTreeMap<WorkerId, Vec<Message>> = BTreeMap::new();
    // Until when each worker is known to be busy; `None` if that is unknown.
    let mut busy: BTreeMap<WorkerId, Option<u64>> = BTreeMap::new();
    for (at, layer) in steps.iter().flat_map(|step| &step.layers).enumerate() {
        let mut attempts: Vec<&AttemptRecord> = layer.attempts.iter().collect();
        attempts.sort_by_key(|attempt| (attempt.sent, attempt.id));
        for attempt in &attempts {
            let late = trace.late.get(&attempt.id).copied();
            let answered = match attempt.outcome {
                Outcome::Answered => Some(attempt.ended),
                Outcome::GivenUp | Outcome::TimedOut => late.filter(|at| *at >= attempt.sent),
                Outcome::Failed => continue,
            };
            let is_busy = |until: &Option<u64>| until.is_none_or(|until| until > attempt.sent);
            let queued = busy.get(&attempt.worker).is_some_and(is_busy);
            busy.insert(attempt.worker, answered);
            let is_beside = |other: &&&AttemptRecord| {
                other.worker != attempt.worker && other.sent <= attempt.ended && other.ended >= attempt.sent
            };
            let size = |other: &&AttemptRecord| (f64::from(other.experts), f64::from(other.pairs));
            messages.entry(attempt.worker).or_default().push(Message {
                layer: at,
                beside: attempts.iter().filter(is_beside).map(size).collect(),
                took_ms: answered.unwrap_or(attempt.ended).saturating_sub(attempt.sent) as f64 / 1e3,
                is_answered: answered.is_some(),
                queued,
                ..Message::of(layer.rows, attempt.experts, attempt.pairs)
            });
        }
    }
    messages
}
