//! The vector kernels' forward pass against the oracle, and against itself in any batch.

use std::sync::Arc;

use moex_kernels::{
    WeightFormat, nmse,
    simd::{KvFormat, Processor, Simd},
};
use moex_protocol::Dtype;

use super::{
    gguf_tests::mixed_tiny,
    local_experts::{ExpertPanels, LocalExperts, MemoryBlocks},
    reference_tests::all_logits,
    *,
};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-qwen3-moe");

fn load(simd: Simd, n_threads: usize, weights: Option<WeightFormat>, kv: KvFormat) -> Arc<Model> {
    load_from(&Checkpoint::open(TINY.as_ref()).unwrap(), simd, n_threads, weights, kv)
}

fn load_from(
    checkpoint: &Checkpoint,
    simd: Simd,
    n_threads: usize,
    weights: Option<WeightFormat>,
    kv: KvFormat,
) -> Arc<Model> {
    let processor = Arc::new(Processor::new(simd, n_threads));
    let weights = weights.map_or(FloatWeights::Native, FloatWeights::To);
    let compute = Compute::Fast(Fast { processor, weights, kv });
    Arc::new(Model::load_for(checkpoint, &compute).unwrap())
}

fn experts(model: &Arc<Model>, format: Option<WeightFormat>, keep: Keep) -> LocalExperts {
    experts_packed(model, format.map(|format| Packing::To(format.into())), keep)
}

/// The checkpoint's own, or what workers hold.
fn experts_packed(model: &Arc<Model>, packing: Option<Packing>, keep: Keep) -> LocalExperts {
    let Compute::Fast(fast) = model.compute() else { panic!("a model of the vector kernels") };
    let processor = fast.processor.clone();
    let panels = match packing {
        Some(packing) => {
            let blocks = MemoryBlocks::new(model.clone(), packing);
            ExpertPanels::new(blocks, processor, keep)
        }
        None => ExpertPanels::new(model.clone(), processor, keep),
    };
    LocalExperts::from_panels(Arc::new(panels.unwrap()), Dtype::F16)
}

fn ids() -> Vec<u32> {
    (0..70).map(|i| i * 37 % 480).collect()
}

/// All logits, in steps of the given lengths.
fn logits(model: &Arc<Model>, experts: &mut LocalExperts, steps: &[usize]) -> Vec<f32> {
    let mut kv = model.kv_pool(usize::MAX, 1);
    let (mut table, mut space) = (KvTable::default(), Workspace::default());
    let (ids, mut rows, mut start) = (ids(), Vec::new(), 0);
    for n in steps {
        assert!(kv.reserve(&mut table, start + n));
        let span = Span { ids: &ids[start..][..*n], start, table: &table, wanted: WantedLogits::All };
        rows.extend_from_slice(model.step(&[span], &mut kv, experts, &mut space).unwrap());
        start += n;
    }
    rows
}

#[test]
fn floats_are_near_the_oracle_and_rounded_weights_are_what_their_bits_cost() {
    let oracle = Arc::new(Model::load(&Checkpoint::open(TINY.as_ref()).unwrap()).unwrap());
    let (exact, _) = all_logits(&oracle, &ids());
    // The wire's f16 is all that is lost, and f16 keys and values; then weights and activations of eight bits, and keys and
    // values of as many.
    for (weights, experts_format, kv, most) in [
        (None, None, KvFormat::F32, 1e-4),
        (None, None, KvFormat::F16, 1e-4),
        (Some(WeightFormat::Q8_0), Some(WeightFormat::Q8_0), KvFormat::F16, 1e-3),
        (Some(WeightFormat::Q8_0), Some(WeightFormat::Q8_0), KvFormat::Q8_0, 1e-3),
    ] {
        let model = load(Simd::detect(), 2, weights, kv);
        let ours = logits(&model, &mut experts(&model, experts_format, Keep::All), &[70]);
        // Row by row: a row whose router chose otherwise is another row.
        let vocab = model.spec().vocab;
        let mut errors: Vec<f64> =
            ours.chunks(vocab).zip(exact.chunks(vocab)).map(|(ours, exact)| nmse(ours, exact)).collect();
        errors.sort_by(f64::total_cmp);
        assert!(errors[35] < most, "{weights:?} {kv}: NMSE {:e} at the median", errors[35]);
        assert!(errors[69] > 0.0, "{weights:?} {kv} must show");
    }
}

#[test]
fn rows_are_the_same_bits_in_any_step_on_any_instructions_and_threads() {
    for (format, kv) in
        [(None, KvFormat::F16), (Some(WeightFormat::Int4G128), KvFormat::F16), (None, KvFormat::Q8_0)]
    {
        let mut expected: Option<Vec<u32>> = None;
        for simd in Simd::available() {
            for (n_threads, keep) in [(1, Keep::None), (3, Keep::All)] {
                let model = load(simd, n_threads, format, kv);
                let mut experts = experts(&model, format, keep);
                for steps in [[70, 0, 0, 0], [1, 30, 7, 32]] {
                    let steps: Vec<usize> = steps.into_iter().filter(|n| *n > 0).collect();
                    let logits = logits(&model, &mut experts, &steps);
                    let bits: Vec<u32> = logits.iter().map(|x| x.to_bits()).collect();
                    assert!(
                        *expected.get_or_insert_with(|| bits.clone()) == bits,
                        "{simd} {n_threads} {steps:?} {kv}"
                    );
                }
            }
        }
    }
}

#[test]
fn formats_that_differ_between_layers_and_matrices_are_near_the_oracle() {
    let checkpoint = mixed_tiny();
    let (exact, _) = all_logits(&Arc::new(Model::load(&checkpoint).unwrap()), &ids());
    let model = load_from(&checkpoint, Simd::detect(), 2, None, KvFormat::F16);
    let own = logits(&model, &mut experts_packed(&model, None, Keep::All), &[70]);
    for keep in [Keep::All, Keep::None] {
        // Workers hold them as they are, so that their bits are the hub's.
        let mut packed = experts_packed(&model, Some(Packing::Native), keep);
        assert!(logits(&model, &mut packed, &[1, 69]) == own, "{keep:?}");
    }
    let vocab = model.spec().vocab;
    let mut errors: Vec<f64> =
        own.chunks(vocab).zip(exact.chunks(vocab)).map(|(ours, exact)| nmse(ours, exact)).collect();
    errors.sort_by(f64::total_cmp);
    // Only the experts' weights are integers here: a row whose router chose otherwise is another row.
    assert!(errors[35] < 1e-3, "NMSE {:e} at the median", errors[35]);
    assert!(errors[0] > 0.0, "int8 activations must show");
}

#[test]
fn an_expert_that_is_not_there_is_an_error() {
    let model = load(Simd::detect(), 1, None, KvFormat::F32);
    let routing = Routing { k: 1, experts: vec![99], gates: vec![1.0] };
    let error = experts(&model, None, Keep::All).apply(0, &[0.0; 64], &routing).unwrap_err();
    assert_eq!(error.to_string(), "expert 99 of layer 0 cannot be read: the model has no such expert");
    let routing = Routing { k: 1, experts: vec![0], gates: vec![1.0] };
    assert!(experts(&model, None, Keep::None).apply(9, &[0.0; 64], &routing).is_err());
}
