//! `moex logits`: writes or compares logits.

mod against;

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, ensure};
use moex_kernels::engine::ActivationFormat;
use moex_protocol::Routing;
use safetensors::Dtype;

use against::Against;

use super::{
    compute::{ComputeArgs, DeviceArgs},
    experts::{ExpertArgs, ModelArgs, experts_for},
    safetensors_file::{Planned, SafetensorsFile},
};
use moex_model::{Experts, ExpertsError, KvTable, LayerRequest, Model, Span, Ticket, WantedLogits};

/// Rows of a step, as in the engine's prefill.
const CHUNK_ROWS: usize = 128;

/// Writes the logits of given token ids as a safetensors file, or compares them with such a file.
///
/// The file holds `logits`, f32 (tokens, vocabulary), and for each MoE layer `layer{N}.topk_indices`, i32 (tokens, K):
/// the experts that the router chose, best first.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    experts: ExpertArgs,

    #[command(flatten)]
    compute: ComputeArgs,

    #[command(flatten)]
    device: DeviceArgs,

    /// Token ids, separated by commas.
    #[arg(long, env = "MOEX_IDS", value_delimiter = ',', required = true, value_name = "1,2,3")]
    ids: Vec<u32>,

    /// File to write.
    #[arg(long, env = "MOEX_OUT", value_name = "FILE", required_unless_present = "against")]
    out: Option<PathBuf>,

    /// File with logits of the same ids to compare with; prints the normalised mean squared error (NMSE).
    ///
    /// Rows with the same router choices in every layer are also counted by themselves, since other choices give other
    /// rows.
    #[arg(long, env = "MOEX_AGAINST", value_name = "FILE")]
    against: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let checkpoint = args.model.checkpoint()?;
    let compute =
        args.device.compute(&args.compute, ActivationFormat::F32, args.experts.workers.is_some())?;
    let model = Arc::new(Model::load_for(&checkpoint, &compute)?);
    let spec = model.spec();
    let n_rows = args.ids.len(); // T
    ensure!(
        n_rows <= spec.max_positions,
        "{n_rows} ids are more than the context of {} tokens",
        spec.max_positions
    );

    let mut tensors =
        vec![Planned { name: "logits".to_owned(), dtype: Dtype::F32, shape: vec![n_rows, spec.vocab] }];
    tensors.extend(spec.sparse_layers().map(|layer| Planned {
        name: format!("layer{layer}.topk_indices"),
        dtype: Dtype::I32,
        shape: vec![n_rows, spec.moe.n_chosen],
    }));
    let against = args.against.as_deref().map(|path| Against::open(path, spec, n_rows));
    let mut against = against.transpose()?;
    let name = args.out.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let file = args.out.as_deref().map(|path| SafetensorsFile::create(path, &tensors));
    let mut file = file.transpose().with_context(|| name.clone())?;

    let mut experts = Recorded {
        experts: experts_for(&args.experts, args.device.wish(), &checkpoint, &model, CHUNK_ROWS)?,
        chosen: vec![Vec::new(); spec.layers.len()],
    };
    let mut kv = model.kv_pool(usize::MAX, 1);
    let mut table = KvTable::default();
    for (chunk, ids) in args.ids.chunks(CHUNK_ROWS).enumerate() {
        let start = chunk * CHUNK_ROWS;
        ensure!(kv.reserve(&mut table, start + ids.len()), "the KV cache is full");
        let span = Span { ids, start, table: &table, wanted: WantedLogits::All };
        let logits = model.forward(&[span], &mut kv, &mut experts)?;
        if let Some(file) = &mut file {
            file.write(&logits.iter().flat_map(|logit| logit.to_le_bytes()).collect::<Vec<_>>())?;
        }
        if let Some(against) = &mut against {
            against.add(&logits, spec.vocab);
        }
    }
    if let Some(mut file) = file {
        for layer in spec.sparse_layers() {
            let indices = experts.chosen[layer].iter().flat_map(|expert| i32::from(*expert).to_le_bytes());
            file.write(&indices.collect::<Vec<_>>())?;
        }
        file.finish().context(name)?;
    }
    if let Some(against) = against {
        print!("{}", against.report(spec, &experts.chosen));
    }
    Ok(())
}

/// Wraps experts and records the router's choices.
struct Recorded {
    experts: Box<dyn Experts>,
    /// (L)(T, K).
    chosen: Vec<Vec<u16>>,
}

impl Experts for Recorded {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        self.chosen[asked.layer].extend_from_slice(&asked.routing.experts);
        self.experts.begin(asked, sum)
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        self.experts.finish(ticket, sum)
    }

    fn max_in_flight(&self) -> usize {
        self.experts.max_in_flight()
    }

    fn computed_elsewhere(&mut self, layer: usize, routing: &Routing) {
        self.chosen[layer].extend_from_slice(&routing.experts);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use moex_kernels::nmse;
    use safetensors::SafeTensors;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/tiny-qwen3-moe");

    /// Runs the command on the reference's ids; the file's bytes and the reference's.
    fn run_on_reference(flags: &[&str]) -> (Vec<u8>, Vec<u8>) {
        try_on_reference(flags).unwrap()
    }

    fn try_on_reference(flags: &[&str]) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
        let reference = std::fs::read(format!("{TINY}/reference/reference.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&reference).unwrap();
        let ids = tensors.tensor("input_ids").unwrap();
        let ids: Vec<_> =
            ids.data().as_chunks().0.iter().map(|id| i64::from_le_bytes(*id).to_string()).collect();
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("logits.safetensors");
        let ids = ids.join(",");
        let mut line = vec!["logits", "--model", TINY, "--ids", &ids, "--out", out.to_str().unwrap()];
        line.extend(flags);
        run(Command::parse_from(line).args)?;
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no part is left");
        Ok((std::fs::read(&out).unwrap(), reference))
    }

    fn f32(bytes: &[u8], name: &str) -> Vec<f32> {
        let tensors = SafeTensors::deserialize(bytes).unwrap();
        tensors.tensor(name).unwrap().data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    #[test]
    fn the_file_is_the_reference() {
        let (ours, reference) = run_on_reference(&[]);
        assert!(nmse(&f32(&ours, "logits"), &f32(&reference, "logits")) <= 1e-9);
        let (ours, reference) =
            (SafeTensors::deserialize(&ours).unwrap(), SafeTensors::deserialize(&reference).unwrap());
        assert_eq!(ours.tensor("logits").unwrap().shape(), [40, 512]);
        for name in ["layer0.topk_indices", "layer1.topk_indices"] {
            assert_eq!(ours.tensor(name).unwrap().data(), reference.tensor(name).unwrap().data(), "{name}");
        }
    }

    #[test]
    fn a_comparison_counts_all_rows_and_those_that_chose_alike() {
        let checkpoint = moex_model::Checkpoint::open(TINY.as_ref()).unwrap();
        let spec = &checkpoint.spec;
        let path = format!("{TINY}/reference/reference.safetensors");
        let mut against = Against::open(path.as_ref(), spec, 40).unwrap();
        let reference = std::fs::read(&path).unwrap();
        // The reference itself, but for the first row, which is twice as large and chose other experts.
        let mut rows = f32(&reference, "logits");
        rows[..512].iter_mut().for_each(|logit| *logit *= 2.0);
        let tensors = SafeTensors::deserialize(&reference).unwrap();
        let mut chosen: Vec<Vec<u16>> = [0, 1]
            .map(|layer| tensors.tensor(&format!("layer{layer}.topk_indices")).unwrap())
            .map(|indices| {
                indices.data().as_chunks().0.iter().map(|i| i32::from_le_bytes(*i) as u16).collect()
            })
            .to_vec();
        chosen[1].swap(2, 3); // the second row's, in another order: the same choice
        chosen[0][0] ^= 7;
        against.add(&rows[..512 * 13], 512);
        against.add(&rows[512 * 13..], 512);
        let report = against.report(spec, &chosen);
        let lines: Vec<&str> = report.lines().collect();
        assert!(lines[0].starts_with("40 rows against ") && lines[0].ends_with("1.00e0 at most"), "{report}");
        let alike = "39 of them chose the same experts in every layer: NMSE 0.00e0; by rows 0.00e0 at the median, \
                     0.00e0 at most";
        assert_eq!(lines[1], alike);

        let error = Against::open(path.as_ref(), spec, 41).err().unwrap().to_string();
        assert!(
            error.ends_with("its logits are F32 [40, 512], those of the given ids F32 [41, 512]"),
            "{error}"
        );
        let other = format!("{TINY}/config.json");
        let error = Against::open(other.as_ref(), spec, 40).err().unwrap().to_string();
        assert!(error.ends_with("config.json: no safetensors file"), "{error}");
        assert!(Against::open("nowhere".as_ref(), spec, 40).is_err());
    }

    #[test]
    #[cfg(feature = "gpu")]
    fn a_gpu_gives_the_cpus_logits_and_choices() {
        let Some((gpu, _)) = on_gpu(try_on_reference(&["--device", "gpu", "--experts", "q8_0"])) else {
            return;
        };
        let (cpu, _) = run_on_reference(&["--device", "cpu", "--activations", "int8", "--experts", "q8_0"]);
        for layer in 0..2 {
            let name = format!("layer{layer}.topk_indices");
            let tensors = [&gpu, &cpu].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
            let [ours, theirs] = tensors.each_ref().map(|tensors| tensors.tensor(&name).unwrap().data());
            assert_eq!(ours, theirs, "{name}");
        }
        // The CPU rounds the experts' rows, gates and results to the wire's f16, and sums run in another order: some values fall
        // on another step of int8. All of int8's steps together cost up to 1e-3 (`hub/model/src/fast_tests.rs`).
        let error = nmse(&f32(&gpu, "logits"), &f32(&cpu, "logits"));
        assert!(error <= 1e-3, "NMSE {error:e}");
    }

    /// What a GPU gave; none where there is no GPU, unless `MOEX_REQUIRE_GPU=1` asks for one.
    #[cfg(feature = "gpu")]
    fn on_gpu<T>(result: anyhow::Result<T>) -> Option<T> {
        let required = std::env::var("MOEX_REQUIRE_GPU").is_ok_and(|value| value == "1");
        match result {
            Err(error) if !required && format!("{error:#}").contains("no GPU") => {
                eprintln!("SKIPPED, nothing was tested: {error:#}");
                None
            }
            result => Some(result.unwrap()),
        }
    }

    #[test]
    fn a_gpu_is_refused_what_it_does_not_do() {
        for (flags, reason) in [
            (&["--device", "gpu", "--activations", "f32"][..], "int8"),
            (&["--device", "gpu", "--workers", "1"], "--workers"),
            (&["--device", "gpu", "--kv", "f32"], "--kv"),
        ] {
            let error = try_on_reference(flags).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn packed_experts_in_f16_are_near_and_int4_are_not_the_same() {
        let (half, reference) = run_on_reference(&["--experts", "f16", "--wire", "f16"]);
        let (rows, expected) = (f32(&half, "logits"), f32(&reference, "logits"));
        let choices = |bytes: &[u8]| -> Vec<u8> {
            let tensors = SafeTensors::deserialize(bytes).unwrap();
            let layers =
                ["layer0.topk_indices", "layer1.topk_indices"].map(|name| tensors.tensor(name).unwrap());
            // (T)(layers, K).
            let row = |t: usize| layers.iter().flat_map(move |layer| layer.data()[t * 8..][..8].to_vec());
            (0..40).flat_map(row).collect()
        };
        let (ours, theirs) = (choices(&half), choices(&reference));
        let equal: Vec<usize> = (0..40).filter(|t| ours[t * 16..][..16] == theirs[t * 16..][..16]).collect();
        assert!(equal.len() >= 38, "{} of 40 rows are routed alike", equal.len());
        for t in equal {
            let error = nmse(&rows[t * 512..][..512], &expected[t * 512..][..512]);
            assert!(error <= 1e-5, "row {t}: NMSE {error:e}");
        }
        let (int4, _) = run_on_reference(&["--experts", "int4"]);
        assert!(nmse(&f32(&int4, "logits"), &expected) > 1e-4, "int4 must show");
    }
}
