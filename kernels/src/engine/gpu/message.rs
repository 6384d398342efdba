//! One message: what its kernels read, its commands, and its results.

#[cfg(target_arch = "wasm32")]
use super::pipeline::Pipeline;
use super::{
    GpuEngine, Int8Rows, Kernels, Slot,
    layout::{MAP_ALIGN, Tables, TilesOf},
    ring::Lease,
    signal::lock,
    upload::Parcel,
};
#[cfg(not(target_arch = "wasm32"))]
use super::{ahead::Submitted, variants::Wide};
use crate::{
    ExpertShapes,
    engine::{Batch, Computed, EngineError, Halves, Output, Stage, Wanted},
    simd::fill,
};

/// The parts of an answer that are read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// Of y (P, D), and of the products (P, 2F) if they are wanted.
    values: [u64; 2],
    /// Whether they are f16.
    are_halves: bool,
}

impl Parts {
    /// Those of `n_pairs` pairs of experts of these shapes.
    pub(super) fn of(shapes: &ExpertShapes, n_pairs: usize, wanted: Wanted) -> Self {
        let n_products = if wanted.products { 2 * shapes.inner } else { 0 };
        let values = [shapes.hidden, n_products].map(|n| (n_pairs * n) as u64);
        Self { values, are_halves: wanted.halves }
    }

    /// Bytes of each, as a buffer's copy counts them.
    fn bytes(self) -> [u64; 2] {
        self.values.map(|n| if self.are_halves { (2 * n).next_multiple_of(4) } else { 4 * n })
    }

    /// Where the products start in what is read: a multiple of 8, as a mapping's parts do.
    pub(super) fn products_start(self) -> u64 {
        self.bytes()[0].next_multiple_of(MAP_ALIGN)
    }

    /// All that is read.
    pub(super) fn n_bytes(self) -> u64 {
        self.products_start() + self.bytes()[1]
    }

    /// The answer in what was read, the first of them.
    fn output(self, bytes: &[u8], first: Self) -> Output {
        let of_value = if self.are_halves { 2 } else { 4 };
        let [rows, products] = first.values.map(|n| (n * of_value) as usize);
        let rows = &bytes[..rows];
        let products = (products > 0).then(|| &bytes[self.products_start() as usize..][..products]);
        match self.are_halves {
            true => Halves { rows: rows.into(), products: products.map(<[u8]>::to_vec) }.into(),
            false => Computed {
                rows: bytemuck::pod_collect_to_vec(rows),
                products: products.map(bytemuck::pod_collect_to_vec),
            }
            .into(),
        }
    }
}

impl GpuEngine {
    /// What is wanted of a batch, for sending it: in f16 where that is enough, otherwise in f32.
    ///
    /// # Errors
    /// As [`Self::compute`].
    pub async fn answer(&self, batch: &Batch, wanted: Wanted) -> Result<Output, EngineError> {
        batch.check(&self.plan)?;
        if batch.n_pairs() == 0 {
            let products = wanted.products.then(Vec::new);
            return Ok(Computed { rows: Vec::new(), products }.into());
        }
        let parts = Parts::of(&self.plan.shapes, batch.n_pairs(), wanted);
        #[cfg(not(target_arch = "wasm32"))]
        if let Some(submitted) = self.submit_ahead(batch, wanted)? {
            let Submitted { readback, parts: all, submission } = submitted;
            return self.read(readback, submission, all, parts).await;
        }
        let mut parcel = self.upload.parcel().await?;
        let readback = self.readback.lend().await?;
        let submission = {
            let slots = lock(&self.slots);
            check_full(&slots, batch)?;
            let tables = self.layout.tables(batch, |slot| slots[slot as usize].shape);
            #[cfg(not(target_arch = "wasm32"))]
            let tables = self.with_wide(&mut parcel, tables)?;
            parcel.put(&self.device, &self.message, 0, &tables.bytes)?;
            self.put_rows(&mut parcel, batch, &tables)?;
            self.device.tell(Stage::Written);
            let commands = self.record(&parcel, &tables.dispatches, readback.buffer(), parts, false);
            parcel.close();
            self.device.tell(Stage::Recorded);
            let submission = self.device.queue().submit([commands]);
            self.device.tell(Stage::Submitted);
            submission
        };
        parcel.submitted();
        self.read(readback, submission, parts, parts).await
    }

    /// The `wanted` ones, the first, of all `parts` that a submission copies to `readback`. It watches the submission, for its
    /// parcel too.
    async fn read(
        &self,
        readback: Lease,
        submission: wgpu::SubmissionIndex,
        parts: Parts,
        wanted: Parts,
    ) -> Result<Output, EngineError> {
        let mut output = None;
        let mut take = |bytes: &[u8]| output = Some(parts.output(bytes, wanted));
        readback.read(&self.device, parts.n_bytes(), submission, &mut take).await?;
        Ok(output.expect("what was read was shown"))
    }

    /// Adds the batch's rows in the form that its shapes need.
    fn put_rows(&self, parcel: &mut Parcel, batch: &Batch, tables: &Tables) -> Result<(), EngineError> {
        let Some(int8) = &self.int8 else {
            let padded = self.layout.padded_rows(&batch.rows);
            let rows = padded.as_deref().unwrap_or(&batch.rows);
            return parcel.put(
                &self.device,
                &self.message,
                self.layout.rows_start(0),
                bytemuck::cast_slice(rows),
            );
        };
        let Int8Rows { simd, pool, rows } = &mut *lock(int8);
        for (place, Kernels { shape, .. }) in (0..).zip(&self.kernels) {
            if !tables.dispatches.iter().any(|tiles| tiles.shape == place) {
                continue;
            }
            fill(*simd, pool, rows, shape.format.gate_up, shape.hidden, &batch.rows);
            let words = bytemuck::cast_slice(rows.words());
            parcel.put(&self.device, &self.message, self.layout.rows_start(place), words)?;
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
            parcel.put(&self.device, &self.message, self.layout.wide_tiles_start(), tiles)?;
            parcel.put(&self.device, &self.message, self.layout.pairs_start(), pairs)?;
        }
        Ok(tables)
    }

    /// Records the copies to the device, all kernels over the tiles of each slab, and the copy of the results to `readback`;
    /// `is_packed` if the kernels pack these themselves.
    pub(super) fn record(
        &self,
        parcel: &Parcel,
        dispatches: &[TilesOf],
        readback: &wgpu::Buffer,
        parts: Parts,
        is_packed: bool,
    ) -> wgpu::CommandBuffer {
        let mut encoder = self.device.wgpu().create_command_encoder(&Default::default());
        parcel.record(&mut encoder);
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for step in 0..self.kernels[0].steps.len() {
            for dispatch in dispatches {
                let kernels = &self.kernels[dispatch.shape as usize];
                let Some((pipeline, workgroups, n_tiles)) = kernels.launch(step, dispatch) else { continue };
                pass.set_pipeline(pipeline.pipeline());
                pass.set_bind_group(0, pipeline.bind_group(dispatch.slab), &[]);
                pass.dispatch_workgroups(workgroups, n_tiles, 1);
            }
        }
        if parts.are_halves && !is_packed {
            self.pack.dispatch(&mut pass, parts.values);
        }
        drop(pass);
        if is_packed {
            encoder.copy_buffer_to_buffer(self.pack.buffer().0, 0, readback, 0, parts.n_bytes());
            return encoder.finish();
        }
        let (packed, packed_products) = self.pack.buffer();
        let from = match parts.are_halves {
            true => [(packed, 0), (packed, packed_products)],
            false => [(&self.y, 0), (&self.h, 4 * self.layout.products_start())],
        };
        for (((buffer, start), bytes), to) in
            from.into_iter().zip(parts.bytes()).zip([0, parts.products_start()])
        {
            if bytes > 0 {
                encoder.copy_buffer_to_buffer(buffer, start, readback, to, bytes);
            }
        }
        encoder.finish()
    }
}

/// Fails if a slot that the batch names is empty.
pub(super) fn check_full(slots: &[Slot], batch: &Batch) -> Result<(), EngineError> {
    match batch.calls.iter().find(|call| !slots[call.slot as usize].full) {
        Some(call) => Err(EngineError::EmptySlot(call.slot)),
        None => Ok(()),
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
