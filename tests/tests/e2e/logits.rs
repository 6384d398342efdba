//! `moex logits` against transformers' reference, alone and with workers.

use std::path::{Path, PathBuf};

use moex_tests::tensors::{Matrix, nmse};
use serde_json::Value;

use crate::{data, succeed};

const N_LAYERS: usize = 2;

/// This is f32 arithmetic in another order than transformers'; its own f32 differs from f64 by about as much.
#[test]
fn local_logits_equal_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let found = logits(folder.path(), &[]);
    let expected = reference();
    let error = nmse(&all(&found), &all(&expected));
    assert!(error <= 1e-9, "NMSE {error:e}");
    for layer in 0..N_LAYERS {
        let name = format!("layer{layer}.topk_indices");
        let (found, expected) =
            (Matrix::read(&found, &name).unwrap(), Matrix::read(&expected, &name).unwrap());
        assert_eq!(found.values, expected.values, "the router's choices of layer {layer}");
    }
}

/// Two workers, weights and wire in f16: f16's 11 bits bound the error where the routers agree.
#[test]
fn two_workers_in_f16_stay_close_to_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let found = logits(folder.path(), &["--workers", "2", "--experts", "f16", "--wire", "f16"]);
    let expected = reference();
    let choices = |file: &Path| -> Vec<Matrix> {
        (0..N_LAYERS)
            .map(|layer| Matrix::read(file, &format!("layer{layer}.topk_indices")).unwrap())
            .collect()
    };
    let (found_choices, expected_choices) = (choices(&found), choices(&expected));
    let (found, expected) =
        (Matrix::read(&found, "logits").unwrap(), Matrix::read(&expected, "logits").unwrap());
    let n_rows = expected.rows().count();
    let mut n_equal = 0;
    for row in 0..n_rows {
        let same = (0..N_LAYERS)
            .all(|layer| found_choices[layer].rows().nth(row) == expected_choices[layer].rows().nth(row));
        if same {
            n_equal += 1;
            let error = nmse(found.rows().nth(row).unwrap(), expected.rows().nth(row).unwrap());
            assert!(error <= 1e-5, "row {row}: NMSE {error:e}");
        }
    }
    assert!(n_equal * 100 >= n_rows * 95, "{n_equal} of {n_rows} rows kept the router's choices");
}

/// Writes the logits of the reference's tokens and returns the file.
fn logits(folder: &Path, more: &[&str]) -> PathBuf {
    let reference: Value = serde_json::from_slice(
        &std::fs::read(data("tiny-qwen3-moe/reference/reference.json")).expect("the reference is there"),
    )
    .unwrap();
    let ids: Vec<String> = reference["input_ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    let out = folder.join("logits.safetensors");
    let model = data("tiny-qwen3-moe");
    let base = ["logits", "--model", &model, "--ids", &ids.join(","), "--out", out.to_str().unwrap()];
    succeed(&[&base, more].concat());
    out
}

fn reference() -> PathBuf {
    moex_tests::data("tiny-qwen3-moe/reference/reference.safetensors")
}

fn all(file: &Path) -> Vec<f64> {
    Matrix::read(file, "logits").unwrap().values
}
