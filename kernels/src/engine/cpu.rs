//! The engine without a GPU: experts in memory, computed by [`crate::cpu::expert_ffn`].

use std::sync::{Arc, PoisonError, RwLock};

use super::{Batch, EngineError, EnginePlan, Pair};
use crate::{ExpertView, cpu};

/// Experts in ordinary memory.
#[derive(Debug)]
pub struct CpuEngine {
    plan: EnginePlan,
    /// A block for each slot; shared, so that a load never waits for a computation.
    slots: RwLock<Vec<Option<Arc<[u8]>>>>,
}

impl CpuEngine {
    /// An engine whose slots are empty.
    ///
    /// # Errors
    /// [`EngineError::Plan`] if the plan is beyond the limits of this module.
    pub fn new(plan: EnginePlan) -> Result<Self, EngineError> {
        plan.check()?;
        Ok(Self { plan, slots: RwLock::new(vec![None; plan.n_slots as usize]) })
    }

    /// What it was made for.
    pub fn plan(&self) -> &EnginePlan {
        &self.plan
    }

    /// Puts an expert into a slot, in place of what is there; computations under way finish with the old one.
    ///
    /// # Errors
    /// If there is no such slot or the block is not of the plan's shape.
    pub fn load(&self, slot: u32, block: &[u8]) -> Result<(), EngineError> {
        self.plan.shape.view(block)?;
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let n_slots = self.plan.n_slots;
        let place = slots.get_mut(slot as usize).ok_or(EngineError::NoSuchSlot { slot, n_slots })?;
        *place = Some(block.into());
        Ok(())
    }

    /// (P, D): `gate * expert(row)` for every pair of every call, in order.
    ///
    /// # Errors
    /// If the batch does not fit the plan or names an empty slot.
    pub fn compute(&self, batch: &Batch) -> Result<Vec<f32>, EngineError> {
        batch.check(&self.plan)?;
        let hidden = self.plan.shape.hidden;
        let blocks = self.blocks(batch)?;
        let mut out = vec![0.0; batch.n_pairs() * hidden]; // (P, D)
        let mut rest = out.as_mut_slice();
        let mut calls: Vec<(ExpertView<'_>, &[Pair], &mut [f32])> = Vec::with_capacity(batch.calls.len());
        for (call, block) in batch.calls.iter().zip(&blocks) {
            let part; // (pairs, D)
            (part, rest) = rest.split_at_mut(call.pairs.len() * hidden);
            calls.push((self.plan.shape.view(block)?, &call.pairs, part));
        }
        cpu::parallel::for_each(calls, |(expert, pairs, part)| {
            cpu::expert_ffn(&expert, &batch.rows, pairs, part);
        });
        Ok(out)
    }

    fn blocks(&self, batch: &Batch) -> Result<Vec<Arc<[u8]>>, EngineError> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let block = |slot: u32| slots.get(slot as usize).and_then(Clone::clone);
        batch.calls.iter().map(|call| block(call.slot).ok_or(EngineError::EmptySlot(call.slot))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ExpertShape, WeightFormat,
        engine::{Call, EngineError},
        noise::noise,
    };

    const SHAPE: ExpertShape = ExpertShape { hidden: 40, inner: 24, format: WeightFormat::Int4G128 };

    fn engine() -> CpuEngine {
        let engine =
            CpuEngine::new(EnginePlan { shape: SHAPE, n_slots: 3, max_rows: 4, max_pairs: 8 }).unwrap();
        for slot in [0, 2] {
            engine.load(slot, &block(slot)).unwrap();
        }
        engine
    }

    fn block(slot: u32) -> Vec<u8> {
        let [gate, up, down] = [1, 2, 3].map(|i| noise(u64::from(slot * 3 + i), 40 * 24, 1.0));
        SHAPE.pack(&gate, &up, &down)
    }

    fn call(slot: u32, rows: &[u32]) -> Call {
        Call { slot, pairs: rows.iter().map(|&row| Pair { row, gate: 0.5 + row as f32 }).collect() }
    }

    #[test]
    fn answers_every_pair_in_the_order_of_the_calls() {
        let batch = Batch {
            rows: noise(9, 3 * 40, 1.0),
            calls: vec![call(2, &[1, 0]), call(0, &[]), call(0, &[2, 1])],
        };
        let out = engine().compute(&batch).unwrap();
        let mut expected = vec![f32::NAN; 4 * 40];
        let (first, second) = expected.split_at_mut(2 * 40);
        cpu::expert_ffn(&SHAPE.view(&block(2)).unwrap(), &batch.rows, &batch.calls[0].pairs, first);
        cpu::expert_ffn(&SHAPE.view(&block(0)).unwrap(), &batch.rows, &batch.calls[2].pairs, second);
        assert_eq!(out, expected);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let rows = |n: usize| vec![0.0; n * 40];
        for (batch, error) in [
            (Batch { rows: rows(1), calls: vec![call(1, &[0])] }, EngineError::EmptySlot(1)),
            (
                Batch { rows: rows(1), calls: vec![call(3, &[0])] },
                EngineError::NoSuchSlot { slot: 3, n_slots: 3 },
            ),
            (Batch { rows: rows(1), calls: vec![call(0, &[1])] }, EngineError::NoSuchRow { row: 1, rows: 1 }),
            (Batch { rows: rows(5), calls: vec![] }, EngineError::TooManyRows { rows: 5, max_rows: 4 }),
            (
                Batch { rows: rows(1), calls: vec![call(0, &[0; 9])] },
                EngineError::TooManyPairs { pairs: 9, max_pairs: 8 },
            ),
            (
                Batch { rows: vec![0.0; 41], calls: vec![] },
                EngineError::RaggedRows { values: 41, hidden: 40 },
            ),
        ] {
            assert_eq!(engine().compute(&batch), Err(error));
        }
        assert!(matches!(engine().load(0, &[0; 3]), Err(EngineError::Shape(_))));
        assert!(matches!(engine().load(7, &block(0)), Err(EngineError::NoSuchSlot { .. })));
        let huge = EnginePlan { shape: SHAPE, n_slots: 1, max_rows: 1, max_pairs: u32::MAX };
        assert!(matches!(CpuEngine::new(huge), Err(EngineError::Plan(_))));
    }
}
