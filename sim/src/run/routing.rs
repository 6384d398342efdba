//! Chooses the experts of simulated rows.

use std::sync::Arc;

use crate::{
    random::Random,
    scenario::{Checked, Recorded, RoutingKeys},
};

/// After this many failed draws the next free expert is taken, so that a steep distribution terminates too.
const MAX_REDRAWS: usize = 64;

/// Draws experts for rows, layer by layer.
pub(super) struct Router {
    keys: RoutingKeys,
    n_experts: usize,
    k: usize,
    /// Cumulated weights by rank; empty if all are equal.
    cumulated: Vec<f64>,
    /// For each layer, the expert of each rank.
    ranks: Vec<Vec<u16>>,
    /// The recorded routing, and for each layer the number of rows used so far.
    recorded: Option<Arc<Recorded>>,
    used: Vec<usize>,
}

/// The experts of a stream's last row, for each layer.
pub(super) type Memory = Vec<Vec<u16>>;

impl Router {
    pub(super) fn new(checked: &Checked, random: &mut Random) -> Self {
        let (keys, sizes) = (&checked.scenario.routing, &checked.sizes);
        let n_experts = usize::from(sizes.n_experts);
        let mut cumulated = Vec::new();
        if let RoutingKeys::Zipf { exponent } = keys {
            let mut sum = 0.0;
            cumulated.extend((1..=n_experts).map(|rank| {
                sum += libm::pow(rank as f64, -exponent);
                sum
            }));
        }
        let mut shuffled = || {
            let mut experts: Vec<u16> = (0..sizes.n_experts).collect();
            for at in (1..n_experts).rev() {
                experts.swap(at, random.below(at + 1));
            }
            experts
        };
        let ranks = (0..sizes.n_layers).map(|_| shuffled()).collect();
        let (recorded, used) = (checked.recorded.clone(), vec![0; usize::from(sizes.n_layers)]);
        Self { keys: keys.clone(), n_experts, k: usize::from(sizes.k), cumulated, ranks, recorded, used }
    }

    /// Chooses K distinct experts for a stream's next row in this layer, and stores them in the memory.
    pub(super) fn route<'a>(
        &mut self,
        layer: usize,
        memory: &'a mut Memory,
        random: &mut Random,
    ) -> &'a [u16] {
        if memory.len() <= layer {
            memory.resize(layer + 1, Vec::new());
        }
        memory[layer] = self.row(layer, &memory[layer], random);
        &memory[layer]
    }

    fn row(&mut self, layer: usize, last: &[u16], random: &mut Random) -> Vec<u16> {
        if let Some(recorded) = &self.recorded {
            self.used[layer] += 1;
            return recorded.row(layer, self.used[layer] - 1, self.k).to_vec();
        }
        let mut row: Vec<u16> = Vec::with_capacity(self.k);
        if let RoutingKeys::Sticky { stay } = self.keys {
            row.extend(last.iter().filter(|_| random.uniform() < stay));
        }
        while row.len() < self.k {
            let mut expert = self.draw(layer, random);
            for _ in 0..MAX_REDRAWS {
                if !row.contains(&expert) {
                    break;
                }
                expert = self.draw(layer, random);
            }
            while row.contains(&expert) {
                expert = (expert + 1) % self.n_experts as u16;
            }
            row.push(expert);
        }
        row
    }

    fn draw(&self, layer: usize, random: &mut Random) -> u16 {
        let Some(sum) = self.cumulated.last() else { return random.below(self.n_experts) as u16 };
        let at = random.uniform() * sum;
        let rank = self.cumulated.partition_point(|below| *below <= at).min(self.n_experts - 1);
        self.ranks[layer][rank]
    }
}
