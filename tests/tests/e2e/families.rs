//! Families other than Qwen3-MoE through the binary: experts on workers, and models without experts.

use std::path::Path;

use moex_tests::{
    hub::Moex,
    tensors::{Matrix, nmse},
};

use crate::{data, defaults::read_when, run, succeed};

/// Tokens of each of the reference's sequences.
const LENGTH: usize = 48;

/// The first sequence's rows.
fn values(file: &Path, name: &str) -> Vec<Vec<f64>> {
    let matrix = Matrix::read(file, name).unwrap();
    matrix.rows().take(LENGTH).map(<[f64]>::to_vec).collect()
}

/// The ids of the reference's first sequence.
fn ids(expected: &Path) -> String {
    let ids = Matrix::read(expected, "input_ids").unwrap();
    let ids: Vec<String> = ids.rows().next().unwrap()[..LENGTH].iter().map(ToString::to_string).collect();
    ids.join(",")
}

/// A row's choices of experts in each of these layers.
fn choices(file: &Path, layers: &[usize], row: usize) -> Vec<Vec<f64>> {
    let of_layer = |layer: &usize| {
        let mut chosen = values(file, &format!("layer{layer}.topk_indices")).swap_remove(row);
        chosen.sort_by(f64::total_cmp);
        chosen
    };
    layers.iter().map(of_layer).collect()
}

/// The families with experts, and the layers that have them.
const WITH_EXPERTS: [(&str, &[usize]); 7] = [
    ("mixtral", &[0, 1]),
    ("qwen2-moe", &[0, 1]),
    ("olmoe", &[0, 1]),
    ("deepseek-v3", &[1]),
    ("gpt-oss", &[0, 1]),
    ("gpt-oss-mxfp4", &[0, 1]),
    ("qwen3-next", &[0, 1]),
];

/// Experts in the formats that they are served in, with activations in f32 and in int8: nothing else differs, since the hub's own
/// weights stay as they are.
#[test]
fn int8_activations_cost_a_family_less_than_a_thousandth() {
    for (family, layers) in WITH_EXPERTS {
        let model = data(&format!("families/{family}"));
        let ids = ids(&Path::new(&model).join("expected.safetensors"));
        let folder = tempfile::tempdir().unwrap();
        let [exact, rounded] = ["f32", "int8"].map(|activations| {
            let out = folder.path().join(activations);
            let base = ["logits", "--model", &model, "--ids", &ids, "--out", out.to_str().unwrap()];
            let packed: &[&str] = if family.ends_with("mxfp4") { &[] } else { &["--experts", "int4"] };
            let more: &[&str] = if activations == "int8" { &["--weights", "bf16"] } else { &[] };
            succeed(&[&base[..], &["--activations", activations], packed, more].concat());
            out
        });
        let (mut error, mut power, mut n_equal) = (0.0, 0.0, 0);
        for (row, (found, expected)) in
            values(&rounded, "logits").iter().zip(values(&exact, "logits")).enumerate()
        {
            if choices(&rounded, layers, row) == choices(&exact, layers, row) {
                n_equal += 1;
                error += found.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
                power += expected.iter().map(|value| value.powi(2)).sum::<f64>();
            }
        }
        println!("{family}: NMSE {:e} in {n_equal} rows", error / power);
        assert!(error <= 1e-3 * power, "{family}: NMSE {:e}", error / power);
        assert!(
            n_equal * 100 >= LENGTH * 80,
            "{family}: {n_equal} of {LENGTH} rows kept the router's choices"
        );
    }
}

/// Two workers, with weights and wire in f16 as for Qwen3-MoE: f16's 11 bits bound the error where the routers agree.
#[test]
fn experts_of_every_family_run_on_workers() {
    for (family, layers) in WITH_EXPERTS {
        let model = data(&format!("families/{family}"));
        let expected = Path::new(&model).join("expected.safetensors");
        let ids = ids(&expected);
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("logits.safetensors");
        let alone = folder.path().join("alone.safetensors");
        let run = |out: &Path, more: &[&str]| {
            let base = ["logits", "--model", &model, "--ids", &ids, "--out", out.to_str().unwrap()];
            succeed(&[&base[..], more].concat());
        };
        run(&alone, &[]);
        run(&out, &["--workers", "2", "--experts", "f16", "--wire", "f16"]);
        for (found, expected) in values(&alone, "logits").iter().zip(values(&expected, "logits")) {
            assert!(nmse(found, &expected) <= 1e-9, "{family} on the hub alone");
        }
        let mut n_equal = 0;
        for (row, (found, of_reference)) in
            values(&out, "logits").iter().zip(values(&expected, "logits")).enumerate()
        {
            if choices(&out, layers, row) == choices(&expected, layers, row) {
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
    let logs = tempfile::tempdir().unwrap();
    let hub = Moex::under_test().logging_to(logs.path()).hub(&["--model", &model]).unwrap();
    let said = "The hub computes everything: no worker is needed.";
    let log = read_when(&logs.path().join("hub.log"), |log| log.contains(said)).await;
    assert!(!log.contains("to lend a machine"), "{log}");
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
