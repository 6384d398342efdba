//! Keys and values in a GPU's memory: a buffer for each layer that has some, and the bind groups of the kernels that read and
//! write them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::compile::{Paged, Step, bind_group};
use crate::{
    engine::gpu::{device::GpuDevice, pipeline::allocate},
    graph::{DevicePages, KvLayout},
    quant::UNIT,
    simd::KvFormat,
};

/// The pages of one pool: those of each part of a pass.
#[derive(Debug)]
pub(super) struct Pages(pub(super) Vec<GpuPages>);

/// The pages of a part's layers.
#[derive(Debug)]
pub(super) struct GpuPages {
    /// No other pages have the same number.
    pub(super) number: u64,
    device: GpuDevice,
    page_bytes: u64,
    /// One for each slot of the cache that is here.
    slots: BTreeMap<usize, wgpu::Buffer>,
    /// A page on its way from one place to another: no buffer is copied to itself.
    spare: wgpu::Buffer,
    /// For each step of the pass that reads or writes pages.
    bind_groups: Vec<Option<wgpu::BindGroup>>,
}

/// Bytes of a position's keys and values in one layer, as `shader/shared/pages.wgsl` lays them out. Scales in q8_0 come in pairs: no
/// word is of two positions.
pub(super) fn position_bytes(layout: &KvLayout, n_kv_heads: usize, head_width: usize) -> usize {
    let scale_bytes = 4 * head_width.div_ceil(2 * UNIT);
    let of_head = if is_q8_0(layout) { head_width + scale_bytes } else { 2 * head_width };
    2 * n_kv_heads * of_head
}

/// Whether keys and values are rounded to 8 bits; to f16 if not.
pub(super) fn is_q8_0(layout: &KvLayout) -> bool {
    layout.packed == Some(KvFormat::Q8_0)
}

impl GpuPages {
    /// `n_pages` pages in each slot that `steps` read or write; none if the device has no memory for them.
    pub(super) fn new(device: &GpuDevice, steps: &[Step], page_bytes: u64, n_pages: usize) -> Option<Self> {
        use wgpu::BufferUsages as Usage;

        let scope = device.wgpu().push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let mut n_buffers = 0;
        let usage = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
        let mut buffer = |n: u64| allocate(device, "pages", n * page_bytes, usage, &mut n_buffers);
        let mut slots = BTreeMap::new();
        for Paged { slot, .. } in steps.iter().filter_map(|step| step.paged.as_ref()) {
            slots.entry(*slot).or_insert_with(|| buffer(n_pages as u64));
        }
        let spare = buffer(1);
        let bind = |step: &Step| match &step.paged {
            None => None,
            Some(Paged { slot, binding, layout, entries }) => {
                let pages = (slots[slot].clone(), 0, None);
                let entries = entries.iter().map(|(index, bound)| (*index, bound));
                Some(bind_group(device, layout, entries.chain([(*binding, &pages)])))
            }
        };
        let bind_groups = steps.iter().map(bind).collect();
        let is_short = pollster(scope.pop()).is_some();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        (!is_short).then(|| Self { number, device: device.clone(), page_bytes, slots, spare, bind_groups })
    }

    /// The bind group of step `index`, which reads or writes pages.
    pub(super) fn bind_group(&self, index: usize) -> Option<&wgpu::BindGroup> {
        self.bind_groups[index].as_ref()
    }
}

impl Pages {
    pub(super) fn new(of_parts: Vec<GpuPages>) -> Arc<Self> {
        Arc::new(Self(of_parts))
    }
}

impl DevicePages for Pages {
    fn copy(&self, from: u32, to: u32) {
        self.0.iter().for_each(|pages| pages.copy(from, to));
    }
}

impl GpuPages {
    fn copy(&self, from: u32, to: u32) {
        let mut encoder = self.device.wgpu().create_command_encoder(&Default::default());
        let [from, to] = [from, to].map(|page| u64::from(page) * self.page_bytes);
        for slot in self.slots.values() {
            encoder.copy_buffer_to_buffer(slot, from, &self.spare, 0, self.page_bytes);
            encoder.copy_buffer_to_buffer(&self.spare, 0, slot, to, self.page_bytes);
        }
        self.device.queue().submit([encoder.finish()]);
    }
}

/// The output of a future that is ready: natively error scopes are.
pub(super) fn pollster<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::yield_now();
    }
}
