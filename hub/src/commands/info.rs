//! `moex info`: shows a model's sizes, its memory needs, and what it needs of a network.

use std::{fmt::Write, sync::Arc};

use moex_kernels::{ExpertFormat, WeightFormat, engine::ActivationFormat};
use serde::Serialize;

use super::{compute::ComputeArgs, experts::ModelArgs};
use moex_engine::EngineConfig;
use moex_model::{Checkpoint, Compute, MemoryNeeds, MemoryPlan, Model, Packing, PlanBytes, free_bytes};

/// Expert formats to compare for models that are not quantised.
const PACKINGS: [Packing; 2] = [
    Packing::To(ExpertFormat::uniform(WeightFormat::Int4G128)),
    Packing::To(ExpertFormat::uniform(WeightFormat::F16)),
];
/// Worker counts to show by default.
const WORKERS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Rows of the long step whose intermediates are shown, beside the longest step of `serve`.
const LONG_STEP: usize = 512;
/// Memory for experts per device: a phone's tab, a laptop's, a desktop's GPU, a workstation's.
const BUDGETS_GIB: [u64; 5] = [1, 2, 4, 8, 24];

/// The wires of a hub, in bits a second: a good Wi-Fi's, an ordinary network cable's.
const WIRES: [(&str, u64); 2] = [("300 Mbit/s", 300_000_000), ("1 Gbit/s", 1_000_000_000)];

/// Shows what a model is, how much memory the hub and each worker need, and what a network carries of it.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    compute: ComputeArgs,

    /// Show only this number of workers.
    #[arg(long, env = "MOEX_WORKERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,

    /// Number of workers that hold each expert, if there are enough.
    #[arg(long, env = "MOEX_REPLICAS", value_name = "R", default_value = "2", value_parser = clap::value_parser!(u16).range(1..))]
    replicas: u16,

    /// Print one JSON object.
    #[arg(long, env = "MOEX_JSON")]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let free = free_bytes();
    let checkpoint = args.model.checkpoint()?;
    let model = Arc::new(Model::load(&checkpoint)?);
    let counts = args.workers.map_or(WORKERS.to_vec(), |n| vec![usize::from(n)]);
    let compute = args.compute.compute(ActivationFormat::Int8)?.of(&checkpoint);
    let info = Info::of(&checkpoint, &model, &compute, &counts, usize::from(args.replicas), free)?;
    if args.json {
        println!("{}", serde_json::to_string(&info)?);
    } else {
        print!("{}", info.text());
    }
    Ok(())
}

/// A model's sizes and needs.
#[derive(Debug, Serialize)]
struct Info {
    name: String,
    layers: usize,
    sparse_layers: usize,
    hidden: usize,
    experts: usize,
    experts_per_token: usize,
    expert_inner: usize,
    vocabulary: usize,
    /// Context that a hub on this machine gives it, with the memory that is free now.
    context: usize,
    /// Context that the model was trained for.
    model_context: usize,
    /// Formats it is served with by default.
    compute: String,
    checkpoint_bytes: u64,
    expert_parameters: u64,
    hub: Hub,
    workers: Vec<Share>,
    fits: Vec<Fit>,
    wire: Wire,
}

/// What workers answer for one token: in all, however many they are.
#[derive(Debug, Serialize)]
struct Wire {
    /// With `--verify blocking`, the default: answers (D) in f16 and what they are checked by.
    checked_bytes: u64,
    /// With `--verify audit`: answers alone.
    audit_bytes: u64,
}

/// Memory of the hub.
#[derive(Debug, Serialize)]
struct Hub {
    /// All weights but the experts, mapped from the checkpoint.
    shared_bytes: u64,
    /// One position of the KV cache.
    kv_position_bytes: u64,
    /// Positions after which layers with windows give their part of it back; none if no layer has one.
    kv_window: Option<usize>,
    /// What is left of a position then.
    kv_lasting_position_bytes: u64,
    /// The KV cache of one sequence as long as the context.
    kv_context_bytes: u64,
    /// Bytes of intermediates in the longest step of `serve` and in a step of 512 rows.
    intermediates: Vec<StepBytes>,
    /// The experts in the checkpoint's format: mapped, and read only if the hub computes experts itself.
    expert_bytes: u64,
}

/// Bytes of a step's intermediates.
#[derive(Debug, Serialize)]
struct StepBytes {
    rows: usize,
    /// With memory reused between them.
    bytes: u64,
    /// With memory of its own for each.
    naive_bytes: u64,
}

impl StepBytes {
    fn of(model: &Model, compute: &Compute, rows: usize) -> Self {
        let PlanBytes { planned, naive } = model.intermediate_bytes(compute, rows, 1);
        Self { rows, bytes: planned as u64, naive_bytes: naive as u64 }
    }
}

/// Memory of each worker if this many share the experts evenly.
#[derive(Debug, Serialize)]
struct Share {
    workers: usize,
    replicas: usize,
    format: String,
    blocks: usize,
    bytes: u64,
}

impl Wire {
    /// For as many experts as a token has in all layers.
    fn of((hidden, inner): (usize, usize), n_experts: usize, activations: ActivationFormat) -> Self {
        let answer = size_of::<u16>() * hidden;
        // Those of gate and of up.
        let products = 2 * inner * if activations == ActivationFormat::Int8 { 2 } else { 4 };
        let [checked_bytes, audit_bytes] =
            [answer + products, answer].map(|bytes| (n_experts * bytes) as u64);
        Self { checked_bytes, audit_bytes }
    }

    /// Tokens that so many bits a second carry.
    fn tokens_per_second(bytes: u64, bits_per_second: u64) -> u64 {
        bits_per_second / (8 * bytes.max(1))
    }

    fn text(&self) -> String {
        let Self { checked_bytes, audit_bytes } = *self;
        let rates = |bytes| WIRES.map(|(_, rate)| Self::tokens_per_second(bytes, rate));
        let [[slow, fast], [audit_slow, audit_fast]] = [rates(checked_bytes), rates(audit_bytes)];
        let [(slow_wire, _), (fast_wire, _)] = WIRES;
        format!(
            "Workers send {} for each token that is read or written: a hub behind {fast_wire} takes {fast} of \
             them a second at most, behind {slow_wire} {slow} (`--verify audit`: {}, {audit_fast} and {audit_slow}).",
            size(checked_bytes),
            size(audit_bytes),
        )
    }
}

/// Number of workers with this much memory that hold every expert once.
#[derive(Debug, Serialize)]
struct Fit {
    format: String,
    budget_gib: u64,
    workers: u64,
}

impl Info {
    fn of(
        checkpoint: &Checkpoint,
        model: &Model,
        compute: &Compute,
        counts: &[usize],
        replicas: usize,
        free: Option<usize>,
    ) -> anyhow::Result<Self> {
        let spec = model.spec();
        let sparse_layers = spec.sparse_layers().count();
        let n_blocks = sparse_layers * spec.moe.n_experts;
        let expert_bytes =
            spec.sparse_layers().flat_map(|layer| model.experts(layer)).map(|e| e.n_bytes() as u64);
        let kv = compute.kv_layout(spec);
        let blocks = if n_blocks == 0 { Vec::new() } else { packed(model)? };
        let packing = Packing::or_default(None, model);
        let EngineConfig { max_sequences: n_sequences, max_rows, .. } = EngineConfig::default();
        let needs =
            MemoryNeeds::of(checkpoint, model, compute, packing, n_sequences).map_err(anyhow::Error::msg)?;
        let memory = MemoryPlan::new(&needs, spec, compute, free, None);
        Ok(Self {
            name: checkpoint.name.clone(),
            layers: spec.layers.len(),
            sparse_layers,
            hidden: spec.hidden,
            experts: spec.moe.n_experts,
            experts_per_token: spec.moe.n_chosen,
            expert_inner: spec.moe.inner,
            vocabulary: spec.vocab,
            context: memory.context,
            model_context: spec.max_positions,
            compute: compute.describe(&packing.describe(), spec),
            checkpoint_bytes: checkpoint.weight_bytes(),
            expert_parameters: 3 * (n_blocks * spec.hidden * spec.moe.inner) as u64,
            hub: Hub {
                shared_bytes: model.shared_bytes() as u64,
                kv_position_bytes: kv.position_bytes() as u64,
                kv_window: kv.window(),
                kv_lasting_position_bytes: kv.lasting_position_bytes() as u64,
                kv_context_bytes: kv.sequence_bytes(spec.max_positions) as u64,
                intermediates: [max_rows, LONG_STEP].map(|rows| StepBytes::of(model, compute, rows)).into(),
                expert_bytes: expert_bytes.sum(),
            },
            workers: counts
                .iter()
                .flat_map(|n| blocks.iter().map(|block| Share::of(block, n_blocks, *n, replicas.min(*n))))
                .collect(),
            fits: blocks
                .iter()
                .flat_map(|block| BUDGETS_GIB.map(|budget| Fit::of(block, n_blocks, budget)))
                .collect(),
            wire: Wire::of(
                (spec.hidden, spec.moe.inner),
                sparse_layers * spec.moe.n_chosen,
                compute.activations(),
            ),
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let hub = &self.hub;
        let (experts, inner) = match self.sparse_layers {
            0 => ("without experts".to_owned(), String::new()),
            n => (
                format!("{n} with {} experts, {} of them per token", self.experts, self.experts_per_token),
                format!(", expert inner {}", self.expert_inner),
            ),
        };
        let _ = writeln!(
            text,
            "{}: {} layers ({experts}), hidden {}{inner}, vocabulary {}, context {}",
            self.name, self.layers, self.hidden, self.vocabulary, self.model_context
        );
        let of_experts = match self.sparse_layers {
            0 => String::new(),
            _ => format!(
                ", of which experts {} ({:.2} B parameters)",
                size(hub.expert_bytes),
                self.expert_parameters as f64 / 1e9
            ),
        };
        let _ = writeln!(text, "checkpoint {}{of_experts}\n", size(self.checkpoint_bytes));
        let _ =
            writeln!(text, "Served on this machine with a context of {}, {}.\n", self.context, self.compute);
        let lasting = hub.kv_window.map(|window| {
            format!(" ({} once {window} tokens follow it)", size(hub.kv_lasting_position_bytes))
        });
        let _ = writeln!(
            text,
            "The hub holds {} of weights and {} of KV cache per token{}: {} for one sequence of full context.",
            size(hub.shared_bytes),
            size(hub.kv_position_bytes),
            lasting.unwrap_or_default(),
            size(hub.kv_context_bytes)
        );
        for StepBytes { rows, bytes, naive_bytes } in &hub.intermediates {
            let (bytes, naive) = (size(*bytes), size(*naive_bytes));
            let _ = writeln!(
                text,
                "Intermediates of a step of {rows} rows take {bytes}; without sharing memory they would take {naive}."
            );
        }
        if self.sparse_layers == 0 {
            text.push_str("The hub computes it alone: only experts go to workers.\n");
            return text;
        }
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::UTF8_FULL_CONDENSED);
        table.set_header(["workers", "replicas", "format", "experts each", "memory each"]);
        for share in &self.workers {
            let Share { workers, replicas, format, blocks, bytes } = share;
            table.add_row([
                workers.to_string(),
                replicas.to_string(),
                format.clone(),
                blocks.to_string(),
                size(*bytes),
            ]);
        }
        let _ = writeln!(text, "{table}");
        for of_format in self.fits.chunk_by(|a, b| a.format == b.format) {
            let fits = of_format.iter().map(|fit| format!("{} x {} GiB", fit.workers, fit.budget_gib));
            let (format, fits) = (&of_format[0].format, fits.collect::<Vec<_>>().join(" or "));
            let _ = writeln!(text, "Workers that hold every {format} expert once: {fits}.");
        }
        let _ = writeln!(text, "{}", self.wire.text());
        text
    }
}

/// A packed block in a worker's memory: every slot is as large as the largest block.
struct PackedBlock {
    format: String,
    bytes: u64,
}

/// The block formats that workers may hold the experts of `model` in.
fn packed(model: &Model) -> anyhow::Result<Vec<PackedBlock>> {
    let packings = match Packing::or_default(None, model) {
        Packing::Native => vec![Packing::Native],
        Packing::To(_) => PACKINGS.to_vec(),
    };
    let block = |packing: Packing| {
        let mut formats = Vec::new();
        let mut bytes = 0;
        for layer in model.spec().sparse_layers() {
            let shape = packing.shape(model, layer).map_err(anyhow::Error::msg)?;
            bytes = bytes.max(shape.block_bytes() as u64);
            let format = shape.format.to_string();
            if !formats.contains(&format) {
                formats.push(format);
            }
        }
        Ok(PackedBlock { format: formats.join(", "), bytes: bytes.max(1) })
    };
    packings.into_iter().map(block).collect()
}

impl Share {
    fn of(block: &PackedBlock, n_blocks: usize, workers: usize, replicas: usize) -> Self {
        let blocks = (n_blocks * replicas).div_ceil(workers);
        Self { workers, replicas, format: block.format.clone(), blocks, bytes: blocks as u64 * block.bytes }
    }
}

impl Fit {
    fn of(block: &PackedBlock, n_blocks: usize, budget_gib: u64) -> Self {
        let held_by_one = ((budget_gib << 30) / block.bytes).max(1);
        Self { format: block.format.clone(), budget_gib, workers: (n_blocks as u64).div_ceil(held_by_one) }
    }
}

/// Formats bytes in a fitting unit.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use moex_kernels::ExpertShape;

    use super::*;
    use moex_model::ModelSpec;

    fn info(counts: &[usize]) -> Info {
        let checkpoint = Checkpoint::demo().unwrap();
        let model = Model::load(&checkpoint).unwrap();
        Info::of(&checkpoint, &model, &Compute::Exact, counts, 2, None).unwrap()
    }

    #[test]
    fn the_demo_models_parts_are_its_whole() {
        let info = info(&[1]);
        assert_eq!(info.expert_parameters, 4 * 16 * 3 * 256 * 128);
        assert_eq!(info.hub.expert_bytes, 2 * info.expert_parameters);
        // Norms are not counted with the hub's matrices: 256 for each of 9, 64 for each of 8, in bf16.
        let norms = 2 * (9 * 256 + 8 * 64);
        assert_eq!(info.hub.shared_bytes + info.hub.expert_bytes + norms, info.checkpoint_bytes);
        assert_eq!(info.hub.kv_position_bytes, 2 * 4 * 128 * 4);
    }

    #[test]
    fn windows_bound_what_a_long_context_takes() {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/families/gemma3");
        let checkpoint = Checkpoint::open(data.as_ref()).unwrap();
        let model = Model::load(&checkpoint).unwrap();
        let windowed = Info::of(&checkpoint, &model, &Compute::Exact, &[1], 2, None).unwrap();
        let Info { hub, .. } = &windowed;
        // A key and a value of 32 floats in each of six layers, five of them with windows of 12.
        assert_eq!((hub.kv_position_bytes, hub.kv_lasting_position_bytes), (6 * 256, 256));
        // With a step of 32 rows, windows reach into three blocks of 32 at most.
        assert_eq!(hub.kv_context_bytes, 256 * (4096 + 5 * 3 * 32));
        assert!(windowed.text().contains("1.5 KiB of KV cache per token (256 B once 12 tokens follow it)"));
        assert!(!info(&[1]).text().contains("follow it"), "the demo model has no windows");
    }

    #[test]
    fn workers_share_the_blocks() {
        let info = info(&[1, 4]);
        let int4 =
            |workers| info.workers.iter().find(|s| s.workers == workers && s.format == "int4").unwrap();
        assert_eq!((int4(1).replicas, int4(1).blocks), (1, 64), "one worker holds one replica");
        assert_eq!((int4(4).replicas, int4(4).blocks), (2, 32));
        let block = (3 * 256 * 128 / 2 + 3 * 256 * 128 / 128 * 2) as u64;
        assert_eq!(int4(4).bytes, 32 * block);
        assert!(info.fits.iter().all(|fit| fit.workers == 1), "it fits anywhere");
        assert!(info.text().contains("moex-demo: 4 layers (4 with 16 experts, 4 of them per token)"));
    }

    #[test]
    fn qwen3_30b_a3b_is_what_its_readers_expect() {
        let json = r#"{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}"#;
        let spec = ModelSpec::from_json(json.as_bytes()).unwrap();
        let shape = ExpertShape::uniform(spec.hidden, spec.moe.inner, WeightFormat::Int4G128);
        let block = PackedBlock { format: "int4".to_owned(), bytes: shape.block_bytes() as u64 };
        let share = Share::of(&block, 48 * 128, 16, 2);
        assert_eq!(share.blocks, 768);
        assert!((share.bytes as f64 / 1e9 - 1.87).abs() < 0.01, "{}", share.bytes);
        assert_eq!(Fit::of(&block, 48 * 128, 4).workers, 4);
        let wire = Wire::of((spec.hidden, spec.moe.inner), 48 * spec.moe.n_chosen, ActivationFormat::Int8);
        // Of a layer's eight experts 56 KiB, as its messages have beside some headers; 32 KiB with audit.
        assert_eq!((wire.checked_bytes, wire.audit_bytes), (48 * (56 << 10), 48 * (32 << 10)));
        let text = wire.text();
        assert!(text.contains("2.6 MiB") && text.contains("takes 45 of them"), "{text}");
        assert!(text.contains("behind 300 Mbit/s 13 (`--verify audit`: 1.5 MiB, 79 and 23)"), "{text}");
    }

    #[test]
    fn sizes_read_well() {
        let sizes = [7, 2048, 5 << 20, 3 << 30].map(size);
        assert_eq!(sizes, ["7 B", "2.0 KiB", "5.0 MiB", "3.00 GiB"]);
    }
}
