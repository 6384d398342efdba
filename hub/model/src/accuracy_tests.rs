//! What int8 activations cost a whole model, in every format: the logits of the vector kernels against the oracle's, whose
//! own are transformers' (`reference_tests`).

use std::sync::Arc;

use moex_kernels::{
    WeightFormat, nmse,
    simd::{KvFormat, Processor, Simd},
};
use moex_protocol::Dtype;
use serde::Deserialize;

use super::{
    gguf_tests::{matrices, through_gguf},
    local_experts::{ExpertPanels, ExpertSource, LocalExperts, MemoryBlocks},
    *,
};

/// Of all logits of a text, those rows among them whose router chose otherwise.
const MOST: f64 = 1e-3;

#[derive(Deserialize)]
struct Case {
    prompt_ids: Vec<u32>,
    reference_ids: Vec<u32>,
}

/// Conversations that the demo model was trained for, one after the other.
fn conversations() -> Vec<u32> {
    let file = include_str!("../../../tests/data/demo-cases.jsonl");
    let cases = file.lines().step_by(37).map(|line| serde_json::from_str::<Case>(line).unwrap());
    cases.flat_map(|case| [case.prompt_ids, case.reference_ids].concat()).take(400).collect()
}

/// All logits (T, V) of the conversations.
fn logits(model: &Model, experts: &mut dyn Experts) -> Vec<f32> {
    let ids = conversations();
    let mut kv = model.kv_pool(usize::MAX, 1);
    let mut table = KvTable::default();
    assert!(kv.reserve(&mut table, ids.len()));
    let span = Span { ids: &ids, start: 0, table: &table, wanted: WantedLogits::All };
    model.forward(&[span], &mut kv, experts).unwrap()
}

fn oracle(checkpoint: &Checkpoint) -> Arc<Model> {
    Arc::new(Model::load(checkpoint).unwrap())
}

fn fast(checkpoint: &Checkpoint) -> (Arc<Model>, Arc<Processor>) {
    fast_with_kv(checkpoint, KvFormat::F16)
}

fn fast_with_kv(checkpoint: &Checkpoint, kv: KvFormat) -> (Arc<Model>, Arc<Processor>) {
    let processor = Arc::new(Processor::new(Simd::detect(), 2));
    let compute = Compute::Fast(Fast { processor: processor.clone(), weights: FloatWeights::Native, kv });
    (Arc::new(Model::load_for(checkpoint, &compute).unwrap()), processor)
}

fn panels(source: impl ExpertSource + 'static, processor: Arc<Processor>) -> LocalExperts {
    LocalExperts::from_panels(Arc::new(ExpertPanels::new(source, processor, Keep::All).unwrap()), Dtype::F16)
}

fn assert_near(ours: &[f32], exact: &[f32], what: &str) {
    let error = nmse(ours, exact);
    assert!(error <= MOST, "{what}: NMSE {error:e}");
    assert!(error > 1e-6, "{what}: int8 activations must show, NMSE {error:e}");
}

#[test]
fn int8_activations_cost_a_gguf_of_any_format_less_than_a_thousandth() {
    use WeightFormat::*;
    let demo = Checkpoint::demo().unwrap();
    // Blocks of 256 need rows of that: F of the demo model is 128, and there the format is the one that llama.cpp takes.
    for (format, down) in [
        (Q8_0, Q8_0),
        (Q4_0, Q4_0),
        (Q4_1, Q4_1),
        (Q5_0, Q5_0),
        (Q5_1, Q5_1),
        (Q4K, Q5_0),
        (Q5K, Q5_1),
        (Q6K, Q8_0),
        (Mxfp4, Mxfp4),
        (Iq4Nl, Iq4Nl),
        (Iq4Xs, Iq4Nl),
        (Q2K, Q4_0),
        (Q3K, Q4_0),
    ] {
        let (_keep, checkpoint) = through_gguf(&demo, |tensor| match tensor.name.contains("ffn_down_exps") {
            true => down,
            false => matrices(format)(tensor),
        });
        let model = oracle(&checkpoint);
        let exact = logits(&model, &mut LocalExperts::of_checkpoint(model.clone()));
        let (model, processor) = fast(&checkpoint);
        let ours = logits(&model, &mut panels(model.clone(), processor));
        assert_near(&ours, &exact, format.name());
    }
}

#[test]
fn int8_activations_cost_experts_in_int4_less_than_a_thousandth() {
    let demo = Checkpoint::demo().unwrap();
    for format in [WeightFormat::Int4G128, WeightFormat::Int4ZpG128] {
        let blocks = |model: &Arc<Model>| MemoryBlocks::new(model.clone(), Packing::To(format.into()));
        let model = oracle(&demo);
        let exact = logits(&model, &mut LocalExperts::exact(blocks(&model), Dtype::F16));
        let (model, processor) = fast(&demo);
        let ours = logits(&model, &mut panels(blocks(&model), processor));
        assert_near(&ours, &exact, format.name());
    }
}

/// On top of f32 keys and values, everything else alike. q8_0 rounds a number to 1/254 of the largest of its 32: noise of
/// some 1e-5 of their power, which 4 layers of attention pass on and later rows read again.
#[test]
fn keys_and_values_in_q8_0_cost_a_tenth_of_what_int8_activations_may() {
    let demo = Checkpoint::demo().unwrap();
    let of = |kv| {
        let (model, processor) = fast_with_kv(&demo, kv);
        logits(&model, &mut panels(model.clone(), processor))
    };
    let f32 = of(KvFormat::F32);
    let [f16, q8_0] = [KvFormat::F16, KvFormat::Q8_0].map(|kv| nmse(&of(kv), &f32));
    assert!(q8_0 <= MOST / 10.0, "NMSE {q8_0:e}");
    assert!(0.0 < f16 && f16 < q8_0, "NMSE {f16:e} in f16, {q8_0:e} in q8_0");
}
