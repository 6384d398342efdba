//! Chooses the device of the forward pass: this machine's GPU, with all experts on it, or its processor.
//!
//! `auto` takes a GPU of its own memory (a discrete one): such a GPU reads weights several times as fast as any processor, while
//! one that shares the processor's memory, or is made of software, reads them no faster. It leaves the processor what no kernel is
//! there for, f32 activations, keys and values in other formats than f16, models beyond the GPU's memory, and hubs whose workers compute experts.

#[cfg(feature = "gpu")]
mod self_test;

use std::{io, sync::Arc};

use moex_model::{Compute, Keep, Model, local_experts::ExpertPanels};
use moex_worker::device::DeviceChoice;

/// Experts in panels, and the sentence that says where the forward pass runs and why.
pub(crate) struct Placed {
    pub(crate) panels: Arc<ExpertPanels>,
    pub(crate) is_gpu: bool,
    pub(crate) why: String,
}

/// Runs `model` where `choice` says. `panels` packs its experts; those that are on a GPU are not kept in memory.
///
/// # Errors
/// If experts cannot be packed, or `choice` is a GPU and there is none, or it cannot run the model.
pub(crate) fn place(
    model: &Arc<Model>,
    choice: DeviceChoice,
    keep: Keep,
    panels: impl Fn(Keep) -> io::Result<ExpertPanels>,
) -> anyhow::Result<Placed> {
    if choice == DeviceChoice::Cpu {
        return Ok(Placed {
            panels: Arc::new(panels(keep)?),
            is_gpu: false,
            why: "The forward pass runs on the CPU.".into(),
        });
    }
    match on_gpu(model, choice, &panels) {
        Ok(placed) => Ok(placed),
        Err(reason) if choice == DeviceChoice::Gpu => {
            Err(reason.context("the forward pass cannot run on a GPU"))
        }
        Err(reason) => {
            let why = format!("The forward pass runs on the CPU: {reason:#}.");
            Ok(Placed { panels: Arc::new(panels(keep)?), is_gpu: false, why })
        }
    }
}

/// Refuses what no GPU does, whatever GPU there is.
///
/// # Errors
/// If a GPU is asked for with f32 activations or with workers; with the flag to leave out.
pub(crate) fn refusal(compute: &Compute, choice: DeviceChoice, has_workers: bool) -> anyhow::Result<()> {
    if choice == DeviceChoice::Gpu && matches!(compute, Compute::Exact) {
        anyhow::bail!("a GPU computes with int8 activations: leave out --activations f32");
    }
    if choice == DeviceChoice::Gpu && has_workers {
        anyhow::bail!(
            "on a GPU the hub computes all experts itself: leave out --workers and --no-hub-compute"
        );
    }
    Ok(())
}

#[cfg(feature = "gpu")]
fn on_gpu(
    model: &Arc<Model>,
    choice: DeviceChoice,
    panels: &dyn Fn(Keep) -> io::Result<ExpertPanels>,
) -> anyhow::Result<Placed> {
    use anyhow::{Context, anyhow, ensure};
    use moex_kernels::{
        engine::{GpuDevice, GpuPass, GpuSelect},
        graph::DevicePass,
        simd::KvFormat,
    };

    if let Compute::Fast(fast) = model.compute() {
        ensure!(fast.kv == KvFormat::F16, "a GPU keeps keys and values in f16");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let open = |select| runtime.block_on(GpuDevice::open(select));
    let gpu = match open(GpuSelect::Auto) {
        Err(_) if choice == DeviceChoice::Gpu => open(GpuSelect::Software)?,
        opened => opened?,
    };
    let info = gpu.info();
    ensure!(
        choice == DeviceChoice::Gpu || info.discrete,
        "{} shares its memory with the CPU (`--device gpu` takes it)",
        info.adapter
    );
    let panels = Arc::new(panels(Keep::None)?);
    let pass =
        GpuPass::new(&gpu, model.program(), &*panels, model.spec().max_positions).map_err(|e| anyhow!(e))?;
    self_test::compare(model, &panels, &pass).with_context(|| info.adapter.clone())?;
    let why = format!(
        "The forward pass runs on the GPU {} ({}), experts included, so no worker is asked: {}, and its {:.0} MiB of \
         weights fit.",
        info.adapter,
        info.backend,
        match choice {
            DeviceChoice::Gpu => "it was asked for",
            _ => "it has memory of its own",
        },
        pass.weight_bytes() as f64 / 1_048_576.0,
    );
    model.run_on(Box::new(pass));
    Ok(Placed { panels, is_gpu: true, why })
}

#[cfg(not(feature = "gpu"))]
fn on_gpu(
    _: &Arc<Model>,
    _: DeviceChoice,
    _: &dyn Fn(Keep) -> io::Result<ExpertPanels>,
) -> anyhow::Result<Placed> {
    anyhow::bail!("this program was built without the feature `gpu`")
}
