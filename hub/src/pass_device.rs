//! Chooses the device of the forward pass: this machine's GPUs, as few as have room for all layers, with the experts of as many
//! layers as they have room for; or its processor.
//!
//! `auto` takes GPUs of their own memory (discrete ones): such a GPU reads weights several times as fast as any processor, while
//! one that shares the processor's memory, or is made of software, reads them no faster. It leaves the processor what no kernel is
//! there for, f32 activations, keys and values in f32, and hubs whose workers compute all experts. Experts that
//! the GPU has no room for are computed by workers, or by the processor.

#[cfg(feature = "gpu")]
mod gpus;
#[cfg(feature = "gpu")]
mod self_test;
#[cfg(feature = "gpu")]
mod step_times;

use std::{io, sync::Arc};

use moex_model::{Compute, Keep, Model, local_experts::ExpertPanels};
use moex_worker::device::DeviceChoice;

/// Which device is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceWish {
    /// The device.
    pub choice: DeviceChoice,
    /// Among how many GPUs the layers are divided; none for as few as have room for them.
    pub gpus: Option<usize>,
    /// Of how many layers GPUs have the experts; none for as many as fit.
    pub gpu_layers: Option<usize>,
}

impl DeviceWish {
    /// Nothing in particular.
    #[cfg(feature = "gpu")]
    const AUTO: Self = Self { choice: DeviceChoice::Auto, gpus: None, gpu_layers: None };
    /// The processor.
    pub const CPU: Self = Self { choice: DeviceChoice::Cpu, gpus: None, gpu_layers: None };

    /// The processor where workers are wanted, unless more was said than `auto`.
    pub(crate) fn unless(self, wants_workers: bool) -> Self {
        let is_plain = self.choice == DeviceChoice::Auto && self.gpus.is_none() && self.gpu_layers.is_none();
        if wants_workers && is_plain { Self::CPU } else { self }
    }
}

/// Experts in panels, and where the forward pass runs.
pub(crate) struct Placed {
    pub(crate) panels: Arc<ExpertPanels>,
    /// The experts of this layer and of those after it are on no GPU.
    pub(crate) first_away: usize,
    /// The sentence that says where, and why.
    pub(crate) why: String,
}

/// Runs `model` where `wish` says. `panels` packs its experts; those that are on a GPU are not kept in memory.
///
/// # Errors
/// If experts cannot be packed, or a GPU is wished for and there is none, or it cannot run the model.
pub(crate) fn place(
    model: &Arc<Model>,
    wish: DeviceWish,
    keep: Keep,
    panels: impl Fn(Keep) -> io::Result<ExpertPanels>,
) -> anyhow::Result<Placed> {
    let on_cpu = |why| Ok(Placed { panels: Arc::new(panels(keep)?), first_away: 0, why });
    if wish.choice == DeviceChoice::Cpu {
        return on_cpu("The forward pass runs on the CPU.".into());
    }
    match on_gpu(model, wish, keep, &panels) {
        Ok(placed) => Ok(placed),
        Err(reason) if wish.choice == DeviceChoice::Gpu => {
            Err(reason.context("the forward pass cannot run on a GPU"))
        }
        Err(reason) => on_cpu(format!("The forward pass runs on the CPU: {reason:#}.")),
    }
}

/// Refuses what no GPU does, whatever GPU there is.
///
/// # Errors
/// If a GPU is asked for with f32 activations, or with workers and all experts; with the flag to leave out or to add.
pub(crate) fn refusal(compute: &Compute, wish: DeviceWish, has_workers: bool) -> anyhow::Result<()> {
    let is_gpu = wish.choice == DeviceChoice::Gpu;
    if is_gpu && matches!(compute, Compute::Exact) {
        anyhow::bail!("a GPU computes with int8 activations: leave out --activations f32");
    }
    if wish.choice == DeviceChoice::Cpu && (wish.gpus.is_some() || wish.gpu_layers.is_some()) {
        let flag = if wish.gpus.is_some() { "--gpus" } else { "--gpu-layers" };
        anyhow::bail!("{flag} needs a GPU: leave it out, or leave out --device cpu");
    }
    if is_gpu && has_workers && wish.gpu_layers.is_none() {
        anyhow::bail!(
            "on a GPU the hub computes the experts that it has room for: add --gpu-layers 0 to leave them to workers, or \
             leave out --workers and --no-hub-compute"
        );
    }
    Ok(())
}

#[cfg(feature = "gpu")]
fn on_gpu(
    model: &Arc<Model>,
    wish: DeviceWish,
    keep: Keep,
    panels: &dyn Fn(Keep) -> io::Result<ExpertPanels>,
) -> anyhow::Result<Placed> {
    use anyhow::{Context, anyhow, ensure};
    use moex_kernels::{
        engine::{GpuPass, ResidentExperts},
        graph::DevicePass,
        simd::KvFormat,
    };
    use moex_model::local_experts::LocalExperts;
    use moex_protocol::Dtype;

    if let Compute::Fast(fast) = model.compute() {
        ensure!(fast.kv != KvFormat::F32, "a GPU keeps keys and values in f16 or q8_0");
    }
    let is_asked_for = wish.choice == DeviceChoice::Gpu;
    let gpus = gpus::open(wish.gpus, is_asked_for)?;
    let packed = Arc::new(panels(Keep::None)?);
    let layout = model.kv_layout();
    let of_sequence = layout.sequence_bytes(layout.max_positions) as u64;
    let resident = ResidentExperts {
        n_layers: wish.gpu_layers,
        beside: of_sequence.min(MAX_KV_RESERVE),
        spread: wish.gpus.is_some(),
    };
    let pass = GpuPass::new(&gpus, model.program(), (&*packed, resident), &layout)
        .map_err(|error| anyhow!(error))?;
    drop(gpus);
    let names = gpus::names(&pass);
    let sparse: Vec<usize> =
        (0..model.spec().layers.len()).filter(|layer| !model.experts(*layer).is_empty()).collect();
    let first_away = sparse.get(pass.n_resident()).copied().unwrap_or(model.spec().layers.len());
    let packed = match keep {
        _ if first_away == model.spec().layers.len() => packed,
        Keep::All => Arc::new(panels(Keep::From(first_away))?),
        Keep::None if Keep::if_it_fits(packed.n_bytes_from(first_away)) == Keep::All => {
            Arc::new(panels(Keep::From(first_away))?)
        }
        Keep::None | Keep::From(_) => packed,
    };
    let has_same_bits = self_test::compare(model, &packed, &pass).with_context(|| names.clone())?;
    let n_away = sparse.len() - pass.n_resident();
    if wish == DeviceWish::AUTO && n_away > 0 {
        let mut experts = LocalExperts::from_panels(packed.clone(), Dtype::F16);
        let times = step_times::measure(model, &mut experts, &pass, (n_away, sparse.len()))?;
        ensure!(
            times.gpu < times.cpu,
            "{names}: there is room for the experts of {} of {} layers, so that a token takes {:.1} ms there and {:.1} ms on the \
             CPU (`--device gpu` takes it)",
            pass.n_resident(),
            sparse.len(),
            times.gpu.as_secs_f64() * 1e3,
            times.cpu.as_secs_f64() * 1e3
        );
    }
    let why = format!(
        "The forward pass runs on {names}: {}, and its {:.0} MiB of weights fit{}.{}",
        if is_asked_for { "it was asked for" } else { "there is memory of its own" },
        pass.weight_bytes() as f64 / 1_048_576.0,
        match (pass.n_resident(), sparse.len()) {
            (_, 0) => String::new(),
            (n, all) if n == all => ", experts included, so no worker is asked".to_owned(),
            (0, _) => "; experts are computed by workers, or by the CPU".to_owned(),
            (n, all) => format!(
                ", with the experts of {n} of {all} layers; those of the others are computed by workers, or by the CPU"
            ),
        },
        if has_same_bits {
            ""
        } else {
            " There, what others ask at the same time may change a text's last bits."
        },
    );
    model.run_on(Box::new(pass));
    Ok(Placed { panels: packed, first_away, why })
}

/// A GPU's memory is left for keys and values of one full context, but for no more than this.
#[cfg(feature = "gpu")]
const MAX_KV_RESERVE: u64 = 2 << 30;

#[cfg(not(feature = "gpu"))]
fn on_gpu(
    _: &Arc<Model>,
    _: DeviceWish,
    _: Keep,
    _: &dyn Fn(Keep) -> io::Result<ExpertPanels>,
) -> anyhow::Result<Placed> {
    anyhow::bail!("this program was built without the feature `gpu`")
}
