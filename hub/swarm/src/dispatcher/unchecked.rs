//! A finished layer's parts that workers answered, for whoever checks them before the sum is taken.

use moex_protocol::{Answer, Block, Dispatch, Dtype, Pair, ProductFormat, WorkerId};

use super::job::{LayerResult, Source, Winner};
use crate::auditor::{Evidence, difference};

/// A worker's answer for one expert that nobody has checked.
#[derive(Clone, Copy, Debug)]
pub struct Unchecked<'a> {
    /// What [`LayerResult::replace`] calls it.
    pub item: usize,
    /// The expert.
    pub block: Block,
    /// The layer's rows that it was asked for, with their gates: R of them.
    pub pairs: &'a [Pair],
    /// (R, D) in the wire's number format: gate x expert(row).
    pub answer: &'a [u8],
    /// (R, 2F) in [`LayerResult::product_format`]: the products of gate, then those of up.
    pub products: &'a [u8],
}

/// A worker's answer that was not what the hub computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Lie {
    /// Whose.
    pub worker: WorkerId,
    /// What differed.
    pub evidence: Evidence,
}

impl LayerResult {
    /// What workers answered. What the hub computed itself is not among it.
    pub fn unchecked(&self) -> impl Iterator<Item = Unchecked<'_>> {
        let of_worker = |winner: &&Winner| winner.source != Source::Hub;
        self.winners.iter().filter(of_worker).map(|Winner { part, .. }| Unchecked {
            item: part.item,
            block: self.layer.block(part.item),
            pairs: &self.layer.items[part.item].pairs,
            answer: part.payload(),
            products: part.products().unwrap_or_default(),
        })
    }

    /// The rows (T, D) as they went over the wire, and in which number format.
    pub fn rows(&self) -> (Dtype, &[u8]) {
        (self.layer.dtype, &self.layer.rows)
    }

    /// The number format of products.
    pub fn product_format(&self) -> ProductFormat {
        self.layer.products.map_or(ProductFormat::F32, |products| products.format)
    }

    /// Says that the worker of an item answered with products of which `nmse` is wrong. None if the hub computed the item.
    pub fn false_products(&self, item: usize, nmse: f64) -> Option<Lie> {
        let winner = self.winners.iter().find(|winner| winner.part.item == item)?;
        let Source::Worker(worker) = winner.source else { return None };
        let Block { layer, expert } = self.layer.block(item);
        Some(Lie { worker, evidence: Evidence { layer, expert, nmse: nmse.min(f64::MAX), against: None } })
    }

    /// What the hub has to compute for these items, ascending.
    pub fn dispatch(&self, items: &[usize]) -> Dispatch {
        self.layer.dispatch(items)
    }

    /// Uses the hub's `own` answer to [`Self::dispatch`] of `items` in place of workers'. Gives those of theirs that differ:
    /// in a bit if `is_exact`, else by more than honest kernels do. None if the answer is not one to that, or not finite.
    pub fn replace(&mut self, items: &[usize], own: &Answer, is_exact: bool) -> Option<Vec<Lie>> {
        if own.has_non_finite() {
            return None;
        }
        let mut lies = Vec::new();
        for part in self.layer.read(items, own)? {
            let winner = self.winners.iter_mut().find(|winner| winner.part.item == part.item)?;
            if let Source::Worker(worker) = winner.source
                && let Some(nmse) = difference(&winner.part, &part, is_exact)
            {
                let Block { layer, expert } = self.layer.block(part.item);
                lies.push(Lie { worker, evidence: Evidence { layer, expert, nmse, against: None } });
            }
            *winner = Winner { source: Source::Hub, part };
        }
        Some(lies)
    }
}
