//! The forward pass against what transformers computed in f32 from the same checkpoint, and what broken checkpoints say.

use std::{fs, path::PathBuf, sync::Arc};

use moex_kernels::{
    graph::{self, Op, Pause},
    nmse,
};
use safetensors::SafeTensors;
use serde::Deserialize;
use tempfile::TempDir;

use super::{local_experts::LocalExperts, *};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-qwen3-moe");

/// Row a of what a local f32 run must show.
const MAX_NMSE: f64 = 1e-9;

/// The tensors of a reference file.
pub(super) struct Reference(Vec<u8>);

impl Reference {
    pub(super) fn read(path: &str) -> Self {
        Self(fs::read(path).unwrap())
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap().data().to_vec()
    }

    pub(super) fn f32(&self, name: &str) -> Vec<f32> {
        self.bytes(name).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    pub(super) fn i32(&self, name: &str) -> Vec<i32> {
        self.bytes(name).as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect()
    }

    fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).is_ok()
    }

    /// Asserts that a layer's router choices are those of the reference, if it has any of that layer.
    pub(super) fn assert_choices(&self, layer: usize, routing: &Routing) {
        let name = format!("layer{layer}.topk_indices");
        assert!(self.has(&name));
        let chosen: Vec<i32> = routing.experts.iter().map(|expert| i32::from(*expert)).collect();
        assert_eq!(chosen, self.i32(&name), "router choices of layer {layer}");
    }
}

/// Experts that remember what they were asked.
pub(super) struct Recorded<E> {
    pub(super) experts: E,
    pub(super) asked: Vec<(usize, Routing)>,
}

impl<E: Experts> Experts for Recorded<E> {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        self.asked.push((asked.layer, asked.routing.clone()));
        self.experts.begin(asked, sum)
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        self.experts.finish(ticket, sum)
    }

    fn max_in_flight(&self) -> usize {
        self.experts.max_in_flight()
    }
}

/// All logits (T, V) of `ids` in one step, and every routing.
pub(super) fn all_logits(model: &Arc<Model>, ids: &[u32]) -> (Vec<f32>, Vec<(usize, Routing)>) {
    let mut kv = model.kv_pool(usize::MAX, 1);
    let mut table = KvTable::default();
    assert!(kv.reserve(&mut table, ids.len()));
    let mut experts = Recorded { experts: LocalExperts::of_checkpoint(model.clone()), asked: Vec::new() };
    let span = Span { ids, start: 0, table: &table, wanted: WantedLogits::All };
    let logits = model.forward(&[span], &mut kv, &mut experts).unwrap();
    (logits, experts.asked)
}

pub(super) fn load(folder: &str) -> Arc<Model> {
    Arc::new(Model::load(&Checkpoint::open(folder.as_ref()).unwrap()).unwrap())
}

fn input_ids(reference: &Reference) -> Vec<u32> {
    reference.bytes("input_ids").as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()
}

#[test]
fn logits_and_router_choices_are_transformers() {
    let reference = Reference::read(&format!("{TINY}/reference/reference.safetensors"));
    let ids = input_ids(&reference);
    for folder in [TINY.to_owned(), format!("{TINY}/sharded")] {
        let (logits, asked) = all_logits(&load(&folder), &ids);
        let error = nmse(&logits, &reference.f32("logits"));
        assert!(error <= MAX_NMSE, "{folder}: NMSE {error:e}");
        assert_eq!(asked.len(), 2);
        for (layer, routing) in &asked {
            reference.assert_choices(*layer, routing);
            let gates = reference.f32(&format!("layer{layer}.topk_weights"));
            assert!(nmse(&routing.gates, &gates) <= MAX_NMSE);
        }
    }
}

#[test]
fn hidden_states_are_transformers() {
    let reference = Reference::read(&format!("{TINY}/reference/reference.safetensors"));
    let assert_near = |name: &str, values: &[f32]| {
        let error = nmse(values, &reference.f32(name));
        assert!(error <= MAX_NMSE, "{name}: NMSE {error:e}");
    };
    let (model, ids) = (load(TINY), input_ids(&reference));
    let mut kv = model.kv_pool(usize::MAX, 1);
    let mut table = KvTable::default();
    assert!(kv.reserve(&mut table, ids.len()));
    let spans = [Span { ids: &ids, start: 0, table: &table, wanted: WantedLogits::All }];
    let mut experts = LocalExperts::of_checkpoint(model.clone());

    let (program, mut space) = (model.program(), graph::Workspace::default());
    program.begin(&spans, &mut space);
    let (mut layer, mut residual, mut n_looked_at) = (0, None, 0);
    loop {
        let op = program.ops().get(space.next_op());
        match program.run_next(&spans, &mut kv, &mut space).unwrap() {
            Some(Pause::Done) => break,
            Some(Pause::Experts(wanted)) => {
                let call = program.experts(&mut space, wanted);
                let (experts_of_rows, gates) = (call.experts.to_vec(), call.gates.to_vec());
                let routing = Routing { k: call.n_chosen, experts: experts_of_rows, gates };
                let asked = LayerRequest { layer: wanted.layer, rows: call.rows, routing: &routing };
                experts.apply_into(asked, call.sum).unwrap();
                assert_near(&format!("layer{layer}.moe_out"), call.sum);
            }
            None => {}
        }
        let (name, tensor) = match op {
            Some(Op::Embed { out, .. }) => ("embed_out".to_owned(), *out),
            Some(Op::Linear { projection, .. })
                if program.graph().tensor(projection.out).name == "o_proj" =>
            {
                (format!("layer{layer}.attn_out"), projection.out)
            }
            Some(Op::Add { x, .. }) => {
                residual = Some(*x);
                continue;
            }
            Some(Op::Done(Stage::Experts)) => {
                layer += 1;
                (format!("layer{}.out", layer - 1), residual.unwrap())
            }
            _ => continue,
        };
        assert_near(&name, program.tensor(tensor, &mut space));
        n_looked_at += 1;
    }
    assert_near("logits", program.logits(&mut space));
    assert_eq!(n_looked_at, 1 + 2 * model.spec().layers.len());
}

#[derive(Deserialize)]
struct Greedy {
    greedy: Vec<Continuation>,
}

#[derive(Deserialize)]
struct Continuation {
    prompt_ids: Vec<u32>,
    greedy_ids_ignore_eos: Vec<u32>,
}

#[test]
fn greedy_continuations_are_transformers() {
    let json = fs::read(format!("{TINY}/reference/reference.json")).unwrap();
    let reference: Greedy = serde_json::from_slice(&json).unwrap();
    assert_eq!(reference.greedy.len(), 3);
    let model = load(TINY);
    for continuation in reference.greedy {
        let mut experts = LocalExperts::of_checkpoint(model.clone());
        let mut kv = model.kv_pool(usize::MAX, 1);
        let mut table = KvTable::default();
        let (mut ids, mut cached) = (continuation.prompt_ids.clone(), 0);
        for _ in &continuation.greedy_ids_ignore_eos {
            assert!(kv.reserve(&mut table, ids.len()));
            let span = Span { ids: &ids[cached..], start: cached, table: &table, wanted: WantedLogits::Last };
            let logits = model.forward(&[span], &mut kv, &mut experts).unwrap();
            cached = ids.len();
            ids.push((0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0);
        }
        assert_eq!(ids[continuation.prompt_ids.len()..], continuation.greedy_ids_ignore_eos);
    }
}

#[test]
fn rows_are_the_same_bits_in_any_step() {
    let model = load(TINY);
    let ids: Vec<u32> = (0..70).map(|i| i * 37 % 480).collect();
    let (whole, _) = all_logits(&model, &ids);
    let vocab = model.spec().vocab;

    // In chunks that cross pages, beside another sequence in the same steps.
    let mut experts = LocalExperts::of_checkpoint(model.clone());
    let mut kv = model.kv_pool(usize::MAX, 2);
    let (mut a, mut b) = (KvTable::default(), KvTable::default());
    let mut rows = Vec::new();
    let mut start = 0;
    for n in [1, 30, 7, 32] {
        assert!(kv.reserve(&mut a, start + n) && kv.reserve(&mut b, start + n));
        let others: Vec<u32> = ids[start..][..n].iter().map(|id| (id + 5) % 480).collect();
        let spans = [
            Span { ids: &others, start, table: &b, wanted: WantedLogits::Nothing },
            Span { ids: &ids[start..][..n], start, table: &a, wanted: WantedLogits::All },
        ];
        rows.extend(model.forward(&spans, &mut kv, &mut experts).unwrap());
        start += n;
    }
    assert_eq!(rows.len(), 70 * vocab);
    assert!(rows == whole, "bits");

    assert!(kv.reserve(&mut a, 71));
    let span = [Span { ids: &[3], start: 70, table: &a, wanted: WantedLogits::Nothing }];
    assert!(model.forward(&span, &mut kv, &mut experts).unwrap().is_empty());
}

#[test]
fn a_token_beyond_the_vocabulary_is_an_error() {
    let model = load(TINY);
    let mut kv = model.kv_pool(usize::MAX, 1);
    let mut table = KvTable::default();
    assert!(kv.reserve(&mut table, 1));
    let span = Span { ids: &[512], start: 0, table: &table, wanted: WantedLogits::Last };
    let error = model.forward(&[span], &mut kv, &mut LocalExperts::of_checkpoint(model.clone())).unwrap_err();
    assert_eq!(error.to_string(), "token 512 is not in a vocabulary of 512");
}

/// A copy of a folder's files that a test may break.
fn copy_of(folder: &str) -> (TempDir, PathBuf) {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    let path = copy.path().to_owned();
    (copy, path)
}

fn sentence(folder: &std::path::Path) -> String {
    match Checkpoint::open(folder).and_then(|checkpoint| Model::load(&checkpoint)) {
        Ok(_) => panic!("a broken model was loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn transformers_5_config_gives_the_same_logits() {
    let (_keep, folder) = copy_of(TINY);
    fs::rename(folder.join("config.transformers5.json"), folder.join("config.json")).unwrap();
    let ids = [481, 251, 223];
    assert_eq!(all_logits(&load(folder.to_str().unwrap()), &ids).0, all_logits(&load(TINY), &ids).0);
}

#[test]
fn a_missing_shard_is_named_with_its_tensor() {
    let (_keep, folder) = copy_of(&format!("{TINY}/sharded"));
    fs::remove_file(folder.join("model-00002-of-00003.safetensors")).unwrap();
    let expected = "shard model-00002-of-00003.safetensors is missing: \
                    it holds model.layers.0.mlp.experts.4.down_proj.weight";
    assert_eq!(sentence(&folder), expected);
}

#[test]
fn a_truncated_shard_is_named_with_its_tensor() {
    let (_keep, folder) = copy_of(&format!("{TINY}/sharded"));
    let shard = folder.join("model-00001-of-00003.safetensors");
    let whole = fs::read(&shard).unwrap();
    // The last tensor loses its last byte; then half the file is gone; then all but a piece of the header.
    for len in [whole.len() - 1, whole.len() / 2, 100, 5, 0] {
        fs::write(&shard, &whole[..len]).unwrap();
        let sentence = sentence(&folder);
        assert!(
            sentence.starts_with("shard model-00001-of-00003.safetensors is truncated: model."),
            "{sentence}"
        );
        assert!(sentence.ends_with(&format!("the file at byte {len}")), "{sentence}");
    }
}

#[test]
fn files_that_are_no_checkpoint_are_one_sentence() {
    let (_keep, folder) = copy_of(TINY);
    let shard = folder.join("model.safetensors");
    let whole = fs::read(&shard).unwrap();

    fs::write(&shard, [255; 64]).unwrap();
    assert!(sentence(&folder).starts_with("model.safetensors: not a safetensors file"));

    let header = usize::from(whole[0]) + 256 * usize::from(whole[1]);
    let rewritten = |from: &str, to: &str| {
        let text = String::from_utf8(whole[8..8 + header].to_vec()).unwrap().replacen(from, to, 1);
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.extend(&whole[8 + header..]);
        bytes
    };
    fs::write(&shard, rewritten("model.norm.weight", "model.another.weight")).unwrap();
    assert_eq!(sentence(&folder), "no shard holds the tensor model.norm.weight");
    fs::write(&shard, rewritten("\"shape\":[512,64]", "\"shape\":[64,512]")).unwrap();
    assert!(
        sentence(&folder).ends_with("in model.safetensors is [64, 512], but the config requires [512, 64]")
    );
    fs::write(&shard, rewritten("\"dtype\":\"BF16\"", "\"dtype\":\"I16\"")).unwrap();
    assert!(sentence(&folder).ends_with("is I16: only f32, f16 and bf16 are supported"));

    fs::remove_file(&shard).unwrap();
    assert!(sentence(&folder).ends_with("it has no model.safetensors"));
    fs::write(folder.join("config.json"), r#"{"model_type": "mamba"}"#).unwrap();
    assert!(
        sentence(&folder)
            .contains("config.json: its model_type is \"mamba\", but moex supports only qwen3_moe")
    );
    fs::remove_file(folder.join("config.json")).unwrap();
    assert!(sentence(&folder).ends_with("is not a model folder: it has no config.json"));
    assert!(sentence(&folder.join("nowhere")).ends_with("it has no config.json"));
}

#[test]
fn an_index_cannot_read_outside_its_folder() {
    let (_keep, folder) = copy_of(&format!("{TINY}/sharded"));
    let index = folder.join("model.safetensors.index.json");
    for file in ["../model.safetensors", "/etc/hostname", "..", ""] {
        fs::write(&index, serde_json::json!({"weight_map": {"lm_head.weight": file}}).to_string()).unwrap();
        assert!(sentence(&folder).contains("which is not a file name"), "{file}");
    }
    fs::write(&index, "{}").unwrap();
    assert!(sentence(&folder).starts_with("model.safetensors.index.json: not an index"));
}
