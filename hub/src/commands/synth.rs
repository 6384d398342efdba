//! `moex synth`: writes a random model.

mod geometry;
mod gguf;
mod weights;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use geometry::{Geometry, Like};
use indicatif::{ProgressBar, ProgressStyle};
use weights::{SpokenTokens, Weights};

use super::safetensors_file::{Planned, SafetensorsFile};
use moex_model::{Checkpoint, MAX_LAYERS, ModelSpec, TokenizerSource, gguf::Vocabulary};

/// Maximum bytes of a shard, as in published checkpoints.
const SHARD_BYTES: usize = 4_000_000_000;

/// Writes a random checkpoint with the geometry of a published model.
///
/// It has the published model's shapes, names and files, in bf16 or as a GGUF in the chosen format, and the demo
/// model's tokenizer. It answers with words that mean nothing: use it to measure speed and memory before you download the
/// real model.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Model whose geometry to use.
    #[arg(long, env = "MOEX_LIKE", value_enum)]
    like: Like,

    /// Number of layers instead of the model's own.
    #[arg(long, env = "MOEX_LAYERS", value_name = "N")]
    layers: Option<usize>,

    /// Folder to write.
    #[arg(
        long,
        env = "MOEX_OUT",
        value_name = "DIR",
        required_unless_present = "gguf",
        conflicts_with = "gguf"
    )]
    out: Option<PathBuf>,

    /// GGUF file to write instead: the same weights, as llama.cpp would write them.
    #[arg(long, env = "MOEX_GGUF", value_name = "FILE")]
    gguf: Option<PathBuf>,

    /// Format of the GGUF's matrices.
    #[arg(long, env = "MOEX_FORMAT", value_enum, default_value = "q4_K_M", requires = "gguf")]
    format: gguf::Mix,

    /// Seed of the random weights.
    #[arg(long, env = "MOEX_SEED", default_value = "0")]
    seed: u64,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    if let Some(layers) = args.layers {
        ensure!(
            (1..=MAX_LAYERS).contains(&layers),
            "--layers is {layers}: it must be between 1 and {MAX_LAYERS}"
        );
    }
    let geometry = args.like.geometry(args.layers);
    let tensors = geometry.tensors();
    let progress = ProgressBar::new(tensors.iter().map(|tensor| tensor.n_bytes() as u64).sum());
    progress.set_style(ProgressStyle::with_template(
        "writing [{bar:20}] {bytes} of {total_bytes} of bf16, {eta} left",
    )?);
    let out = match (&args.out, &args.gguf) {
        (Some(folder), _) => {
            write(folder, &geometry, tensors, args.seed, &progress)?;
            folder
        }
        (None, Some(file)) => {
            gguf::write(file, &geometry, args.format, args.seed, &progress)?;
            file
        }
        (None, None) => anyhow::bail!("name what to make with --out or --gguf"),
    };
    progress.finish_and_clear();
    eprintln!("{} holds a random model: {} layers", out.display(), geometry.layers);
    Ok(())
}

/// Writes all files of a checkpoint. The index is written last, so a folder with an index is complete.
fn write(
    folder: &Path,
    geometry: &Geometry,
    tensors: Vec<Planned>,
    seed: u64,
    progress: &ProgressBar,
) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let put = |name: &str, bytes: &[u8]| {
        fs::write(folder.join(name), bytes).with_context(|| folder.join(name).display().to_string())
    };
    let config = serde_json::to_vec_pretty(&geometry.config())?;
    let spec = ModelSpec::from_json(&config).context("the geometry is not a valid model")?;
    put("config.json", &config)?;
    let text = Checkpoint::demo()?.text;
    let tokenizer = tokenizer_json(text.tokenizer)?;
    let spoken = SpokenTokens::of(&Vocabulary::from_tokenizer_json(&tokenizer, spec.vocab)?);
    let files = [
        ("tokenizer.json", Some(tokenizer)),
        ("tokenizer_config.json", text.tokenizer_config),
        ("generation_config.json", text.generation_config),
    ];
    for (name, bytes) in files {
        if let Some(bytes) = bytes {
            put(name, &bytes)?;
        }
    }

    let shards = into_shards(tensors);
    let (mut map, mut total) = (BTreeMap::new(), 0);
    for (index, shard) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", index + 1, shards.len());
        let context = || folder.join(&name).display().to_string();
        let mut file = SafetensorsFile::create(&folder.join(&name), shard).with_context(context)?;
        for tensor in shard {
            Weights::new(seed, &tensor.name, &tensor.shape, &spoken)
                .for_each(|values| {
                    progress.inc(2 * values.len() as u64);
                    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    file.write(&bytes)
                })
                .with_context(context)?;
            total += tensor.n_bytes();
            map.insert(tensor.name.clone(), name.clone());
        }
        file.finish().with_context(context)?;
    }
    let index = serde_json::json!({"metadata": {"total_size": total}, "weight_map": map});
    put("model.safetensors.index.json", &serde_json::to_vec_pretty(&index)?)
}

/// The demo model's `tokenizer.json`.
fn tokenizer_json(source: Option<TokenizerSource>) -> anyhow::Result<Cow<'static, [u8]>> {
    match source {
        Some(TokenizerSource::Json(json)) => Ok(json),
        Some(TokenizerSource::Vocabulary(_) | TokenizerSource::Unknown(_)) | None => {
            anyhow::bail!("the demo model has no tokenizer.json")
        }
    }
}

/// Splits the tensors into shards, in order.
fn into_shards(tensors: Vec<Planned>) -> Vec<Vec<Planned>> {
    let mut shards = vec![Vec::new()];
    let mut bytes = 0;
    for tensor in tensors {
        if bytes > 0 && bytes + tensor.n_bytes() > SHARD_BYTES {
            shards.push(Vec::new());
            bytes = 0;
        }
        bytes += tensor.n_bytes();
        shards.last_mut().expect("there is a first shard").push(tensor);
    }
    shards
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use moex_model::text::Text;
    use moex_model::{KvTable, Model, Span, WantedLogits, local_experts::LocalExperts};

    fn synth(layers: usize, seed: u64) -> (tempfile::TempDir, Checkpoint) {
        let folder = tempfile::tempdir().unwrap();
        let geometry = Like::Tiny.geometry(Some(layers));
        write(folder.path(), &geometry, geometry.tensors(), seed, &ProgressBar::hidden()).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        (folder, checkpoint)
    }

    fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
        let model = Arc::new(Model::load(checkpoint).unwrap());
        let mut kv = model.kv_pool(usize::MAX, 1);
        let mut table = KvTable::default();
        assert!(kv.reserve(&mut table, 3));
        let span = Span { ids: &[5, 6, 7], start: 0, table: &table, wanted: WantedLogits::Last };
        model.forward(&[span], &mut kv, &mut LocalExperts::of_checkpoint(model.clone())).unwrap()
    }

    #[test]
    fn what_is_written_is_a_model_that_runs() {
        let (_keep, checkpoint) = synth(2, 1);
        assert_eq!(checkpoint.spec.layers.len(), 2);
        assert!(Text::load(&checkpoint).unwrap().template.is_some());
        let logits = logits(&checkpoint);
        assert!(logits.iter().all(|logit| logit.is_finite()));
        // Neither flat nor wild: the model prefers some tokens.
        let mean_square = logits.iter().map(|l| l * l).sum::<f32>() / logits.len() as f32;
        assert!((0.1..100.0).contains(&mean_square), "{mean_square}");
    }

    #[test]
    fn only_words_are_answered() {
        let (_keep, checkpoint) = synth(2, 1);
        let tokenizer = tokenizer_json(Checkpoint::demo().unwrap().text.tokenizer).unwrap();
        let vocabulary = Vocabulary::from_tokenizer_json(&tokenizer, 1024).unwrap();
        let logits = logits(&checkpoint);
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        assert!(logits[best] > 0.0);
        assert!(vocabulary.tokens[best].bytes().any(|byte| byte.is_ascii_alphanumeric()));
        let end = vocabulary.id("<|im_end|>").unwrap() as usize;
        assert_eq!((logits[end], logits[1023]), (0.0, 0.0), "an end, and an id without a token");
    }

    #[test]
    fn a_gguf_is_the_same_model() {
        let (folder, checkpoint) = synth(2, 1);
        let path = folder.path().join("model.gguf");
        let write = |mix| {
            let geometry = Like::Tiny.geometry(Some(2));
            gguf::write(&path, &geometry, mix, 1, &ProgressBar::hidden()).unwrap();
            Checkpoint::open(&path).unwrap()
        };
        let exact = logits(&checkpoint);
        let bf16 = write(gguf::Mix::Bf16);
        assert_eq!(logits(&bf16), exact);
        assert!(Text::load(&bf16).unwrap().template.is_some());
        for (mix, most) in [(gguf::Mix::Q8_0, 1e-3), (gguf::Mix::Q4_0, 0.5), (gguf::Mix::Q4KM, 0.5)] {
            let error = moex_kernels::nmse(&logits(&write(mix)), &exact);
            assert!(error > 0.0 && error < most, "{mix:?}: NMSE {error}");
        }
    }

    #[test]
    fn a_seed_is_a_model() {
        let [one, again, other] = [1, 1, 2].map(|seed| logits(&synth(1, seed).1));
        assert_eq!(one, again);
        assert_ne!(one, other);
    }

    #[test]
    fn shards_are_cut_where_they_are_full() {
        let tensors = Like::Qwen330bA3b.geometry(None).tensors();
        let total: usize = tensors.iter().map(Planned::n_bytes).sum();
        let shards = into_shards(tensors);
        assert!((61.0e9..61.2e9).contains(&(total as f64)), "{total} bytes, as published");
        assert_eq!(shards.len(), 16, "as published");
        assert!(shards.iter().all(|shard| shard.iter().map(Planned::n_bytes).sum::<usize>() <= SHARD_BYTES));
    }
}
