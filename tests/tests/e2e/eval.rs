//! `moex eval` on the demo model: transformers' accuracy on the hub alone, and the same text with workers.

use serde_json::Value;

use crate::{data, json};

/// The cases that transformers answers right, with its texts.
#[test]
fn the_demo_model_answers_as_transformers_does() {
    let report = json(&["eval", "--cases", &data("demo-cases.jsonl"), "--activations", "f32"]);
    assert_eq!((&report["cases"], &report["right"]), (&Value::from(300), &Value::from(278)));
    for (case, result) in cases().iter().zip(results(&report)) {
        assert_eq!(result["right"], case["reference_right"], "case {}", case["id"]);
        assert_eq!(result["text"], case["reference"], "case {}", case["id"]);
    }
}

/// Workers compute the hub's own results, bit for bit.
#[test]
fn three_workers_change_no_text() {
    let cases = data("demo-cases.jsonl");
    let alone = json(&["eval", "--cases", &cases, "--experts", "int4"]);
    let swarm = json(&["eval", "--cases", &cases, "--experts", "int4", "--workers", "3"]);
    assert_eq!(results(&alone), results(&swarm));
}

fn results(report: &Value) -> Vec<Value> {
    report["results"].as_array().expect("a report has results").clone()
}

fn cases() -> Vec<Value> {
    let lines = std::fs::read_to_string(data("demo-cases.jsonl")).expect("the cases are there");
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
