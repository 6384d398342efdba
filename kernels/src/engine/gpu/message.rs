//! One message: what its kernels read, its commands, and its results.

#[cfg(not(target_arch = "wasm32"))]
use super::variants::Wide;
use super::{GpuEngine, Int8Rows, Kernels, layout::Tables, signal::lock, upload::Parcel};
#[cfg(target_arch = "wasm32")]
use super::{layout::TilesOf, pipeline::Pipeline};
use crate::{
    engine::{Batch, EngineError, Stage},
    simd::fill,
};

impl GpuEngine {
    /// Runs a batch; returns y (P, D), followed by `products_bytes` bytes of the products.
    pub(super) async fn run(&self, batch: &Batch, products_bytes: u64) -> Result<Vec<f32>, EngineError> {
        batch.check(&self.plan)?;
        let y_bytes = self.layout.y_bytes(batch.n_pairs());
        if y_bytes == 0 {
            return Ok(Vec::new());
        }
        let mut parcel = self.upload.parcel().await?;
        let readback = self.readback.lend().await?;
        let submission = {
            let slots = lock(&self.slots);
            if let Some(call) = batch.calls.iter().find(|call| !slots[call.slot as usize].full) {
                return Err(EngineError::EmptySlot(call.slot));
            }
            let tables = self.layout.tables(batch, |slot| slots[slot as usize].shape);
            #[cfg(not(target_arch = "wasm32"))]
            let tables = self.with_wide(&mut parcel, tables)?;
            parcel.put(&self.device, &self.tables, 0, &tables.bytes)?;
            self.put_rows(&mut parcel, batch, &tables)?;
            self.device.tell(Stage::Written);
            let commands = self.record(&parcel, &tables, readback.buffer(), [y_bytes, products_bytes]);
            self.device.tell(Stage::Recorded);
            let submission = self.device.queue().submit([commands]);
            self.device.tell(Stage::Submitted);
            submission
        };
        parcel.submitted();
        // This watches the submission for the parcel too.
        readback.read(&self.device, y_bytes + products_bytes, submission).await
    }

    /// Adds the batch's rows in the form that its shapes need.
    fn put_rows(&self, parcel: &mut Parcel, batch: &Batch, tables: &Tables) -> Result<(), EngineError> {
        let Some(int8) = &self.int8 else {
            let padded = self.layout.padded_rows(&batch.rows);
            let rows = padded.as_deref().unwrap_or(&batch.rows);
            return parcel.put(&self.device, &self.rows, 0, bytemuck::cast_slice(rows));
        };
        let Int8Rows { simd, pool, rows } = &mut *lock(int8);
        for (place, Kernels { shape, .. }) in (0..).zip(&self.kernels) {
            if !tables.dispatches.iter().any(|tiles| tiles.shape == place) {
                continue;
            }
            fill(*simd, pool, rows, shape.format.gate_up, shape.hidden, &batch.rows);
            let start = 4 * self.layout.rows_start(place);
            parcel.put(&self.device, &self.rows, start, bytemuck::cast_slice(rows.words()))?;
        }
        Ok(())
    }

    /// Chooses the way of each dispatch, and adds what wide tiles need.
    #[cfg(not(target_arch = "wasm32"))]
    fn with_wide(&self, parcel: &mut Parcel, mut tables: Tables) -> Result<Tables, EngineError> {
        let has_variants = |shape: u32| self.kernels[shape as usize].variants.is_some();
        let wide = Wide::of(&self.layout, &mut tables, has_variants);
        if !wide.pairs.is_empty() {
            let (tiles, pairs) = (bytemuck::cast_slice(&wide.tiles), bytemuck::cast_slice(&wide.pairs));
            parcel.put(&self.device, &self.tables, self.layout.wide_tiles_start(), tiles)?;
            parcel.put(&self.device, &self.tables, self.layout.pairs_start(), pairs)?;
        }
        Ok(tables)
    }

    /// Records the copies to the device, all kernels over the tiles of each slab, and the copy of the results to `readback`.
    fn record(
        &self,
        parcel: &Parcel,
        tables: &Tables,
        readback: &wgpu::Buffer,
        [y_bytes, products_bytes]: [u64; 2],
    ) -> wgpu::CommandBuffer {
        let mut encoder = self.device.wgpu().create_command_encoder(&Default::default());
        parcel.record(&mut encoder);
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for step in 0..self.kernels[0].steps.len() {
            for dispatch in &tables.dispatches {
                let kernels = &self.kernels[dispatch.shape as usize];
                let Some((pipeline, workgroups, n_tiles)) = kernels.launch(step, dispatch) else { continue };
                pass.set_pipeline(pipeline.pipeline());
                pass.set_bind_group(0, pipeline.bind_group(dispatch.slab), &[]);
                pass.dispatch_workgroups(workgroups, n_tiles, 1);
            }
        }
        drop(pass);
        encoder.copy_buffer_to_buffer(&self.y, 0, readback, 0, y_bytes);
        if products_bytes > 0 {
            let from = 4 * self.layout.products_start();
            encoder.copy_buffer_to_buffer(&self.h, from, readback, y_bytes, products_bytes);
        }
        encoder.finish()
    }
}

#[cfg(target_arch = "wasm32")]
impl Kernels {
    /// A step's kernel for a dispatch, with its workgroups in x and in y.
    fn launch(&self, step: usize, dispatch: &TilesOf) -> Option<(&Pipeline, u32, u32)> {
        let (pipeline, workgroups) = &self.steps[step];
        Some((pipeline, *workgroups, dispatch.n_tiles))
    }
}
