//! Slots of repacked experts, computed by [`crate::simd`] with int8 activations.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::{Batch, EngineError};
use crate::{
    ExpertShape,
    simd::{ExpertCall, ExpertScratch, PackedExpertShape, PageSize, Processor, Slab, experts},
};

/// Packed experts, each in memory of its own; shared, so that a load never waits for a computation.
#[derive(Debug)]
pub(super) struct Panels {
    shape: PackedExpertShape,
    processor: Arc<Processor>,
    slots: RwLock<Vec<Option<Arc<Slab>>>>,
    /// One for each computation that was ever under way at once.
    scratches: Mutex<Vec<ExpertScratch>>,
}

impl Panels {
    pub(super) fn new(shape: &ExpertShape, n_slots: u32, processor: Arc<Processor>) -> Self {
        let slots = RwLock::new(vec![None; n_slots as usize]);
        Self { shape: PackedExpertShape::from(*shape), processor, slots, scratches: Mutex::default() }
    }

    /// `block` is one of `shape`, and there is the slot.
    pub(super) fn load(&self, shape: &ExpertShape, slot: usize, block: &[u8]) -> Result<(), EngineError> {
        let mut packed = Slab::new(self.shape.bytes(), PageSize::Huge).map_err(|_| EngineError::NoMemory)?;
        self.shape.pack(self.processor.pool(), &shape.view(block)?, &mut packed);
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots[slot] = Some(Arc::new(packed));
        Ok(())
    }

    /// To `out` (P, D); `batch` has been checked.
    pub(super) fn compute(&self, batch: &Batch, out: &mut [f32]) -> Result<(), EngineError> {
        let slots: Vec<Arc<Slab>> = {
            let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
            let slab = |slot: u32| slots[slot as usize].clone().ok_or(EngineError::EmptySlot(slot));
            batch.calls.iter().map(|call| slab(call.slot)).collect::<Result<_, _>>()?
        };
        let calls: Vec<ExpertCall<'_>> = batch
            .calls
            .iter()
            .zip(&slots)
            .map(|(call, slab)| ExpertCall { expert: slab, pairs: &call.pairs })
            .collect();
        let mut scratch = self.scratches().pop().unwrap_or_default();
        let (simd, pool) = (self.processor.simd(), self.processor.pool());
        let computed = experts(simd, pool, &self.shape, &mut scratch, &calls, &batch.rows, out);
        self.scratches().push(scratch);
        Ok(computed?)
    }

    fn scratches(&self) -> MutexGuard<'_, Vec<ExpertScratch>> {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
