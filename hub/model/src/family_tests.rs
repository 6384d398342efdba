//! Every family against transformers' logits on a small random checkpoint of it (`tests/data/families`, whose README says
//! what each exercises), by both forms of its config.

use std::{fs, path::Path, sync::Arc};

use moex_kernels::{
    nmse,
    simd::{KvFormat, Processor, Simd},
};
use tempfile::TempDir;

use super::{
    local_experts::{ExpertPanels, LocalExperts},
    reference_tests::{Recorded, Reference},
    *,
};

const FAMILIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/families");

/// Tokens of each of the two sequences.
const LENGTH: usize = 48;

/// The family's folder with one form of its config.
fn folder(family: &str, config: &str) -> TempDir {
    let (from, to) = (Path::new(FAMILIES).join(family), tempfile::tempdir().unwrap());
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(from.join(file), to.path().join(file)).unwrap();
    }
    fs::copy(from.join(config), to.path().join("config.json")).unwrap();
    to
}

/// All logits (T, V) of a sequence read in `chunks`, and every routing.
fn run(model: &Model, experts: &mut dyn Experts, ids: &[u32], chunks: usize) -> Vec<f32> {
    let mut kv = model.kv_pool(usize::MAX, 1);
    let mut table = KvTable::default();
    let mut logits = Vec::new();
    for (index, chunk) in ids.chunks(ids.len().div_ceil(chunks)).enumerate() {
        let start = index * ids.len().div_ceil(chunks);
        assert!(kv.reserve(&mut table, start + chunk.len()));
        let span = Span { ids: chunk, start, table: &table, wanted: WantedLogits::All };
        logits.extend(model.forward(&[span], &mut kv, experts).unwrap());
    }
    logits
}

/// Checks one family by both configs: logits of both sequences, and the router's choices.
fn check(family: &str) {
    let reference = Reference::read(&format!("{FAMILIES}/{family}/expected.safetensors"));
    let ids: Vec<u32> = reference.i32("input_ids").iter().map(|id| *id as u32).collect();
    let expected = reference.f32("logits");
    for config in ["config.json", "config.transformers5.json"] {
        let folder = folder(family, config);
        let model = Arc::new(Model::load(&Checkpoint::open(folder.path()).unwrap()).unwrap());
        let vocab = model.spec().vocab;
        for (sequence, expected) in expected.chunks_exact(LENGTH * vocab).enumerate() {
            let ids = &ids[sequence * LENGTH..][..LENGTH];
            let mut experts =
                Recorded { experts: LocalExperts::of_checkpoint(model.clone()), asked: Vec::new() };
            let logits = run(&model, &mut experts, ids, 1);
            for (row, (ours, expected)) in logits.chunks(vocab).zip(expected.chunks(vocab)).enumerate() {
                let error = nmse(ours, expected);
                // f32 in another order of additions.
                assert!(error <= 1e-9, "{family} by {config}, row {row}: NMSE {error:e}");
            }
            let asked: Vec<usize> = experts.asked.iter().map(|(layer, _)| *layer).collect();
            assert_eq!(asked, model.spec().sparse_layers().collect::<Vec<_>>());
            for (layer, routing) in &experts.asked {
                let n = LENGTH * routing.k;
                let chosen = &reference.i32(&format!("layer{layer}.topk_indices"))[sequence * n..][..n];
                let ours: Vec<i32> = routing.experts.iter().map(|expert| i32::from(*expert)).collect();
                assert_eq!(ours, chosen, "{family}: router choices of layer {layer}");
                let gates = &reference.f32(&format!("layer{layer}.topk_weights"))[sequence * n..][..n];
                assert!(nmse(&routing.gates, gates) <= 1e-9, "{family}: gates of layer {layer}");
            }
            let mut experts = LocalExperts::of_checkpoint(model.clone());
            assert_eq!(run(&model, &mut experts, ids, 7), logits, "{family}: chunks change no bit");
        }
    }
    for kv in [KvFormat::F32, KvFormat::Q8_0] {
        int8_is_near(family, kv, &expected, &ids);
    }
}

/// With int8 activations, on rows whose routers chose as the reference's did.
fn int8_is_near(family: &str, kv: KvFormat, expected: &[f32], ids: &[u32]) {
    let reference = Reference::read(&format!("{FAMILIES}/{family}/expected.safetensors"));
    let folder = folder(family, "config.json");
    let processor = Arc::new(Processor::new(Simd::detect(), 2));
    let weights = FloatWeights::Native;
    let compute = Compute::Fast(Fast { processor: processor.clone(), weights, kv });
    let model = Arc::new(Model::load_for(&Checkpoint::open(folder.path()).unwrap(), &compute).unwrap());
    let panels = Arc::new(ExpertPanels::new(model.clone(), processor, Keep::All).unwrap());
    let mut experts =
        Recorded { experts: LocalExperts::from_panels(panels, moex_protocol::Dtype::F16), asked: Vec::new() };
    let vocab = model.spec().vocab;
    let logits = run(&model, &mut experts, &ids[..LENGTH], 1);
    // With weights of four bits, rows of int8 show in models so narrow: of all rows together, then, and of none by far.
    let is_quantised = model.spec().sparse_layers().any(|layer| model.experts(layer)[0].is_quantised());
    let most = if is_quantised { 5e-3 } else { 1e-3 };
    // Keys and values of eight bits are two roundings more, and show in single rows of models so narrow: bounded are all
    // rows together, by three roundings.
    let (most, most_of_all) = if kv == KvFormat::Q8_0 { (f64::INFINITY, 3e-3) } else { (most, 1e-3) };
    let (mut alike, mut all, mut all_expected) = (0, Vec::new(), Vec::new());
    for (row, (ours, expected)) in logits.chunks(vocab).zip(expected.chunks(vocab)).enumerate() {
        let same = experts.asked.iter().all(|(layer, routing)| {
            let chosen = reference.i32(&format!("layer{layer}.topk_indices"));
            let of_row = row * routing.k..(row + 1) * routing.k;
            let mut ours: Vec<i32> = routing.experts[of_row.clone()].iter().map(|e| i32::from(*e)).collect();
            let mut theirs = chosen[of_row].to_vec();
            ours.sort_unstable();
            theirs.sort_unstable();
            ours == theirs
        });
        if same {
            alike += 1;
            let error = nmse(ours, expected);
            assert!(error <= most, "{family} in int8, {kv}, row {row}: NMSE {error:e}");
            all.extend_from_slice(ours);
            all_expected.extend_from_slice(expected);
        }
    }
    assert!(alike * 2 > LENGTH, "{family} in {kv}: {alike} rows routed alike");
    assert!(
        nmse(&all, &all_expected) <= most_of_all,
        "{family} in int8, {kv}: NMSE {:e}",
        nmse(&all, &all_expected)
    );
}

#[test]
fn mixtral() {
    check("mixtral");
}

#[test]
fn qwen2_moe() {
    check("qwen2-moe");
}

#[test]
fn olmoe() {
    check("olmoe");
}

#[test]
fn deepseek_v3() {
    check("deepseek-v3");
}

#[test]
fn dense_qwen3() {
    check("qwen3");
}

#[test]
fn llama() {
    check("llama");
}

#[test]
fn gemma2() {
    check("gemma2");
}

#[test]
fn gemma3() {
    check("gemma3");
}

#[test]
fn gpt_oss() {
    check("gpt-oss");
}

#[test]
fn gpt_oss_as_published_in_mxfp4() {
    check("gpt-oss-mxfp4");
}

#[test]
fn qwen3_next() {
    check("qwen3-next");
}
