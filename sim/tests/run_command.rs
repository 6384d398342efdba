//! `moex-sim run` as a user meets it.

use std::{
    path::Path,
    process::{Command, Output},
};

fn moex_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_moex-sim")).args(arguments).output().expect("moex-sim runs")
}

fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name).to_string_lossy().into_owned()
}

#[test]
fn every_example_runs() {
    for name in ["classroom", "four-phones", "office", "one-slow-tab", "two-sites"] {
        let quick = ["--set", "load.tokens=2", "--set", "load.prompt=1", "--set", "model.layers=4", "--json"];
        let path = example(&format!("{name}.toml"));
        let output = moex_sim(&[&["run", &path], &quick[..]].concat());
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["rows"][0]["figure"], "tokens_per_s");
        assert!(json["rows"][0]["value"].as_f64().unwrap() > 0.0, "{name}");
    }
}

#[test]
fn a_sweep_has_a_row_for_each_value_and_a_plot() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("sweep.svg");
    let plot = plot.to_str().unwrap();
    let path = example("office.toml");
    let few = ["--set", "load.tokens=2", "--set", "load.prompt=1", "--set", "model.layers=4"];
    let output = moex_sim(
        &[&["run", &path, "--sweep", "swarm.hedge=1,2", "--csv", "--plot", plot], &few[..]].concat(),
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let csv = String::from_utf8(output.stdout).unwrap();
    let settings: Vec<&str> = csv.lines().map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(settings, ["setting", "swarm.hedge=1", "swarm.hedge=2"]);
    assert!(std::fs::read_to_string(plot).unwrap().starts_with("<svg"));
}

#[test]
fn a_wrong_scenario_is_told_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrong.toml");
    std::fs::write(&path, "[load]\ntokns = 3\n").unwrap();
    let output = moex_sim(&["run", path.to_str().unwrap()]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("line 2") && error.contains("tokns"), "{error}");
}
