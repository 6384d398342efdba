//! Layers whose experts a GPU does not hold. The pass pauses behind their routers: the rows and what was chosen for them come to
//! the CPU, whoever has the experts computes them, and their gated sum goes back.
//!
//! ```text
//! ... norm, router | rows, experts, gates --> CPU, workers --> sum | x + sum, norm ...
//! ```

use super::{
    compile::{Builder, MAX_ROWS, View},
    part::Part,
    tiles::Counts,
};
use crate::graph::{DeviceError, ExpertsElsewhere, LayerRouting, TensorId};

/// Where a pass waits for experts that are computed elsewhere.
#[derive(Debug)]
pub(super) struct Pause {
    /// How many steps come before.
    pub(super) step: usize,
    /// The router's number.
    router: usize,
    /// (T, stride), of which the first D of each row count.
    rows: wgpu::Buffer,
    /// Floats from one row to the next.
    stride: usize,
    /// D.
    hidden: usize,
    /// (T, D).
    sum: wgpu::Buffer,
}

/// What is asked of whoever computes experts elsewhere; reused.
#[derive(Debug, Default)]
pub(super) struct Asked {
    routing: LayerRouting,
    /// (T, D).
    rows: Vec<f32>,
    /// (T, D).
    sum: Vec<f32>,
}

impl Builder<'_> {
    /// Pauses for the experts of the last router, which `x` goes to and whose gated sum `out` is.
    pub(super) fn pause(&mut self, x: TensorId, out: TensorId) {
        let View::Rows { place, start: 0, stride } = self.views[&x] else {
            unreachable!("what experts read lies in rows by itself");
        };
        let hidden = self.program.graph.width(x);
        let sum = self.places.take(4 * MAX_ROWS * hidden);
        self.views.insert(out, View::Rows { place: sum, start: 0, stride: hidden });
        self.pauses.push(Pause {
            step: self.steps.len(),
            router: self.routers.len() - 1,
            rows: self.places.get(place),
            stride,
            hidden,
            sum: self.places.get(sum),
        });
    }

    /// The most bytes that a pause brings to the CPU.
    pub(super) fn most_paused_bytes(&self) -> u64 {
        let bytes = |pause: &Pause| MAX_ROWS * (4 * pause.stride + 8 * self.routers[pause.router].n_chosen);
        self.pauses.iter().map(bytes).max().unwrap_or(0) as u64
    }
}

impl Pause {
    /// Bytes that come to the CPU for so many rows: the rows, and what was chosen for them.
    fn bytes(&self, n_rows: usize, n_chosen: usize) -> [u64; 2] {
        [4 * n_rows * self.stride, 8 * n_rows * n_chosen].map(|bytes| bytes as u64)
    }
}

impl Part {
    /// Rows of the layer of a pause.
    fn paused_rows(&self, pause: &Pause, counts: &Counts) -> usize {
        counts.of(self.routers[pause.router].rows) as usize
    }

    /// Records that the rows of a pause and their routing are copied to where the CPU reads.
    pub(super) fn record_pause(&self, encoder: &mut wgpu::CommandEncoder, pause: &Pause, counts: &Counts) {
        let [rows, routing] =
            pause.bytes(self.paused_rows(pause, counts), self.routers[pause.router].n_chosen);
        let chosen = self.routing_start(pause.router, counts);
        encoder.copy_buffer_to_buffer(&pause.rows, 0, &self.readback, 0, rows);
        encoder.copy_buffer_to_buffer(&self.routing, chosen, &self.readback, rows, routing);
    }

    /// Waits for the rows of a pause, has their experts computed, and sends the sum to the GPU.
    pub(super) fn ask(
        &self,
        (pause, submission): (&Pause, wgpu::SubmissionIndex),
        counts: &Counts,
        asked: &mut Asked,
        elsewhere: &mut ExpertsElsewhere<'_>,
    ) -> Result<(), DeviceError> {
        let Asked { routing, rows, sum } = asked;
        let router = self.routers[pause.router];
        let n_rows = self.paused_rows(pause, counts);
        let [row_bytes, routing_bytes] = pause.bytes(n_rows, router.n_chosen);
        (routing.layer, routing.n_chosen) = (router.layer, router.n_chosen);
        routing.experts.clear();
        routing.gates.clear();
        rows.clear();
        self.read(submission, row_bytes + routing_bytes, |bytes| {
            let (values, words) = bytes.split_at(row_bytes as usize);
            for row in values.as_chunks().0.chunks_exact(pause.stride) {
                rows.extend(row[..pause.hidden].iter().map(|word| f32::from_le_bytes(*word)));
            }
            routing.extend_from_words(words.as_chunks().0);
        })?;
        sum.clear();
        sum.resize(n_rows * pause.hidden, 0.0);
        elsewhere(routing, rows, sum)?;
        self.device.queue().write_buffer(&pause.sum, 0, bytemuck::cast_slice(sum));
        Ok(())
    }
}

impl LayerRouting {
    /// Appends rows (T, 2, K) of a router's kernel: experts, the largest gate first, and gates.
    pub(super) fn extend_from_words(&mut self, words: &[[u8; 4]]) {
        for row in words.chunks_exact(2 * self.n_chosen) {
            let (experts, gates) = row.split_at(self.n_chosen);
            self.experts.extend(experts.iter().map(|word| u32::from_le_bytes(*word) as u16));
            self.gates.extend(gates.iter().map(|word| f32::from_le_bytes(*word)));
        }
    }
}
