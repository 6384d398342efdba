//! How long a token takes with a part of the experts on a GPU, and on the processor alone: a GPU that has few of them may wait for
//! the processor more than it saves.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use moex_kernels::graph::{DeviceError, DeviceOutput, DevicePass, KvPool, LayerRouting};
use moex_model::{
    Experts, ExpertsError, KvTable, LayerRequest, Model, Span, Ticket, WantedLogits,
    local_experts::LocalExperts,
};

/// Steps of each, of which the shortest counts.
const N_STEPS: usize = 5;

/// The time of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepTimes {
    pub(super) gpu: Duration,
    pub(super) cpu: Duration,
}

/// Measures both. The processor's is estimated from its time without experts and from what those of `n_away` layers take, since
/// those of the others are not in its memory.
///
/// # Errors
/// If a step fails.
pub(super) fn measure(
    model: &Model,
    experts: &mut LocalExperts,
    pass: &dyn DevicePass,
    (n_away, n_sparse): (usize, usize),
) -> anyhow::Result<StepTimes> {
    let mut of_experts = Duration::MAX;
    let mut kv = pass.kv_pool(model.kv_layout(), 0, 1);
    let mut out = DeviceOutput::default();
    let gpu = shortest(&mut kv, |spans, kv| {
        let mut took = Duration::ZERO;
        let mut elsewhere = |chosen: &LayerRouting, rows: &[f32], sum: &mut [f32]| {
            let begun = Instant::now();
            let computed = super::self_test::compute(experts, chosen, rows, sum);
            took += begun.elapsed();
            computed
        };
        pass.step(spans, kv, &mut elsewhere, &mut out).map_err(|error: DeviceError| anyhow!(error))?;
        of_experts = of_experts.min(took);
        Ok(())
    })?;
    let mut kv = model.kv_pool(0, 1);
    let dense = shortest(&mut kv, |spans, kv| Ok(model.forward(spans, kv, &mut Zeros).map(drop)?))?;
    Ok(StepTimes { gpu, cpu: dense + of_experts.mul_f64(n_sparse as f64 / n_away.max(1) as f64) })
}

/// The shortest of some steps of one row.
fn shortest(
    kv: &mut KvPool,
    mut step: impl FnMut(&[Span<'_>], &mut KvPool) -> anyhow::Result<()>,
) -> anyhow::Result<Duration> {
    let mut table = KvTable::default();
    kv.reserve(&mut table, 1).then_some(()).context("there is no memory for a page")?;
    let mut best = Duration::MAX;
    for _ in 0..N_STEPS {
        let begun = Instant::now();
        step(&[Span { ids: &[0], start: 0, table: &table, wanted: WantedLogits::Last }], kv)?;
        best = best.min(begun.elapsed());
    }
    Ok(best)
}

/// Experts that cost nothing.
struct Zeros;

impl Experts for Zeros {
    fn begin(&mut self, _: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        sum.fill(0.0);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moex_kernels::{
        engine::{GpuDevice, GpuPass, GpuSelect, ResidentExperts},
        simd::{KvFormat, Processor, Simd},
    };
    use moex_model::{Checkpoint, Compute, Fast, FloatWeights, Keep, local_experts::ExpertPanels};
    use moex_protocol::Dtype;

    use super::*;

    #[tokio::test]
    async fn a_gpu_made_of_software_takes_longer_than_the_cpu() {
        let gpu = match GpuDevice::open(GpuSelect::Software).await {
            Ok(gpu) => gpu,
            Err(error) => {
                let required = std::env::var("MOEX_REQUIRE_GPU").is_ok_and(|value| value == "1");
                assert!(!required, "MOEX_REQUIRE_GPU=1, but {error}");
                return eprintln!("SKIPPED, nothing was tested: {error}");
            }
        };
        let processor = Arc::new(Processor::new(Simd::detect(), 1));
        let fast = Fast { processor: processor.clone(), weights: FloatWeights::Native, kv: KvFormat::F16 };
        let model = Model::load_for(&Checkpoint::demo().unwrap(), &Compute::Fast(fast)).unwrap();
        let model = Arc::new(model);
        let panels = Arc::new(ExpertPanels::new(model.clone(), processor, Keep::All).unwrap());
        for n in [0, 2] {
            let resident = ResidentExperts::first(n);
            let gpus = std::slice::from_ref(&gpu);
            let pass = GpuPass::new(gpus, model.program(), (&*panels, resident), &model.kv_layout()).unwrap();
            let mut experts = LocalExperts::from_panels(panels.clone(), Dtype::F16);
            let times = measure(&model, &mut experts, &pass, (4 - n, 4)).unwrap();
            assert!(times.gpu > times.cpu && times.cpu > Duration::ZERO, "{n} layers: {times:?}");
        }
    }
}
