//! Families other than Qwen3-MoE through the binary: experts on workers, and models without experts.

use std::path::Path;

use moex_tests::{
    hub::Hub,
    tensors::{Matrix, nmse},
};

use crate::{data, run, succeed};

/// Tokens of each of the reference's sequences.
const LENGTH: usize = 48;

/// The first sequence's rows.
fn values(file: &Path, name: &str) -> Vec<Vec<f64>> {
    let matrix = Matrix::read(file, name).unwrap();
    matrix.rows().take(LENGTH).map(<[f64]>::to_vec).collect()
}

/// Two workers, with weights and wire in f16 as for Qwen3-MoE: f16's 11 bits bound the error where the routers agree.
#[test]
fn experts_of_every_family_run_on_workers() {
    for (family, layers) in [
        ("mixtral", vec![0, 1]),
        ("qwen2-moe", vec![0, 1]),
        ("olmoe", vec![0, 1]),
        ("deepseek-v3", vec![1]),
        ("gpt-oss", vec![0, 1]),
        ("gpt-oss-mxfp4", vec![0, 1]),
        ("qwen3-next", vec![0, 1]),
    ] {
        let model = data(&format!("families/{family}"));
        let expected = Path::new(&model).join("expected.safetensors");
        let ids: Vec<String> = Matrix::read(&expected, "input_ids").unwrap().rows().next().unwrap()[..LENGTH]
            .iter()
            .map(ToString::to_string)
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("logits.safetensors");
        let alone = folder.path().join("alone.safetensors");
        let run = |out: &Path, more: &[&str]| {
            let base = ["logits", "--model", &model, "--ids", &ids.join(","), "--out", out.to_str().unwrap()];
            succeed(&[&base[..], more].concat());
        };
        run(&alone, &[]);
        run(&out, &["--workers", "2", "--experts", "f16", "--wire", "f16"]);
        for (found, expected) in values(&alone, "logits").iter().zip(values(&expected, "logits")) {
            assert!(nmse(found, &expected) <= 1e-9, "{family} on the hub alone");
        }
        let choices = |file: &Path, row: usize| -> Vec<Vec<f64>> {
            let of_layer = |layer: &usize| {
                let mut chosen = values(file, &format!("layer{layer}.topk_indices")).swap_remove(row);
                chosen.sort_by(f64::total_cmp);
                chosen
            };
            layers.iter().map(of_layer).collect()
        };
        let mut n_equal = 0;
        for (row, (found, of_reference)) in
            values(&out, "logits").iter().zip(values(&expected, "logits")).enumerate()
        {
            if choices(&out, row) == choices(&expected, row) {
                n_equal += 1;
                let error = nmse(found, &of_reference);
                assert!(error <= 1e-5, "{family}, row {row}: NMSE {error:e}");
            }
        }
        assert!(
            n_equal * 100 >= LENGTH * 95,
            "{family}: {n_equal} of {LENGTH} rows kept the router's choices"
        );
    }
}

#[tokio::test]
async fn a_model_without_experts_runs_on_the_hub_alone_and_says_so() {
    let model = data("families/llama");
    let info = String::from_utf8(succeed(&["info", "--model", &model]).stdout).unwrap();
    assert!(
        info.contains("3 layers (without experts)") && info.contains("The hub computes it alone"),
        "{info}"
    );
    let hub = Hub::start(&["--model", &model]).unwrap();
    let health = hub.get("/health").await.unwrap();
    assert_eq!(health["status"], "ok", "{health}");
    let models = hub.get("/v1/models").await.unwrap();
    assert_eq!(models["data"][0]["id"], "llama", "{models}");
}

#[test]
fn a_family_that_is_not_known_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "mamba"}"#).unwrap();
    let output = run(&["info", "--model", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("its model_type is \"mamba\", but moex supports only qwen3_moe, "), "{error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
}
