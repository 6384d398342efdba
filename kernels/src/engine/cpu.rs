//! The engine without a GPU: experts in memory, computed by [`crate::cpu::expert_ffn`], or with int8 activations by
//! [`crate::simd`].

use std::sync::{Arc, PoisonError, RwLock};

use super::{ActivationFormat, Batch, Computed, EngineError, EnginePlan, panels::Panels};
use crate::{ExpertFormat, ExpertShape, cpu, simd::Processor};

/// Experts in ordinary memory.
#[derive(Debug)]
pub struct CpuEngine {
    plan: EnginePlan,
    slots: Slots,
}

#[derive(Debug)]
enum Slots {
    /// Blocks as they came, shared so that a load never waits for a computation.
    Exact(RwLock<Vec<Option<Block>>>),
    Int8(Panels),
}

#[derive(Clone, Debug)]
struct Block {
    shape: ExpertShape,
    bytes: Arc<[u8]>,
}

impl CpuEngine {
    /// An engine with empty slots, on all threads and the best instructions of this machine.
    ///
    /// # Errors
    /// [`EngineError::Plan`] if the plan is beyond the limits of this module, or `MOEX_SIMD` names instructions that this
    /// machine does not have.
    pub fn new(plan: EnginePlan) -> Result<Self, EngineError> {
        plan.check()?;
        let n_slots = plan.n_slots;
        let slots = match plan.activations {
            ActivationFormat::F32 => Slots::Exact(RwLock::new(vec![None; n_slots as usize])),
            ActivationFormat::Int8 => {
                let processor =
                    Processor::from_env().map_err(|error| EngineError::Plan(error.to_string()))?;
                Slots::Int8(Panels::new(n_slots, Arc::new(processor)))
            }
        };
        Ok(Self { plan, slots })
    }

    /// The plan that it was made for.
    pub fn plan(&self) -> &EnginePlan {
        &self.plan
    }

    /// Loads an expert of this format into a slot, replacing what is there. Running computations finish with the old
    /// one.
    ///
    /// # Errors
    /// If there is no such slot, the block is of no shape of the plan, or there is no memory for it.
    pub fn load(&self, slot: u32, format: ExpertFormat, block: &[u8]) -> Result<(), EngineError> {
        let shape = self.plan.shapes.with(format).ok_or(EngineError::NoSuchFormat(format))?;
        let expert = shape.view(block)?;
        let n_slots = self.plan.n_slots;
        if slot >= n_slots {
            return Err(EngineError::NoSuchSlot { slot, n_slots });
        }
        match &self.slots {
            Slots::Exact(slots) => {
                let mut slots = slots.write().unwrap_or_else(PoisonError::into_inner);
                slots[slot as usize] = Some(Block { shape, bytes: block.into() });
                Ok(())
            }
            Slots::Int8(panels) => panels.load(slot as usize, &expert),
        }
    }

    /// (P, D): `gate * expert(row)` for every pair of every call, in order.
    ///
    /// # Errors
    /// If the batch does not fit the plan or names an empty slot.
    pub fn compute(&self, batch: &Batch) -> Result<Vec<f32>, EngineError> {
        Ok(self.compute_into(batch, None)?.rows)
    }

    /// [`Self::compute`], with the products of gate and up.
    ///
    /// # Errors
    /// As [`Self::compute`].
    pub fn compute_with_products(&self, batch: &Batch) -> Result<Computed, EngineError> {
        let n_products = batch.n_pairs() * 2 * self.plan.shapes.inner;
        self.compute_into(batch, Some(Vec::with_capacity(n_products)))
    }

    fn compute_into(&self, batch: &Batch, mut products: Option<Vec<f32>>) -> Result<Computed, EngineError> {
        batch.check(&self.plan)?;
        let mut rows = vec![0.0; batch.n_pairs() * self.plan.shapes.hidden]; // (P, D)
        match &self.slots {
            Slots::Exact(slots) => self.compute_exactly(slots, batch, &mut rows, products.as_mut())?,
            Slots::Int8(panels) => panels.compute(batch, &mut rows, products.as_mut())?,
        }
        Ok(Computed { rows, products })
    }

    fn compute_exactly(
        &self,
        slots: &RwLock<Vec<Option<Block>>>,
        batch: &Batch,
        out: &mut [f32],
        products: Option<&mut Vec<f32>>,
    ) -> Result<(), EngineError> {
        let blocks: Vec<Block> = {
            let slots = slots.read().unwrap_or_else(PoisonError::into_inner);
            let block = |slot: u32| slots[slot as usize].clone().ok_or(EngineError::EmptySlot(slot));
            batch.calls.iter().map(|call| block(call.slot)).collect::<Result<_, _>>()?
        };
        let inner = self.plan.shapes.inner;
        let mut rest = out;
        let mut kept = products.map(|products| {
            products.resize(batch.n_pairs() * 2 * inner, 0.0);
            products.as_mut_slice()
        });
        let mut calls = Vec::with_capacity(batch.calls.len());
        for (call, block) in batch.calls.iter().zip(&blocks) {
            let part; // (pairs, D)
            (part, rest) = rest.split_at_mut(call.pairs.len() * self.plan.shapes.hidden);
            let mut its = None; // (pairs, 2F)
            if let Some(all) = kept.take() {
                let (first, others) = all.split_at_mut(call.pairs.len() * 2 * inner);
                (its, kept) = (Some(first), Some(others));
            }
            calls.push((block.shape.view(&block.bytes)?, &call.pairs, part, its));
        }
        cpu::parallel::for_each(calls, |(expert, pairs, part, products)| {
            cpu::expert_ffn_with(&expert, &batch.rows, pairs, part, products);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ExpertShapes, WeightFormat,
        engine::{Call, EngineError, Pair},
        noise::noise,
    };

    const SHAPE: ExpertShape = ExpertShape::uniform(40, 24, WeightFormat::Int4G128);

    fn plan() -> EnginePlan {
        let (shapes, activations) = (SHAPE.into(), ActivationFormat::F32);
        EnginePlan { shapes, activations, n_slots: 3, max_rows: 4, max_pairs: 8 }
    }

    fn engine() -> CpuEngine {
        engine_with(ActivationFormat::F32)
    }

    fn engine_with(activations: ActivationFormat) -> CpuEngine {
        let engine = CpuEngine::new(EnginePlan { activations, ..plan() }).unwrap();
        for slot in [0, 2] {
            engine.load(slot, SHAPE.format, &block(slot)).unwrap();
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
    fn int8_activations_are_near_and_a_pair_keeps_its_bits_in_any_batch() {
        let rows = noise(9, 3 * 40, 1.0);
        let batch = Batch { rows: rows.clone(), calls: vec![call(2, &[1, 0]), call(0, &[2, 1])] };
        let exact = engine().compute(&batch).unwrap();
        let engine = engine_with(ActivationFormat::Int8);
        let out = engine.compute(&batch).unwrap();
        // Experts of random weights are so narrow that errors vary from row to row; a wrong kernel is off by 1.
        assert!((1e-8..1e-2).contains(&crate::nmse(&out, &exact)), "{}", crate::nmse(&out, &exact));
        let one = engine.compute(&Batch { rows, calls: vec![call(0, &[1])] }).unwrap();
        assert_eq!(one, out[3 * 40..]);
        assert_eq!(
            engine.compute(&Batch { rows: vec![0.0; 40], calls: vec![call(1, &[0])] }),
            Err(EngineError::EmptySlot(1))
        );
    }

    #[test]
    fn slots_hold_experts_of_any_format_of_the_plan() {
        let mixed = ExpertFormat::new(WeightFormat::Q4K, WeightFormat::Q6K);
        let uniform = ExpertFormat::uniform(WeightFormat::Q4_0);
        let shapes = ExpertShapes::new(40, 24, mixed, [uniform]).unwrap();
        let batch = Batch {
            rows: noise(9, 2 * 40, 1.0),
            calls: vec![call(1, &[1]), call(0, &[0, 1]), call(1, &[0])],
        };
        for activations in [ActivationFormat::F32, ActivationFormat::Int8] {
            let plan = EnginePlan { shapes, activations, n_slots: 2, max_rows: 2, max_pairs: 4 };
            let engine = CpuEngine::new(plan).unwrap();
            for formats in [[mixed, uniform], [uniform, mixed]] {
                let mut blocks = Vec::new();
                for (slot, format) in (0..).zip(formats) {
                    let [gate, up, down] = [1, 2, 3].map(|i| noise(u64::from(slot * 3 + i), 40 * 24, 1.0));
                    let shape = shapes.with(format).unwrap();
                    let block = shape.pack(&gate, &up, &down);
                    engine.load(slot, format, &block).unwrap();
                    blocks.push((shape, block));
                }
                let out = engine.compute(&batch).unwrap();
                let mut expected = vec![f32::NAN; 4 * 40];
                let mut rest = expected.as_mut_slice();
                for call in &batch.calls {
                    let (shape, block) = &blocks[call.slot as usize];
                    let part;
                    (part, rest) = rest.split_at_mut(call.pairs.len() * 40);
                    cpu::expert_ffn(&shape.view(block).unwrap(), &batch.rows, &call.pairs, part);
                }
                match activations {
                    ActivationFormat::F32 => assert_eq!(out, expected),
                    ActivationFormat::Int8 => assert!(crate::nmse(&out, &expected) < 1e-2),
                }
            }
            let other = ExpertFormat::uniform(WeightFormat::F16);
            assert_eq!(engine.load(0, other, &[]), Err(EngineError::NoSuchFormat(other)));
        }
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
        assert!(matches!(engine().load(0, SHAPE.format, &[0; 3]), Err(EngineError::Shape(_))));
        assert!(matches!(engine().load(7, SHAPE.format, &block(0)), Err(EngineError::NoSuchSlot { .. })));
        let huge = EnginePlan { max_pairs: u32::MAX, ..plan() };
        assert!(matches!(CpuEngine::new(huge), Err(EngineError::Plan(_))));
    }
}
