//! Flags for the formats and threads that a model is computed with, shared by every command that runs one.

use std::sync::Arc;

use anyhow::bail;
use moex_kernels::{
    WeightFormat,
    engine::ActivationFormat,
    simd::{KvFormat, Processor, Simd},
};

use moex_model::{Compute, Fast, FloatWeights};
use moex_worker::device::DeviceChoice;

use crate::pass_device::{self, DeviceWish};

/// Formats and threads of the computation.
#[derive(clap::Args, Debug)]
pub(super) struct ComputeArgs {
    /// Format of activations that are multiplied with weights: int8 rounds them where weights are integers, several
    /// times as fast on a CPU; f32 is exact. Workers use the same format; with int8 they give the hub's bits.
    #[arg(long, env = "MOEX_ACTIVATIONS", value_name = "f32|int8")]
    pub(super) activations: Option<ActivationFormat>,

    /// With int8 activations: format to which the hub's own float matrices are rounded at load; bf16 keeps those of a
    /// bf16 model. Default: q8_0, or no rounding if the model is quantised.
    #[arg(long, env = "MOEX_WEIGHTS", value_name = "FORMAT")]
    pub(super) weights: Option<WeightFormat>,

    /// With int8 activations: format of keys and values. q8_0 takes 53 % of the memory of f16, so that nearly twice the
    /// context fits, and rounds them to 8 bits. Default: f16.
    #[arg(long, env = "MOEX_KV", value_name = "f32|f16|q8_0")]
    pub(super) kv: Option<KvFormat>,

    /// With int8 activations: number of compute threads. Default: one per processor, but that one in eight is left to the
    /// swarm, the API and whatever else runs.
    #[arg(long, env = "MOEX_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) threads: Option<u16>,
}

/// Where the forward pass runs.
#[derive(clap::Args, Debug)]
pub(super) struct DeviceArgs {
    /// Device of the forward pass: gpu, with int8 activations, cpu, or auto, which takes a GPU with memory of its own that can run the
    /// model.
    #[arg(long, env = "MOEX_DEVICE", default_value = "auto", value_name = "auto|gpu|cpu",
          value_parser = str::parse::<DeviceChoice>)]
    device: DeviceChoice,

    /// Divide the layers among N graphics cards that are alike. Default: as few as have room for all.
    #[arg(long, env = "MOEX_GPUS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    gpus: Option<u16>,

    /// With a GPU: the first N layers with experts have them in its memory, those of the others are computed by workers, or by the
    /// hub's processor; 0 leaves them all to those. Default: as many as fit.
    #[arg(long, env = "MOEX_GPU_LAYERS", value_name = "N")]
    gpu_layers: Option<u16>,
}

impl DeviceArgs {
    /// What the flags ask for.
    pub(super) fn wish(&self) -> DeviceWish {
        let [gpus, gpu_layers] = [self.gpus, self.gpu_layers].map(|n| n.map(usize::from));
        DeviceWish { choice: self.device, gpus, gpu_layers }
    }

    /// [`ComputeArgs::compute`] for this device: a GPU computes with int8 activations.
    ///
    /// # Errors
    /// As [`ComputeArgs::compute`], and if the flags ask a GPU for what it does not do.
    pub(super) fn compute(
        &self,
        args: &ComputeArgs,
        default: ActivationFormat,
        has_workers: bool,
    ) -> anyhow::Result<Compute> {
        let default = if self.device == DeviceChoice::Gpu { ActivationFormat::Int8 } else { default };
        let compute = args.compute(default)?;
        pass_device::refusal(&compute, self.wish(), has_workers)?;
        if (self.device, args.kv) == (DeviceChoice::Gpu, Some(KvFormat::F32)) {
            bail!("a GPU keeps keys and values in f16 or q8_0: leave out --kv f32");
        }
        Ok(compute)
    }
}

impl ComputeArgs {
    /// Returns what the flags ask for; `default` is the activation format without the flag.
    ///
    /// # Errors
    /// If flags contradict each other, or `MOEX_SIMD` names instructions that this machine does not have.
    pub(super) fn compute(&self, default: ActivationFormat) -> anyhow::Result<Compute> {
        match self.activations.unwrap_or(default) {
            ActivationFormat::F32 => {
                let packs_kv = self.kv.is_some_and(|kv| kv != KvFormat::F32);
                if self.weights.is_some() || self.threads.is_some() || packs_kv {
                    bail!(
                        "--weights, --threads and --kv other than f32 need int8 activations: add --activations int8"
                    );
                }
                Ok(Compute::Exact)
            }
            ActivationFormat::Int8 => {
                let n_threads = self.threads.map_or_else(default_threads, usize::from);
                let processor = Processor::new(Simd::from_env()?, n_threads);
                Ok(Compute::Fast(Fast {
                    processor: Arc::new(processor),
                    weights: self.weights.map_or(FloatWeights::ByCheckpoint, FloatWeights::To),
                    kv: self.kv.unwrap_or(KvFormat::F16),
                }))
            }
        }
    }
}

/// A thread that loses its processor keeps all others waiting, and a hub has more threads than those that compute.
fn default_threads() -> usize {
    n_processors() - spare_processors()
}

/// Threads that serve pages and the API, and meet strangers: no more than have a processor of their own beside those that
/// compute, whatever is asked of them; two at least, so that one that is busy for a moment delays nobody.
pub(super) fn serving_threads() -> usize {
    spare_processors().max(2)
}

fn spare_processors() -> usize {
    n_processors() / 8
}

fn n_processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compute(weights: Option<WeightFormat>, kv: Option<KvFormat>) -> anyhow::Result<Compute> {
        ComputeArgs { activations: None, weights, kv, threads: None }.compute(ActivationFormat::F32)
    }

    #[test]
    fn flags_that_change_nothing_are_refused() {
        assert!(matches!(compute(None, Some(KvFormat::F32)), Ok(Compute::Exact)));
        for (weights, kv) in
            [(Some(WeightFormat::Q8_0), None), (None, Some(KvFormat::F16)), (None, Some(KvFormat::Q8_0))]
        {
            assert!(compute(weights, kv).unwrap_err().to_string().contains("--activations int8"));
        }
    }
}
