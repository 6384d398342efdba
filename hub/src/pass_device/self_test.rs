//! Compares a forward pass on a GPU with the same one on the processor before it is used: drivers have been seen to return wrong
//! results without an error. Steps of one, of few and of many rows are compared with each other as well: they have kernels of their
//! own, whose bits are the same unless a driver's compiler reorders sums.

use std::{ops::Range, slice::from_ref, sync::Arc};

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
/// Rows of the prompt: many, less than a page.
const N_PROMPT: usize = 20;
/// Of them, those that the CPU computes as well: each reads experts from a disk that are not kept in memory.
const N_COMPARED: usize = 10;
/// The last rows, which are computed once more, with the token after the prompt: few.
const N_AGAIN: usize = 5;

/// Runs a prompt on both, and on the device a token after it. Returns whether a row has the same bits in steps of any length.
///
/// # Errors
/// If either fails, or the logits differ by more than rounding does.
pub(super) fn compare(
    model: &Model,
    panels: &Arc<ExpertPanels>,
    pass: &dyn DevicePass,
) -> anyhow::Result<bool> {
    let (ids, vocabulary) = (ids(model), model.spec().vocab);
    let mut experts = LocalExperts::from_panels(panels.clone(), Dtype::F16);
    let by_cpu = |spans: &[Span<'_>], kv: &mut KvPool| Ok(model.forward(spans, kv, &mut experts)?);
    let expected = logits(&ids, &mut model.kv_pool(0, 1), from_ref(&(0..N_COMPARED)), by_cpu)?;
    let mut elsewhere =
        |chosen: &LayerRouting, rows: &[f32], sum: &mut [f32]| compute(&mut experts, chosen, rows, sum);
    let by_device = |spans: &[Span<'_>], kv: &mut KvPool| {
        let mut out = DeviceOutput::default();
        pass.step(spans, kv, &mut elsewhere, &mut out).map_err(|error| anyhow!(error))?;
        Ok(out.logits)
    };
    let steps = [0..N_PROMPT, N_PROMPT..ids.len(), ids.len() - N_AGAIN..ids.len()];
    let actual = logits(&ids, &mut pass.kv_pool(model.kv_layout(), 0, 1), &steps, by_device)?;
    let (before, again) = actual.split_at(ids.len() * vocabulary);
    let error = nmse(&before[..expected.len()], &expected);
    ensure!(error <= MAX_NMSE, "its logits differ from the CPU's (NMSE {error:.1e})");
    let before = &before[before.len() - again.len()..];
    let error = nmse(again, before);
    ensure!(error <= MAX_NMSE, "its logits of few rows differ from those of many (NMSE {error:.1e})");
    Ok(before.iter().zip(again).all(|(before, again)| before.to_bits() == again.to_bits()))
}

/// A prompt and a token after it.
fn ids(model: &Model) -> Vec<u32> {
    let vocabulary = model.spec().vocab;
    (0..=N_PROMPT).map(|n| (n * vocabulary / (N_PROMPT + 1)) as u32).collect()
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

/// The logits (rows, V) of `ids` in these steps.
fn logits(
    ids: &[u32],
    kv: &mut KvPool,
    steps: &[Range<usize>],
    mut step: impl FnMut(&[Span<'_>], &mut KvPool) -> anyhow::Result<Vec<f32>>,
) -> anyhow::Result<Vec<f32>> {
    let mut table = KvTable::default();
    kv.reserve(&mut table, ids.len()).then_some(()).context("there is no memory for a page")?;
    let mut all = Vec::new();
    for rows in steps {
        let ids = &ids[rows.clone()];
        all.extend(step(&[Span { ids, start: rows.start, table: &table, wanted: WantedLogits::All }], kv)?);
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

    /// A device that gives these logits of rows by their positions, in steps of one row with another last bit if so wished.
    #[derive(Debug)]
    struct Given {
        logits: Vec<f32>,
        vocabulary: usize,
        differs_alone: bool,
    }

    impl DevicePass for Given {
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
            let [span] = spans else { unreachable!("one sequence is tested") };
            let rows = span.start * self.vocabulary..(span.start + span.ids.len()) * self.vocabulary;
            let flipped = u32::from(self.differs_alone && span.ids.len() == 1);
            let logit = |logit: &f32| f32::from_bits(logit.to_bits() ^ flipped);
            out.logits = self.logits[rows].iter().map(logit).collect();
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

    fn demo() -> (Arc<Model>, Arc<ExpertPanels>) {
        let processor = Arc::new(Processor::new(Simd::detect(), 1));
        let fast = Fast { processor: processor.clone(), weights: FloatWeights::Native, kv: KvFormat::F16 };
        let model = Model::load_for(&Checkpoint::demo().unwrap(), &Compute::Fast(fast)).unwrap();
        let model = Arc::new(model);
        let panels = Arc::new(ExpertPanels::new(model.clone(), processor, Keep::None).unwrap());
        (model, panels)
    }

    #[test]
    fn a_device_that_returns_zeros_is_not_used() {
        let (model, panels) = demo();
        let vocabulary = model.spec().vocab;
        let logits = vec![0.0; (N_PROMPT + 1) * vocabulary];
        let silent = Given { logits, vocabulary, differs_alone: false };
        let said = compare(&model, &panels, &silent).unwrap_err().to_string();
        assert!(said.contains("differ from the CPU's (NMSE 1"), "{said}");
    }

    #[test]
    fn a_device_whose_rows_depend_on_others_is_known() {
        let (model, panels) = demo();
        let vocabulary = model.spec().vocab;
        let mut experts = LocalExperts::from_panels(panels.clone(), Dtype::F16);
        let by_cpu = |spans: &[Span<'_>], kv: &mut KvPool| Ok(model.forward(spans, kv, &mut experts)?);
        let expected =
            logits(&ids(&model), &mut model.kv_pool(0, 1), from_ref(&(0..N_PROMPT + 1)), by_cpu).unwrap();
        for differs_alone in [false, true] {
            let device = Given { logits: expected.clone(), vocabulary, differs_alone };
            assert_eq!(compare(&model, &panels, &device).unwrap(), !differs_alone);
        }
    }
}
