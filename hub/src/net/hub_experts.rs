//! Computes experts on the calling thread while that is faster than asking workers, or while there are none.

use super::faster::{Faster, Side};
use super::handle::SwarmHandle;
use super::swarm_experts::SwarmExperts;
use moex_model::local_experts::LocalExperts;
use moex_model::{Experts, ExpertsError, LayerRequest, Ticket};
use moex_swarm::Readiness;

/// Who computes experts that both the hub and a worker hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    /// Whoever is faster, by steps of both.
    Faster,
    /// The worker, unless it is far slower than the hub.
    #[default]
    Workers,
}

/// Computes layers on the calling thread while no worker is connected, or while that is faster; otherwise on the swarm. Both
/// give the same bytes. Computing on the calling thread avoids waking the swarm's threads for every layer.
pub struct HubExperts {
    handle: SwarmHandle,
    swarm: SwarmExperts,
    /// None if the hub computes no experts, or computes them in f32.
    own: Option<LocalExperts>,
    /// None where workers are preferred.
    faster: Option<Faster>,
}

impl HubExperts {
    /// Combines the swarm's experts with the hub's `own`, which round as the swarm's wire does.
    pub fn new(swarm: SwarmHandle, own: Option<LocalExperts>, prefer: Prefer) -> Self {
        // A trace is of what the swarm computes.
        let may_compare = own.is_some() && prefer == Prefer::Faster && !swarm.is_traced();
        let faster = may_compare.then(Faster::default);
        Self { swarm: SwarmExperts::new(swarm.clone()), handle: swarm, own, faster }
    }

    /// Whether the hub computes the next layer on this thread.
    fn is_own(&mut self) -> bool {
        let is_faster = |faster: &mut Faster| faster.side(self.handle.shared.now()) == Side::Own;
        self.own.is_some() && (self.handle.is_alone() || self.faster.as_mut().is_some_and(is_faster))
    }

    fn learn_from<T>(&mut self, result: Result<T, ExpertsError>) -> Result<T, ExpertsError> {
        match (&result, &mut self.faster) {
            // Its time is counted as it is.
            (Ok(_) | Err(ExpertsError::FalseAnswer), _) | (_, None) => {}
            (Err(_), Some(faster)) => faster.step_fails(),
        }
        result
    }
}

impl Experts for HubExperts {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        let is_own = self.is_own();
        let begun = match &mut self.own {
            Some(own) if is_own => {
                let LayerRequest { layer, routing, .. } = asked;
                let apply = |sum: &mut [f32]| own.apply_into(asked, sum);
                self.handle.timed_alone(layer, routing, sum, apply).map(|()| None)
            }
            _ => self.swarm.begin(asked, sum),
        };
        // What fails may have been asked for because of a false sum: then the step begins again.
        let begun = begun.or_else(|error| self.swarm.confirm().and(Err(error)));
        self.learn_from(begun)
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        let finished = self.swarm.finish(ticket, sum);
        self.learn_from(finished)
    }

    fn finish_early(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        let finished = self.swarm.finish_early(ticket, sum);
        self.learn_from(finished)
    }

    fn confirm(&mut self) -> Result<(), ExpertsError> {
        let confirmed = self.swarm.confirm();
        self.learn_from(confirmed)
    }

    fn n_doubts(&self) -> u64 {
        self.swarm.n_doubts()
    }

    fn max_in_flight(&self) -> usize {
        let is_own = self.handle.is_alone() || self.handle.shared.is_hub_faster();
        if self.own.is_some() && is_own { 1 } else { self.swarm.max_in_flight() }
    }

    fn step_begins(&mut self, n_rows: usize) {
        self.swarm.step_begins(n_rows);
        if let Some(faster) = &mut self.faster {
            let shared = &self.handle.shared;
            let strength = if shared.is_alone() { 0 } else { strength(shared.readiness()) };
            faster.step_begins(shared.now(), n_rows, strength);
        }
    }

    fn step_ends(&mut self, n_rows: usize, n_tokens: usize) {
        self.swarm.step_ends(n_rows, n_tokens);
        if let Some(faster) = &mut self.faster {
            // Slow ones are not asked: then the hub was measured, and not they.
            if faster.looks_at_workers() && !self.swarm.has_worker_answered() {
                faster.step_fails();
            }
            faster.step_ends(self.handle.shared.now());
            self.handle.shared.publish_compared(faster.compared(n_rows));
        }
    }
}

/// Grows with every worker, and with every eighth of the model that workers hold.
fn strength(Readiness { workers, coverage }: Readiness) -> usize {
    workers.max(1) * (1 + 8 * coverage.covered / coverage.blocks.max(1))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moex_kernels::simd::{KvFormat, Processor, Simd};
    use moex_protocol::Dtype;

    use super::*;
    use crate::net::SwarmServer;
    use crate::server::summary;
    use crate::shards::{ModelExperts, ShardStore};
    use moex_model::{Checkpoint, Compute, Fast, FloatWeights, Keep, Model, Packing, Routing};
    use moex_swarm::{JoinToken, SwarmConfig};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_hub_alone_gives_the_bytes_of_its_swarm_and_counts_them_alike() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::demo().unwrap();
        let processor = Arc::new(Processor::new(Simd::detect(), 2));
        let fast =
            Fast { processor: processor.clone(), weights: FloatWeights::ByCheckpoint, kv: KvFormat::F16 };
        let compute = Compute::Fast(fast);
        let model = Arc::new(Model::load_for(&checkpoint, &compute).unwrap());
        let (source, packing) = (ModelExperts::new("demo", model.clone()), Packing::or_default(None, &model));
        let store = ShardStore::open(folder.path(), &source, packing, &|_, _| {}).unwrap();
        let store = Arc::new(store.computing_int8(processor, Keep::All).unwrap());
        let summary = summary(&checkpoint, &store, compute.activations(), 32);
        let server =
            SwarmServer::start(SwarmConfig::new(JoinToken::new("a-token"), summary), store.clone()).unwrap();

        let rows: Vec<f32> = (0..3 * 256).map(|i| (i as f32).sin()).collect();
        let experts = vec![0, 3, 7, 15, 3, 4, 5, 6, 1, 2, 3, 8];
        let routing = Routing { k: 4, gates: vec![0.25; experts.len()], experts };
        let mut swarm = SwarmExperts::new(server.handle());
        let mut alone = HubExperts::new(server.handle(), store.experts(Dtype::F16), Prefer::Workers);
        let (by_swarm, alone) = tokio::task::spawn_blocking(move || {
            (swarm.apply(1, &rows, &routing).unwrap(), alone.apply(1, &rows, &routing).unwrap())
        })
        .await
        .unwrap();
        assert!(alone.iter().any(|value| *value != 0.0));
        assert_eq!(alone, by_swarm);
        let status = server.handle().status().await;
        assert_eq!((status.totals.layers, status.hub.rows, status.hub.dispatches), (2, 24, 2));
    }
}
