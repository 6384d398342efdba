//! Programs that others wrote to test servers of OpenAI's API, run against a hub.

use std::process::Command;

use moex_tests::hub::Hub;
use serde_json::Value;

/// What its script ends with where the program cannot be had.
const NOT_THERE: i32 = 3;

#[test]
fn the_official_python_package_finds_everything_as_it_expects() {
    let hub = Hub::start(&[]).unwrap();
    let script = moex_tests::root().join("tests/clients/openai_suite.sh");
    let output = Command::new(script).args([&format!("{}/v1", hub.url), "moex-demo"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(NOT_THERE) {
        eprintln!("{said}");
        return;
    }
    assert!(output.status.success(), "{}{said}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn compatcanary_finds_nothing_wrong() {
    let hub = Hub::start(&[]).unwrap();
    let script = moex_tests::root().join("tests/clients/compatcanary.sh");
    let output = Command::new(script).args([&format!("{}/v1", hub.url), "moex-demo"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(NOT_THERE) {
        eprintln!("{said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = report["results"].as_array().unwrap();
    assert!(results.len() >= 7, "{report:#}");
    assert!(results.iter().all(|result| result["status"] == "pass"), "{report:#}");
}
