//! Slots of repacked experts, computed by [`crate::simd`] with int8 activations.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::{Batch, EngineError};
use crate::{
    ExpertView,
    simd::{ExpertCall, ExpertScratch, PackedExpertShape, PageSize, Processor, Slab, experts},
};

/// Packed experts, each in memory of its own; shared, so that a load never waits for a computation.
#[derive(Debug)]
pub(super) struct Panels {
    processor: Arc<Processor>,
    slots: RwLock<Vec<Option<Arc<Packed>>>>,
    /// Working memories, one for each computation that ran at the same time.
    scratches: Mutex<Vec<ExpertScratch>>,
}

#[derive(Debug)]
struct Packed {
    shape: PackedExpertShape,
    bytes: Slab,
}

/// Where results go.
struct Outputs<'a> {
    /// (P, D).
    out: &'a mut [f32],
    /// (P, 2F), appended.
    products: Option<&'a mut Vec<f32>>,
}

impl Panels {
    pub(super) fn new(n_slots: u32, processor: Arc<Processor>) -> Self {
        let slots = RwLock::new((0..n_slots).map(|_| None).collect());
        Self { processor, slots, scratches: Mutex::default() }
    }

    /// Loads an expert into a slot, which must exist.
    pub(super) fn load(&self, slot: usize, expert: &ExpertView<'_>) -> Result<(), EngineError> {
        let shape = PackedExpertShape::of(expert);
        let mut bytes = Slab::new(shape.bytes(), PageSize::Huge).map_err(|_| EngineError::NoMemory)?;
        shape.pack(self.processor.pool(), expert, &mut bytes);
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots[slot] = Some(Arc::new(Packed { shape, bytes }));
        Ok(())
    }

    /// Computes `out` (P, D), and `products` (P, 2F) if wanted; `batch` has been checked.
    pub(super) fn compute(
        &self,
        batch: &Batch,
        out: &mut [f32],
        products: Option<&mut Vec<f32>>,
    ) -> Result<(), EngineError> {
        let slots: Vec<Arc<Packed>> = {
            let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
            let packed = |slot: u32| slots[slot as usize].clone().ok_or(EngineError::EmptySlot(slot));
            batch.calls.iter().map(|call| packed(call.slot)).collect::<Result<_, _>>()?
        };
        let calls: Vec<(PackedExpertShape, ExpertCall<'_>)> = (batch.calls.iter().zip(&slots))
            .map(|(call, packed)| (packed.shape, ExpertCall { expert: &packed.bytes, pairs: &call.pairs }))
            .collect();
        let mut scratch = self.scratches().pop().unwrap_or_default();
        scratch.keep_products(products.is_some());
        let out = Outputs { out, products };
        let computed = self.compute_runs(&calls, &batch.rows, &mut scratch, out);
        self.scratches().push(scratch);
        computed
    }

    /// Computes each run of experts of one shape as one job. A batch of one layer, as a hub sends it, is one job.
    fn compute_runs(
        &self,
        calls: &[(PackedExpertShape, ExpertCall<'_>)],
        rows: &[f32],
        scratch: &mut ExpertScratch,
        Outputs { out, mut products }: Outputs<'_>,
    ) -> Result<(), EngineError> {
        let (simd, pool) = (self.processor.simd(), self.processor.pool());
        let mut rest = out;
        for run in calls.chunk_by(|(a, _), (b, _)| a == b) {
            let shape = run[0].0;
            let calls: Vec<ExpertCall<'_>> = run.iter().map(|(_, call)| *call).collect();
            let n_pairs: usize = calls.iter().map(|call| call.pairs.len()).sum();
            let part; // (pairs of the run, D)
            (part, rest) = rest.split_at_mut(n_pairs * shape.hidden);
            experts(simd, pool, &shape, scratch, &calls, rows, part)?;
            if let Some(products) = &mut products {
                products.extend_from_slice(scratch.products());
            }
        }
        Ok(())
    }

    fn scratches(&self) -> MutexGuard<'_, Vec<ExpertScratch>> {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
