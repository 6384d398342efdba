//! Compares a forward pass on a GPU with the same one on the processor before it is used: drivers have been seen to return wrong
//! results without an error.

use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};
use moex_kernels::{
    graph::{DeviceError, DeviceOutput, DevicePass, KvPool, LayerRouting},
    nmse,
};
use moex_model::{
    Experts, KvTable, LayerRequest, Model, Routing, Span, WantedLogits,
    local_experts::{ExpertPanels, LocalExperts},
};
use moex_protocol::Dtype;

/// The largest error of the logits of all rows. Where rounding moves a value to another step of int8, or a router to an expert that
/// it scores nearly alike, the error is below 1e-2, with random weights too; a kernel that is wrong gives about 1.
const MAX_NMSE: f64 = 0.1;
/// Rows of the prompt: more than one tile of a product, less than a page.
const N_PROMPT: usize = 9;

/// Runs a prompt and a token after it on both.
///
/// # Errors
/// If either fails, or the logits differ by more than rounding does.
pub(super) fn compare(
    model: &Model,
    panels: &Arc<ExpertPanels>,
    pass: &dyn DevicePass,
) -> anyhow::Result<()> {
    let vocabulary = model.spec().vocab;
    let ids: Vec<u32> = (0..=N_PROMPT).map(|n| (n * vocabulary / (N_PROMPT + 1)) as u32).collect();
    let mut experts = LocalExperts::from_panels(panels.clone(), Dtype::F16);
    let mut kv = model.kv_pool(0, 1);
    let expected = logits(&ids, &mut kv, |spans, kv| Ok(model.forward(spans, kv, &mut experts)?))?;
    let mut kv = pass.kv_pool(model.kv_layout(), 0, 1);
    let mut elsewhere =
        |chosen: &LayerRouting, rows: &[f32], sum: &mut [f32]| compute(&mut experts, chosen, rows, sum);
    let actual = logits(&ids, &mut kv, |spans, kv| {
        let mut out = DeviceOutput::default();
        pass.step(spans, kv, &mut elsewhere, &mut out).map_err(|error| anyhow!(error))?;
        Ok(out.logits)
    })?;
    let error = nmse(&actual, &expected);
    ensure!(error <= MAX_NMSE, "its logits differ from the CPU's (NMSE {error:.1e})");
    Ok(())
}

/// Computes the experts of a layer that the device does not hold.
pub(super) fn compute(
    experts: &mut LocalExperts,
    chosen: &LayerRouting,
    rows: &[f32],
    sum: &mut [f32],
) -> Result<(), DeviceError> {
    let routing =
        Routing { k: chosen.n_chosen, experts: chosen.experts.clone(), gates: chosen.gates.clone() };
    let asked = LayerRequest { layer: chosen.layer, rows, routing: &routing };
    experts.apply_into(asked, sum).map_err(|error| DeviceError::Failed(error.to_string()))
}

/// The logits (rows, V) of `ids`, all but the last in one step.
fn logits(
    ids: &[u32],
    kv: &mut KvPool,
    mut step: impl FnMut(&[Span<'_>], &mut KvPool) -> anyhow::Result<Vec<f32>>,
) -> anyhow::Result<Vec<f32>> {
    let mut table = KvTable::default();
    kv.reserve(&mut table, ids.len()).then_some(()).context("there is no memory for a page")?;
    let mut all = Vec::new();
    for (start, ids) in [(0, &ids[..N_PROMPT]), (N_PROMPT, &ids[N_PROMPT..])] {
        all.extend(step(&[Span { ids, start, table: &table, wanted: WantedLogits::All }], kv)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use moex_kernels::{
        graph::{ExpertsElsewhere, KvLayout, PlanBytes},
        simd::{KvFormat, Processor, Simd},
    };
    use moex_model::{Checkpoint, Compute, Fast, FloatWeights, Keep};

    use super::*;

    /// A device whose kernels write nothing.
    #[derive(Debug)]
    struct Silent(usize);

    impl DevicePass for Silent {
        fn kv_pool(&self, layout: KvLayout, budget_bytes: usize, n_sequences: usize) -> KvPool {
            KvPool::new(layout, budget_bytes, n_sequences)
        }

        fn step(
            &self,
            spans: &[Span<'_>],
            _: &KvPool,
            _: &mut ExpertsElsewhere<'_>,
            out: &mut DeviceOutput,
        ) -> Result<(), DeviceError> {
            let n_rows: usize = spans.iter().map(|span| span.ids.len()).sum();
            out.logits = vec![0.0; n_rows * self.0];
            Ok(())
        }

        fn rows_at_once(&self) -> usize {
            1
        }

        fn n_dispatches(&self) -> usize {
            0
        }

        fn weight_bytes(&self) -> u64 {
            0
        }

        fn plan_bytes(&self) -> PlanBytes {
            PlanBytes { planned: 0, naive: 0 }
        }
    }

    #[test]
    fn a_device_that_returns_zeros_is_not_used() {
        let processor = Arc::new(Processor::new(Simd::detect(), 1));
        let fast = Fast { processor: processor.clone(), weights: FloatWeights::Native, kv: KvFormat::F16 };
        let model = Model::load_for(&Checkpoint::demo().unwrap(), &Compute::Fast(fast)).unwrap();
        let model = Arc::new(model);
        let panels = Arc::new(ExpertPanels::new(model.clone(), processor, Keep::None).unwrap());
        let said = compare(&model, &panels, &Silent(model.spec().vocab)).unwrap_err().to_string();
        assert!(said.contains("differ from the CPU's (NMSE 1"), "{said}");
    }
}
