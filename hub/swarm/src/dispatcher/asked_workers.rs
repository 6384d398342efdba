//! Which workers are asked for a job's items, and how many answers an item still needs.

use std::collections::BTreeSet;

use super::job::Job;
use crate::{ConnectionId, SwarmConfig};

/// The workers asked for a job's items.
pub(super) struct AskedWorkers {
    pub by: Vec<Vec<ConnectionId>>,
    pub n_in_time: Vec<usize>,
}

impl AskedWorkers {
    /// Answers to an item that are here, or on their way in time.
    fn n_answers(&self, job: &Job, item: usize) -> usize {
        let hosts: BTreeSet<_> = job.held_of(item).map(|held| &held.host).collect();
        self.n_in_time[item] + hosts.len()
    }

    /// Answers to an item that nobody is asked for in time.
    pub(super) fn missing(&self, config: &SwarmConfig, job: &Job, item: usize) -> usize {
        config.needed_answers().saturating_sub(self.n_answers(job, item))
    }

    /// Whether an item waits for every one of the workers that are asked.
    pub(super) fn is_just_enough(&self, config: &SwarmConfig, job: &Job, item: usize) -> bool {
        self.n_answers(job, item) == config.needed_answers()
    }
}
