//! The flags that say which model, and who computes its experts: shared by every command that runs one.

use std::{path::PathBuf, sync::Arc};

use moex_kernels::WeightFormat;
use moex_protocol::Dtype;

use crate::model::{
    Checkpoint, Experts, Model, ModelError,
    local_moe::{CheckpointExperts, MemoryBlocks, PackedExperts},
};

/// Which model.
#[derive(clap::Args, Debug)]
pub(super) struct ModelArgs {
    /// A Hugging Face folder of a Qwen3-MoE; without it, the demo model.
    #[arg(long, env = "MOEX_MODEL", value_name = "PATH")]
    pub(super) model: Option<PathBuf>,
}

impl ModelArgs {
    /// Opens it.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub(super) fn checkpoint(&self) -> Result<Checkpoint, ModelError> {
        match &self.model {
            Some(folder) => Checkpoint::open(folder),
            None => Checkpoint::demo(),
        }
    }
}

/// Who computes the experts, and from what.
#[derive(clap::Args, Debug)]
pub(super) struct ExpertArgs {
    /// Pack experts as workers hold them: int4, f16, bf16 or f32; without it, the checkpoint's own weights in f32.
    #[arg(long, env = "MOEX_EXPERTS", value_name = "FORMAT")]
    pub(super) experts: Option<WeightFormat>,

    /// What rows are rounded to on their way to packed experts and back: f16, bf16 or int8.
    #[arg(long, env = "MOEX_WIRE", value_name = "DTYPE", default_value = "f16")]
    pub(super) wire: Dtype,
}

/// The experts that the flags ask for.
///
/// # Errors
/// Why they cannot be had.
pub(super) fn experts_for(args: &ExpertArgs, model: &Arc<Model>) -> anyhow::Result<Box<dyn Experts>> {
    Ok(match args.experts {
        None => Box::new(CheckpointExperts::new(model.clone())),
        Some(format) => Box::new(PackedExperts::new(MemoryBlocks::new(model.clone(), format), args.wire)),
    })
}
