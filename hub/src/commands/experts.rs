//! Flags for the model and for where its experts are computed, shared by every command that runs one.

use std::{path::PathBuf, sync::Arc, time::Duration};

use moex_kernels::{ExpertFormat, simd::Processor};
use moex_protocol::Dtype;
use moex_worker::native::BusyPoll;

use super::{
    model_path,
    values::{secret, wire},
};
use crate::{
    net::{LocalSwarm, LocalSwarmConfig, SwarmExperts},
    pass_device::{self, DeviceWish},
    server,
    shards::{ModelExperts, ShardStore},
};
use moex_model::{
    Checkpoint, Compute, Expert, Experts, ExpertsError, Keep, LayerRequest, Model, Packing, Ticket,
    local_experts::{ExpertPanels, LocalExperts, MemoryBlocks},
};
use moex_swarm::{JoinToken, SwarmConfig, Verify};

/// How long workers may take until they hold every expert.
const COVERAGE_DEADLINE: Duration = Duration::from_secs(600);

/// The model to run.
#[derive(clap::Args, Debug)]
pub(super) struct ModelArgs {
    /// Model to run: a Hugging Face folder or a GGUF file, by its path or by its name on huggingface.co. A name that is
    /// not in the cache is downloaded (see `moex pull`). Default: the demo model.
    #[arg(long, env = "MOEX_MODEL", value_name = "PATH|NAME")]
    model: Option<PathBuf>,
}

impl ModelArgs {
    /// Opens the checkpoint, and downloads it first if needed.
    ///
    /// # Errors
    /// If it cannot be downloaded, or its files are invalid.
    pub(super) fn checkpoint(&self) -> anyhow::Result<Checkpoint> {
        Ok(match self.path(&mut |_, _| {})? {
            Some(path) => Checkpoint::open(&path)?,
            None => Checkpoint::demo()?,
        })
    }

    /// Whether it is the demo model that ships in the binary.
    pub(super) fn is_demo(&self) -> bool {
        self.model.is_none()
    }

    /// Path of the model; none for the demo model. Blocks during a download and reports the bytes present and in total.
    ///
    /// # Errors
    /// If it cannot be downloaded.
    pub(super) fn path(&self, report: &mut dyn FnMut(u64, u64)) -> anyhow::Result<Option<PathBuf>> {
        self.model.as_deref().map(|model| model_path::locate(model, report)).transpose()
    }
}

/// Where experts are computed, and in which format.
#[derive(clap::Args, Debug)]
pub(super) struct ExpertArgs {
    /// Compute experts on this many native workers: processes of this program that join over loopback.
    #[arg(long, env = "MOEX_WORKERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) workers: Option<u16>,

    /// Format that experts are packed to: int4, f16, q8_0, ..., or two formats such as q4_K+q6_K, for gate and up, and
    /// for down. Default: the model's own if it is quantised, otherwise int4. With f32 activations and no workers, the
    /// default is the checkpoint's own format.
    #[arg(long, env = "MOEX_EXPERTS", value_name = "FORMAT")]
    pub(super) experts: Option<ExpertFormat>,

    /// Format of rows sent to packed experts and back: f16, bf16 or int8.
    #[arg(long, env = "MOEX_WIRE", value_name = "DTYPE", default_value = "f16", value_parser = wire)]
    pub(super) wire: Dtype,

    /// Which of the workers' answers are checked before a result depends on them: blocking, every one, as `serve` does;
    /// exact, every one, and two workers at different addresses have to agree; audit, none. The default is blocking, or
    /// audit with --wire int8.
    #[arg(long, env = "MOEX_VERIFY", value_name = "exact|blocking|audit")]
    pub(super) verify: Option<Verify>,
}

impl ExpertArgs {
    /// Which answers are checked: with int8 on the wire none, since a lie can hide in its rounding.
    fn verify(&self) -> Verify {
        self.verify.unwrap_or(match self.wire {
            Dtype::F16 | Dtype::Bf16 => Verify::Blocking,
            Dtype::Int8 | Dtype::Int4 => Verify::Audit,
        })
    }
}

/// Returns the experts that the flags ask for, for steps of at most `max_rows` rows; puts the forward pass on `device`, and says
/// why.
///
/// # Errors
/// If they cannot be packed or loaded, workers do not join, or the device cannot run the model.
pub(super) fn experts_for(
    args: &ExpertArgs,
    device: DeviceWish,
    checkpoint: &Checkpoint,
    model: &Arc<Model>,
    max_rows: usize,
) -> anyhow::Result<Box<dyn Experts>> {
    if let (None, Compute::Fast(fast)) = (args.workers, model.compute()) {
        return Ok(Box::new(panel_experts(args, device, checkpoint, model, &fast.processor)?));
    }
    Ok(match (args.workers, args.experts) {
        (None, None) => Box::new(LocalExperts::of_checkpoint(model.clone())),
        (None, Some(format)) => {
            let blocks = MemoryBlocks::new(model.clone(), Packing::To(format));
            Box::new(LocalExperts::exact(blocks, args.wire))
        }
        (Some(n_workers), format) => Box::new(OwnSwarm::start(
            usize::from(n_workers),
            device,
            Packing::or_default(format, model),
            args,
            checkpoint,
            model,
            max_rows,
        )?),
    })
}

/// One line for the user that says what experts are computed in.
pub(super) fn describe(args: &ExpertArgs, model: &Model) -> String {
    let packing = match (args.workers, args.experts, model.compute()) {
        (None, None, Compute::Exact) => Packing::Native,
        (_, experts, _) => Packing::or_default(experts, model),
    };
    model.compute().describe(&packing.describe(), model.spec())
}

/// Experts on this machine with int8 activations, as a hub without workers computes them.
fn panel_experts(
    args: &ExpertArgs,
    device: DeviceWish,
    checkpoint: &Checkpoint,
    model: &Arc<Model>,
    processor: &Arc<Processor>,
) -> anyhow::Result<LocalExperts> {
    let placed = match Packing::or_default(args.experts, model) {
        Packing::Native => {
            let experts = (0..model.spec().layers.len()).flat_map(|layer| model.experts(layer));
            let keep = Keep::if_it_fits(experts.map(Expert::n_bytes).sum());
            let panels = |keep| ExpertPanels::new(model.clone(), processor.clone(), keep);
            pass_device::place(model, device, keep, panels)?
        }
        packing @ Packing::To(_) => {
            let source = ModelExperts::new(checkpoint.name.clone(), model.clone());
            let folder = ShardStore::default_folder(&source, packing);
            let store = Arc::new(ShardStore::open(&folder, &source, packing, &|_, _| {})?);
            let keep = Keep::if_it_fits(store.n_bytes());
            let panels = |keep| ExpertPanels::new(store.clone(), processor.clone(), keep);
            pass_device::place(model, device, keep, panels)?
        }
    };
    eprintln!("{}", placed.why);
    Ok(LocalExperts::from_panels(placed.panels, args.wire))
}

/// A swarm of local workers that lives as long as the command.
struct OwnSwarm {
    experts: SwarmExperts,
    /// Owns the worker processes, which end when it is dropped.
    _swarm: LocalSwarm,
}

impl OwnSwarm {
    fn start(
        n_workers: usize,
        device: DeviceWish,
        packing: Packing,
        args: &ExpertArgs,
        checkpoint: &Checkpoint,
        model: &Arc<Model>,
        max_rows: usize,
    ) -> anyhow::Result<Self> {
        let source = ModelExperts::new(checkpoint.name.clone(), model.clone());
        let folder = ShardStore::default_folder(&source, packing);
        let mut store = ShardStore::open(&folder, &source, packing, &|_, _| {})?;
        if let Compute::Fast(fast) = model.compute() {
            // The workers hold every expert: the hub computes some only to check answers.
            let device = device.unless(true);
            let panels = |keep| store.panels(fast.processor.clone(), keep);
            let placed = pass_device::place(model, device, Keep::None, panels)?;
            if device != DeviceWish::CPU {
                eprintln!("{}", placed.why);
            }
            store = store.asking_from(placed.first_away).with_panels(placed.panels);
        }
        let store = Arc::new(store);
        let summary = server::summary(checkpoint, &store, model.compute().activations(), max_rows);
        let config = LocalSwarmConfig {
            n_workers,
            busy_poll: BusyPoll::new(true),
            swarm: SwarmConfig {
                wire: args.wire,
                verify: args.verify(),
                ..SwarmConfig::new(JoinToken::new(secret()?), summary)
            },
            program: None,
            coverage_deadline: COVERAGE_DEADLINE,
        };
        let swarm = LocalSwarm::start(config, store)?;
        Ok(Self { experts: SwarmExperts::new(swarm.handle()), _swarm: swarm })
    }
}

impl Experts for OwnSwarm {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        self.experts.begin(asked, sum)
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        self.experts.finish(ticket, sum)
    }

    fn finish_early(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        self.experts.finish_early(ticket, sum)
    }

    fn confirm(&mut self) -> Result<(), ExpertsError> {
        self.experts.confirm()
    }

    fn max_in_flight(&self) -> usize {
        self.experts.max_in_flight()
    }
}
