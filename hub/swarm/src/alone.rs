//! A hub that nobody has joined: whoever asks for a layer may compute it there and then.

use std::collections::BTreeMap;
use std::time::Duration;

use moex_protocol::{Block, ExpertId, LayerId};

use super::Swarm;
use moex_protocol::Routing;

impl Swarm {
    /// Whether there is nobody but the hub, and nothing to be written down of how it computes.
    pub fn is_alone(&self) -> bool {
        self.config.hub_compute
            && self.connections.is_empty()
            && self.jobs.is_empty()
            && self.tape.is_none()
            && !self.is_shutting_down
    }

    /// Counts a layer that was computed without a job, as one that the hub computed.
    pub fn computed_alone(&mut self, layer: LayerId, routing: &Routing, took: Duration) {
        let mut chosen = BTreeMap::<u16, usize>::new();
        for expert in &routing.experts {
            *chosen.entry(*expert).or_default() += 1;
        }
        let Self { heat, catalog, .. } = self;
        heat.count(chosen.into_iter().filter_map(|(expert, n_pairs)| {
            Some((catalog.index(Block { layer, expert: ExpertId(expert) })?, n_pairs))
        }));
        let n_pairs = routing.experts.len();
        self.totals.layers += 1;
        self.totals.hub_computed += 1;
        self.hub_share.dispatches += 1;
        self.hub_share.rows += n_pairs as u64;
        self.hub_latencies.record(n_pairs, took);
        self.layer_latency.record(took);
    }
}
