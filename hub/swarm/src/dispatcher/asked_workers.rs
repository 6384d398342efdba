//! Which workers are asked for a job's items, and how many answers an item still needs.

use std::collections::BTreeSet;

use super::job::Job;
use crate::{ConnectionId, SwarmConfig};

/// The workers asked for a job's items.
pub(super) struct AskedWorkers {
    pub by: Vec<Vec<ConnectionId>>,
    pub n_in_time: Vec<usize>,
    /// How many of those are to answer with rows, not with digests.
    pub n_with_rows: Vec<usize>,
}

impl AskedWorkers {
    /// Answers to an item that are here, or on their way in time.
    fn n_answers(&self, job: &Job, item: usize) -> usize {
        let hosts: BTreeSet<_> = job.held_of(item).map(|held| &held.host).collect();
        self.n_in_time[item] + hosts.len()
    }

    /// Whether an item's rows are here, or on their way in time from more than `n_late` that are late.
    pub(super) fn has_rows(&self, job: &Job, item: usize, n_late: usize) -> bool {
        job.holds_rows(item) || self.n_with_rows[item] > n_late
    }

    /// Answers to an item that nobody is asked for in time. At least one has to be its rows.
    pub(super) fn missing(&self, config: &SwarmConfig, job: &Job, item: usize) -> usize {
        let n_without_rows = usize::from(!self.has_rows(job, item, 0));
        config.needed_answers().saturating_sub(self.n_answers(job, item)).max(n_without_rows)
    }

    /// Whether an item waits for every one of the workers that are asked.
    pub(super) fn is_just_enough(&self, config: &SwarmConfig, job: &Job, item: usize) -> bool {
        self.n_answers(job, item) == config.needed_answers()
    }
}
