//! Third-party programs that use or test servers of OpenAI's API, run against a hub.

use std::fs;
use std::path::Path;
use std::process::Command;

use moex_tests::hub::Hub;
use serde_json::Value;

use crate::{data, json};

/// The script's exit code if the program is not available.
const NOT_THERE: i32 = 3;

#[test]
fn the_official_python_package_finds_everything_as_it_expects() {
    asked_by("openai_suite.sh", &Hub::start(&[]).unwrap());
}

#[test]
fn the_official_node_package_finds_everything_as_it_expects() {
    asked_by("openai_node_suite.sh", &Hub::start(&[]).unwrap());
}

/// Of a hub that samples only where it is asked to: a sampled call of a tool may not end within its tokens.
#[test]
fn compatcanary_finds_nothing_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(&["--model", &greedy_demo(folder.path())]).unwrap();
    let Some(said) = asked_by("compatcanary.sh", &hub) else { return };
    let report: Value = serde_json::from_str(&said).unwrap();
    let results = report["results"].as_array().unwrap();
    assert!(results.len() >= 7, "{report:#}");
    assert!(results.iter().all(|result| result["status"] == "pass"), "{report:#}");
}

#[test]
fn schemathesis_finds_no_answer_but_as_described() {
    asked_by("schemathesis.sh", &Hub::start(&[]).unwrap());
}

/// A folder, in this one, with the demo model, which decodes greedily unless a request says otherwise.
fn greedy_demo(folder: &Path) -> String {
    let (demo, greedy) = (moex_tests::root().join("hub/model/demo-model"), folder.join("moex-demo"));
    fs::create_dir(&greedy).unwrap();
    for file in fs::read_dir(demo).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), greedy.join(file.file_name())).unwrap();
    }
    fs::write(greedy.join("generation_config.json"), r#"{"do_sample": false}"#).unwrap();
    greedy.to_str().unwrap().to_owned()
}

/// The output of a script of `tests/clients` for a hub; `None`, with the reason on stderr, if the program is not
/// available.
fn asked_by(script: &str, hub: &Hub) -> Option<String> {
    let path = moex_tests::root().join("tests/clients").join(script);
    let output = Command::new(path).args([&format!("{}/v1", hub.url), "moex-demo"]).output().unwrap();
    let [printed, said] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    if output.status.code() == Some(NOT_THERE) {
        eprintln!("{said}");
        return None;
    }
    assert!(output.status.success(), "{printed}{said}");
    Some(printed.into_owned())
}

/// lm-eval counts as many right answers as `moex eval`, and finds that the same answers are the model's own.
#[test]
#[ignore = "fetches lm-eval and what it needs, 600 MB"]
fn lm_eval_gets_the_number_of_moex_eval() {
    let Some(said) = asked_by("lm_eval.sh", &Hub::start(&[]).unwrap()) else { return };
    let found: Value = serde_json::from_str(&said).unwrap();
    let path = data("demo-cases.jsonl");
    let report = json(&["eval", "--cases", &path, "--experts", "int4"]);
    let lines = fs::read_to_string(path).unwrap();
    let cases: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let results = report["results"].as_array().unwrap();
    let of = |keep: &dyn Fn(&Value) -> bool, is: &dyn Fn(&Value, &Value) -> bool| {
        let kept = || cases.iter().zip(results).filter(|(case, _)| keep(case));
        (kept().filter(|(case, result)| is(case, result)).count(), kept().count())
    };
    let is_right = |_: &Value, result: &Value| result["right"] == true;
    let is_reference = |case: &Value, result: &Value| result["text"] == case["reference"];
    let is_question = |case: &Value, thinks: bool| {
        let is_one = case["messages"].as_array().unwrap().len() == 1 && case["tools"].is_null();
        is_one && case["enable_thinking"] == thinks
    };
    for (task, metric, expected) in [
        ("moex_completions", "right", of(&|_| true, &is_right)),
        ("moex_chat", "right", of(&|case| is_question(case, false), &is_right)),
        ("moex_chat_thinking", "right", of(&|case| is_question(case, true), &is_right)),
        ("moex_loglikelihood", "acc", of(&|_| true, &is_reference)),
    ] {
        let (part, n) = (found[task][metric].as_f64().unwrap(), found[task]["n"].as_f64().unwrap());
        assert_eq!(((part * n).round() as usize, n as usize), expected, "{task}: {found:#}");
    }
}
