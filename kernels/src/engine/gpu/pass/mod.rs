//! The forward pass on GPUs: activations stay there between operations, weights are copied once, and a step of up to
//! [`compile::MAX_ROWS`] rows is one submission and one mapping, and one more of each for every layer whose experts are elsewhere. A
//! pass over several GPUs has a part on each ([`layers`]), which has its own.
//!
//! Products with int8 activations have the CPU's bits, given the same rows. Norms, rotations, attention and gates are rounded in
//! another order. Only the embedding is looked up on the CPU.

mod attention;
mod away;
mod best;
mod clock;
mod compile;
mod layer;
mod layers;
mod one_row;
mod pages;
mod part;
mod places;
mod products;
mod request;
mod room;
mod row_attend;
mod row_norm;
pub(super) mod structs;
mod support;
#[cfg(test)]
mod tests;
mod tiles;
mod weights;

pub use clock::{DispatchTime, GpuClock, Stamps, StepTime};
pub use room::ResidentExperts;

use std::{any::Any, fmt, sync::MutexGuard};

use clock::Stamped;
use compile::MAX_ROWS;
use pages::{GpuPages, Pages, position_bytes};
use part::{Given, Part, State};
use support::unsupported;
use tiles::{Attends, Counts};

use super::{device::GpuDevice, signal::lock};
use crate::{
    graph::{
        DeviceError, DeviceOutput, DevicePass, ExpertsElsewhere, KvLayout, KvPool, LayerRouting, MAX_BEST,
        PackedExperts, PlanBytes, Program, Span,
    },
    simd::PAGE_POSITIONS,
};

/// A program's forward pass on GPUs.
pub struct GpuPass {
    /// In the order of their layers; at least one.
    parts: Vec<Part>,
    /// Layers of each.
    n_layers: Vec<usize>,
}

impl GpuPass {
    /// Divides the layers of `program` among `devices`, copies their weights and the `resident` experts there, and allocates all but
    /// the pages, which are to be as `layout` says. Devices that are not needed are left alone.
    ///
    /// # Errors
    /// In one sentence: if the program has an operation that no kernel is there for, an expert cannot be read, or a device has too
    /// little memory.
    ///
    /// # Panics
    /// Without a device.
    pub fn new(
        devices: &[GpuDevice],
        program: &Program,
        (experts, resident): (&dyn PackedExperts, ResidentExperts),
        layout: &KvLayout,
    ) -> Result<Self, String> {
        if let Some(reason) = unsupported(program, experts, layout) {
            return Err(format!("no kernel is there for {reason}"));
        }
        let shares = resident.shares(devices, program, experts);
        let n_layers: Vec<usize> = shares.iter().map(|share| share.n_layers).collect();
        let ops = layers::cut(program.ops(), &n_layers);
        let parts = devices.iter().zip(&shares).zip(&ops).map(|((device, share), ops)| {
            Part::new(device, (program, ops), (experts, share.n_resident), layout)
        });
        Ok(Self { parts: parts.collect::<Result<_, _>>()?, n_layers })
    }

    /// The GPUs, and how many layers each has.
    pub fn devices(&self) -> impl Iterator<Item = (&GpuDevice, usize)> {
        self.parts.iter().map(|part| &part.device).zip(self.n_layers.iter().copied())
    }

    /// GPU buffers made so far, without pages: [`Self::new`] makes them all.
    pub fn buffers_created(&self) -> u64 {
        self.parts.iter().map(|part| part.buffers_created).sum()
    }

    /// Of how many layers the experts are on GPUs.
    pub fn n_resident(&self) -> usize {
        self.parts.iter().map(|part| part.resident().count()).sum()
    }

    /// [`DevicePass::step`] of up to 512 rows, of which the logits of up to 64 are wanted, on one GPU with all experts, and how long
    /// it took there.
    ///
    /// # Errors
    /// As [`DevicePass::step`]; or if there are several GPUs, of which none has the whole step.
    pub fn timed_step(
        &self,
        (clock, stamps): (&GpuClock, Stamps),
        spans: &[Span<'_>],
        kv: &KvPool,
        out: &mut DeviceOutput,
    ) -> Result<StepTime, DeviceError> {
        let [part] = &self.parts[..] else {
            return Err(DeviceError::Failed("a step is timed on one GPU".to_owned()));
        };
        let mut nowhere = |_: &LayerRouting, _: &[f32], _: &mut [f32]| Err(DeviceError::Experts);
        let counts = self.run(spans, kv, &mut nowhere, (out, Some(Stamped { clock, stamps })))?;
        let n_steps = if counts.wanted == 0 { part.steps_before_wanted } else { part.steps.len() };
        let n_positions = spans.iter().map(|span| span.start + span.ids.len()).sum();
        let time = clock.step_time(stamps, &part.steps[..n_steps], &counts, n_positions);
        time.map_err(|error| DeviceError::Failed(error.to_string()))
    }

    /// Whether a row of little context has kernels of its own.
    fn has_shallow_rows(&self) -> bool {
        self.parts.iter().any(|part| part.attention.shallow_pages > 0)
    }

    /// [`DevicePass::step`], with a clock that takes times, if there is one; returns the counts of the last rows. Rows go through the
    /// parts 512 at a time; while a part computes some, the part before computes those that follow.
    fn run(
        &self,
        spans: &[Span<'_>],
        kv: &KvPool,
        elsewhere: &mut ExpertsElsewhere<'_>,
        (out, clock): (&mut DeviceOutput, Option<Stamped<'_>>),
    ) -> Result<Counts, DeviceError> {
        for part in &self.parts {
            part.device.health().check().map_err(|error| DeviceError::Failed(error.to_string()))?;
        }
        let pages = kv.device().and_then(|pages| (pages as &dyn Any).downcast_ref::<Pages>());
        let Pages(pages) = pages.expect("a step's pages are those of these devices");
        self.clear(out);
        let n_best = out.n_best.min(MAX_BEST);
        let n_rows: usize = spans.iter().map(|span| span.ids.len()).sum();
        let mut states: Vec<MutexGuard<'_, State>> =
            self.parts.iter().map(|part| lock(&part.state)).collect();
        // Where the rows begin that each part has not begun; none if it has none to begin.
        let mut waiting = vec![None; self.parts.len()];
        waiting[0] = Some(0).filter(|_| n_rows > 0);
        let mut last = Counts::default();
        while waiting.iter().any(Option::is_some) {
            let mut begun = Vec::with_capacity(self.parts.len());
            // Backwards: a part's rows have left it before others come.
            for (index, part) in self.parts.iter().enumerate().rev() {
                let Some(first) = waiting[index].take() else { continue };
                let at = (&mut *states[index], &pages[index]);
                let wanted = (n_best, out.draws.as_slice());
                begun.push((index, first, part.begin(at, (spans, first), wanted, clock)?));
            }
            for (index, first, rows) in begun {
                last = rows.counts;
                let end = first + last.rows as usize;
                if index == 0 {
                    waiting[0] = Some(end).filter(|end| *end < n_rows);
                }
                let (before, behind) = states.split_at_mut(index + 1);
                let mut nothing = Vec::new();
                let to = behind.first_mut().map_or(&mut nothing, |state| &mut state.rows);
                let first_router = self.parts[..index].iter().map(|part| part.resident().count()).sum();
                let given = Given { out: &mut *out, first_router, rows: to };
                let at = (&mut *before[index], &pages[index]);
                self.parts[index].finish(at, rows, elsewhere, (given, clock))?;
                if let Some(behind) = waiting.get_mut(index + 1) {
                    *behind = Some(first);
                }
            }
        }
        Ok(last)
    }

    /// Empties what a step appends to.
    fn clear(&self, out: &mut DeviceOutput) {
        out.logits.clear();
        out.best.clear();
        out.drawn.clear();
        out.routing.resize_with(self.n_resident(), LayerRouting::default);
        for (router, of_layer) in self.parts.iter().flat_map(Part::resident).zip(&mut out.routing) {
            (of_layer.layer, of_layer.n_chosen) = (router.layer, router.n_chosen);
            of_layer.experts.clear();
            of_layer.gates.clear();
        }
    }
}

impl DevicePass for GpuPass {
    fn kv_pool(&self, layout: KvLayout, budget_bytes: usize, n_sequences: usize) -> KvPool {
        let page_bytes =
            (PAGE_POSITIONS * position_bytes(&layout, layout.n_kv_heads, layout.head_width)) as u64;
        let pool = KvPool::new(layout, budget_bytes, n_sequences);
        let mut n_pages = pool.max_pages();
        for part in &self.parts {
            // What is recorded keeps the pages of another pool in memory.
            lock(&part.state).recorded = None;
            let most = part.device.wgpu().limits().max_storage_buffer_binding_size / page_bytes.max(1);
            n_pages = n_pages.min(most as usize).max(1);
        }
        loop {
            let pages = self.parts.iter().map(|part| {
                let pages = GpuPages::new(&part.device, &part.steps, page_bytes, n_pages);
                pages.ok_or(&part.device)
            });
            match pages.collect::<Result<Vec<_>, _>>() {
                Ok(pages) => return pool.on_device(Pages::new(pages), n_pages),
                // Without memory for one page every step fails, and says why.
                Err(device) if n_pages == 1 => {
                    let reason = "it has no memory for keys and values".to_owned();
                    device.health().fail(super::EngineError::Device(reason));
                    return pool;
                }
                Err(_) => n_pages /= 2,
            }
        }
    }

    fn step(
        &self,
        spans: &[Span<'_>],
        kv: &KvPool,
        elsewhere: &mut ExpertsElsewhere<'_>,
        out: &mut DeviceOutput,
    ) -> Result<(), DeviceError> {
        self.run(spans, kv, elsewhere, (out, None)).map(|_| ())
    }

    fn rows_at_once(&self) -> usize {
        self.parts.len() * MAX_ROWS
    }

    fn n_dispatches(&self) -> usize {
        let counts = Counts {
            rows: 1,
            wanted: 1,
            splits: 1,
            attends: if self.has_shallow_rows() { Attends::ShallowRow } else { Attends::default() },
            attention_tiles: 1,
            best: 0,
            draws: false,
        };
        let steps = self.parts.iter().flat_map(|part| &part.steps);
        steps.filter(|step| step.workgroups(&counts).is_some()).count()
    }

    fn weight_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.weight_bytes).sum()
    }

    fn plan_bytes(&self) -> PlanBytes {
        let bytes = self.parts.iter().map(|part| part.plan_bytes);
        bytes.fold(PlanBytes { planned: 0, naive: 0 }, |all, part| PlanBytes {
            planned: all.planned + part.planned,
            naive: all.naive + part.naive,
        })
    }
}

impl fmt::Debug for GpuPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuPass").field("n_layers", &self.n_layers).finish_non_exhaustive()
    }
}
