//! Commands of messages of one row, recorded before the message is there: while the GPU computes the one before it. A decoded
//! token asks for one row of each layer, and what is recorded depends on little of it, its [`Form`].

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};

use super::{
    GpuEngine, Int8Rows, Slot,
    device::GpuDevice,
    layout::{Layout, TilesOf},
    message::{Parts, check_full},
    ring::{Lease, Ring},
    signal::lock,
    structs::Tile,
    upload::{N_BUFFERS, Parcel, Upload},
    variants::{Variants, Way},
};
use crate::{
    engine::{Batch, EngineError, EnginePlan, Stage, Wanted},
    simd::fill,
};

/// The most pairs of a message that is recorded ahead.
const MAX_PAIRS: usize = 16;
/// The number of tiles that are recorded is a multiple of this; those that a message lacks end at once.
const TILES: usize = 8;
/// Answers with products and without.
const WANTED: usize = 2;
/// The most forms that are kept.
const MAX_FORMS: usize = 64;

/// What the commands of a message of one row depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    /// Of all its experts.
    slab: u32,
    /// The index of their shape among the plan's.
    shape: u32,
    n_tiles: u32,
    wanted: Wanted,
}

/// The commands of messages to come, and their buffers.
#[derive(Debug)]
pub(super) struct Ahead {
    upload: Upload,
    readback: Arc<Ring>,
    /// At most one of a form; in the order of their use.
    recorded: Mutex<Vec<Recorded>>,
    max_forms: usize,
}

#[derive(Debug)]
struct Recorded {
    form: Form,
    parcel: Parcel,
    readback: Lease,
    commands: wgpu::CommandBuffer,
}

/// A message under way.
pub(super) struct Submitted {
    /// Where its results come.
    pub(super) readback: Lease,
    /// The parts of a full form.
    pub(super) parts: Parts,
    pub(super) submission: wgpu::SubmissionIndex,
}

impl Ahead {
    /// Nothing is recorded yet. `allocate` makes buffers.
    pub(super) fn new(
        device: &GpuDevice,
        plan: &EnginePlan,
        layout: &Layout,
        mut allocate: impl FnMut(&'static str, u64, wgpu::BufferUsages) -> wgpu::Buffer,
    ) -> Self {
        use wgpu::BufferUsages as Usage;

        let max_forms = (layout.n_dispatches() as usize * WANTED).min(MAX_FORMS);
        // Messages under way have theirs besides.
        let n = max_forms + N_BUFFERS;
        let most_pairs = MAX_PAIRS.min(plan.max_pairs as usize);
        let longest_row = (0..plan.shapes.iter().count() as u32).map(|shape| layout.row_bytes(shape)).max();
        let upload_bytes = layout.tables_bytes_of(most_pairs) + longest_row.unwrap_or(0);
        let wanted = Wanted { products: true, halves: false };
        let readback_bytes = Parts::of(&plan.shapes, most_pairs, wanted).n_bytes();
        let mut buffers = |label, bytes, usage| (0..n).map(|_| allocate(label, bytes, usage)).collect();
        let upload = buffers("upload of one row", upload_bytes, Usage::MAP_WRITE | Usage::COPY_SRC);
        let readback = buffers("readback of one row", readback_bytes, Usage::MAP_READ | Usage::COPY_DST);
        Self {
            upload: Upload::new(device, upload),
            readback: Ring::new(device, readback),
            recorded: Mutex::default(),
            max_forms,
        }
    }

    /// The commands of a form, if they are recorded.
    fn take(&self, form: Form) -> Option<Recorded> {
        let mut recorded = lock(&self.recorded);
        let at = recorded.iter().position(|recorded| recorded.form == form)?;
        Some(recorded.remove(at))
    }
}

impl GpuEngine {
    /// Submits a message with commands that were recorded ahead, and records those of the next one of its form; none if it is not of
    /// one row for few experts of one shape in one slab, or if buffers are short.
    ///
    /// # Errors
    /// If a slot is empty or the device fails.
    pub(super) fn submit_ahead(
        &self,
        batch: &Batch,
        wanted: Wanted,
    ) -> Result<Option<Submitted>, EngineError> {
        let (Some(ahead), Some(int8)) = (&self.ahead, &self.int8) else { return Ok(None) };
        let slots = lock(&self.slots);
        let Some(form) = self.form(batch, wanted, &slots) else { return Ok(None) };
        check_full(&slots, batch)?;
        let Some(recorded) = ahead.take(form).or_else(|| self.record_ahead(ahead, form)) else {
            return Ok(None);
        };
        let Recorded { parcel, readback, commands, .. } = recorded;
        let mut message = self.tables_of(batch, form);
        {
            let Int8Rows { simd, pool, rows } = &mut *lock(int8);
            let shape = &self.kernels[form.shape as usize].shape;
            fill(*simd, pool, rows, shape.format.gate_up, shape.hidden, &batch.rows);
            message.extend_from_slice(bytemuck::cast_slice(rows.words()));
        }
        parcel.fill(0, &message)?;
        parcel.close();
        self.device.tell(Stage::Written);
        self.device.tell(Stage::Recorded);
        let submission = self.device.queue().submit([commands]);
        drop(slots);
        self.device.tell(Stage::Submitted);
        parcel.submitted();
        self.keep_recorded(ahead, form);
        Ok(Some(Submitted { readback, parts: self.parts_of(form), submission }))
    }

    /// The form of a batch, if it has one. Its slots may be empty.
    fn form(&self, batch: &Batch, wanted: Wanted, slots: &[Slot]) -> Option<Form> {
        let n_pairs = batch.n_pairs();
        let is_one_row = batch.rows.len() == self.plan.shapes.hidden;
        if !is_one_row || n_pairs > MAX_PAIRS || batch.calls.iter().any(|call| call.pairs.len() > 1) {
            return None;
        }
        let place = |slot: u32| (self.layout.place(slot).0, slots[slot as usize].shape);
        let mut places =
            batch.calls.iter().filter(|call| !call.pairs.is_empty()).map(|call| place(call.slot));
        let (slab, shape) = places.next()?;
        let has_kernels = self.kernels[shape as usize].variants.as_ref().is_some_and(Variants::has_one);
        if !has_kernels || places.any(|other| other != (slab, shape)) {
            return None;
        }
        let n_tiles = n_pairs.next_multiple_of(TILES).min(self.plan.max_pairs as usize) as u32;
        Some(Form { slab, shape, n_tiles, wanted })
    }

    /// Records the commands of a form, if buffers are free.
    fn record_ahead(&self, ahead: &Ahead, form: Form) -> Option<Recorded> {
        let mut parcel = ahead.upload.try_parcel()?;
        let readback = ahead.readback.try_lend()?;
        let Form { slab, shape, n_tiles, .. } = form;
        let bytes = self.layout.tables_bytes_of(n_tiles as usize) + self.layout.row_bytes(shape);
        parcel.reserve(&self.message, 0, bytes);
        let dispatch = TilesOf { slab, shape, n_tiles, way: Way::One };
        let (parts, is_packed) = (self.parts_of(form), self.is_packed(form));
        let commands = self.record(&parcel, &[dispatch], readback.buffer(), parts, is_packed);
        Some(Recorded { form, parcel, readback, commands })
    }

    /// Records the commands of a form unless they are; those of the form that was not used for longest may go for it.
    fn keep_recorded(&self, ahead: &Ahead, form: Form) {
        let mut recorded = lock(&ahead.recorded);
        if recorded.iter().any(|recorded| recorded.form == form) {
            return;
        }
        if recorded.len() >= ahead.max_forms {
            recorded.remove(0);
        }
        recorded.extend(self.record_ahead(ahead, form));
    }

    /// The tables of a message of a form. Its row follows them, so that all is one copy.
    fn tables_of(&self, batch: &Batch, form: Form) -> Vec<u8> {
        let n_bytes = self.layout.tables_bytes_of(form.n_tiles as usize) as usize;
        let mut bytes = Vec::with_capacity(n_bytes + self.layout.row_bytes(form.shape) as usize);
        // Its run is the first of all tiles: zeros.
        bytes.resize(self.layout.tiles_start() as usize, 0);
        let packed = if self.is_packed(form) { self.parts_of(form).products_start() as u32 / 4 } else { 0 };
        let calls = batch.calls.iter().filter(|call| !call.pairs.is_empty());
        for (first_pair, call) in (0..).zip(calls) {
            let tile = Tile {
                block: (self.layout.place(call.slot).1 / 16) as u32,
                n_pairs: 1,
                first_pair,
                packed,
                rows: [n_bytes as u32 / 4, 0, 0, 0],
                gates: [call.pairs[0].gate, 0.0, 0.0, 0.0],
            };
            bytes.extend_from_slice(bytemuck::bytes_of(&tile));
        }
        bytes.resize(n_bytes, 0);
        bytes
    }

    /// Whether the kernels pack the results of a form: in f16, of which two are a word.
    fn is_packed(&self, form: Form) -> bool {
        let shapes = &self.plan.shapes;
        form.wanted.halves && shapes.hidden.is_multiple_of(2) && shapes.inner.is_multiple_of(2)
    }

    fn parts_of(&self, form: Form) -> Parts {
        Parts::of(&self.plan.shapes, form.n_tiles as usize, form.wanted)
    }
}
