//! Every config variant against transformers' logits on a small random checkpoint of it (`tests/data/variants`, made by
//! the script there), and the same checkpoint with the variant's field changed, which must then differ: a test that
//! would pass without the variant shows nothing.

use std::{fs, sync::Arc};

use moex_kernels::nmse;
use serde_json::{Value, json};

use super::{
    reference_tests::{Reference, all_logits, load},
    *,
};

const VARIANTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/variants");

/// Checks a variant, and that with `field` as `otherwise` the logits are others or the checkpoint does not load.
fn check(variant: &str, field: &str, otherwise: Value) {
    let folder = format!("{VARIANTS}/{variant}");
    let reference = Reference::read(&format!("{folder}/reference.safetensors"));
    let ids: Vec<u32> = reference.i32("input_ids").iter().map(|id| *id as u32).collect();
    let expected = reference.f32("logits");

    let model = load(&folder);
    let (logits, asked) = all_logits(&model, &ids);
    let error = nmse(&logits, &expected);
    // f32 in another order of additions.
    assert!(error <= 1e-9, "{variant}: NMSE {error:e}");
    let sparse: Vec<usize> = model.spec().sparse_layers().collect();
    assert_eq!(asked.iter().map(|(layer, _)| *layer).collect::<Vec<_>>(), sparse);
    for (layer, routing) in &asked {
        reference.assert_choices(*layer, routing);
    }

    let mut config: Value =
        serde_json::from_slice(&fs::read(format!("{folder}/config.json")).unwrap()).unwrap();
    assert!(
        config.get(field).is_some_and(|value| *value != otherwise),
        "{field} is not what makes {variant}"
    );
    config[field] = otherwise;
    let mut checkpoint = Checkpoint::open(folder.as_ref()).unwrap();
    checkpoint.spec = ModelSpec::from_json(config.to_string().as_bytes()).unwrap();
    if let Ok(other) = Model::load(&checkpoint) {
        let error = nmse(&all_logits(&Arc::new(other), &ids).0, &expected);
        assert!(error > 1e-6, "{variant}: without it NMSE is {error:e} too");
    }
}

fn plain_rope() -> Value {
    json!({"rope_type": "default", "rope_theta": 10000.0})
}

#[test]
fn yarn() {
    check("yarn", "rope_parameters", plain_rope());
}

#[test]
fn yarn_with_every_number_given() {
    check("yarn-attention-factor", "rope_parameters", plain_rope());
}

#[test]
fn dense_layers_by_name() {
    check("mlp-only-layers", "mlp_only_layers", json!([]));
}

#[test]
fn dense_layers_by_step() {
    check("sparse-step", "decoder_sparse_step", json!(1));
}

#[test]
fn a_tied_head() {
    check("tied-head", "tie_word_embeddings", json!(false));
}

#[test]
fn gates_that_are_not_renormalised() {
    check("gates-as-they-are", "norm_topk_prob", json!(true));
}

#[test]
fn biases_in_attention() {
    check("attention-bias", "attention_bias", json!(false));
}

#[test]
fn weights_in_f32() {
    check("float32", "num_experts_per_tok", json!(2));
}
