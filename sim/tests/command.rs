//! The command as a user runs it: its bytes, its errors, its exit codes.

use std::process::{Command, Output};

fn moex_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_moex-sim")).args(arguments).output().expect("the command starts")
}

fn stdout(arguments: &[&str]) -> String {
    let output = moex_sim(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("stdout is UTF-8")
}

/// Exit code and the one line on stderr.
fn failure(arguments: &[&str]) -> (Option<i32>, String) {
    let output = moex_sim(arguments);
    assert!(output.stdout.is_empty(), "{arguments:?} printed something before it failed");
    (output.status.code(), String::from_utf8(output.stderr).expect("stderr is UTF-8"))
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let run = |seed: &str, plot: &str| {
        let plot = folder.path().join(plot);
        let table = stdout(&[
            "table",
            "1",
            "--json",
            "--samples",
            "2000",
            "--seed",
            seed,
            "--plot",
            plot.to_str().unwrap(),
        ]);
        (table, std::fs::read(plot).unwrap())
    };
    assert_eq!(run("9", "a.svg"), run("9", "b.svg"));
    assert_ne!(run("9", "a.svg").0, run("10", "b.svg").0);
}

#[test]
fn the_readme_shows_the_tables_as_printed() {
    let readme = include_str!("../README.md");
    for name in ["1", "2", "3", "4", "eq4"] {
        let table = stdout(&["table", name]);
        assert!(readme.contains(table.trim_end()), "table {name} is not in README.md as printed:\n{table}");
    }
}

#[test]
fn the_plots_beside_the_readme_are_the_ones_drawn() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["1", "3", "4", "eq4"] {
        let drawn = folder.path().join("drawn.svg");
        stdout(&["table", name, "--samples", "2", "--plot", drawn.to_str().unwrap()]);
        let kept = format!("{}/plots/table-{name}.svg", env!("CARGO_MANIFEST_DIR"));
        assert!(
            std::fs::read(&drawn).unwrap() == std::fs::read(&kept).unwrap(),
            "{kept} is not what table {name} draws"
        );
    }
}

#[test]
fn json_is_one_object_and_csv_one_line_a_row() {
    for name in ["1", "2", "3", "4", "eq4"] {
        let json = stdout(&["table", name, "--json", "--samples", "100"]);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["table"], name);
        let rows = value["rows"].as_array().unwrap().len();
        assert_eq!(stdout(&["table", name, "--csv", "--samples", "100"]).lines().count(), rows + 1);
    }
}

#[test]
fn table_1_takes_another_latency() {
    let folder = tempfile::tempdir().unwrap();
    let samples = folder.path().join("trace.txt");
    std::fs::write(&samples, "1\n2\n3\n4\n5\n6\n").unwrap();
    let spec = format!("file:{}", samples.display());
    let csv = stdout(&["table", "1", "--csv", "--k", "2", "--latency", &spec]);
    // The larger of two dice: 161/36.
    let mean: f64 = csv.lines().nth(1).unwrap().split(',').nth(2).unwrap().parse().unwrap();
    assert!((mean - 161.0 / 36.0).abs() < 1e-9, "{csv}");
    assert!(
        stdout(&["table", "1", "--latency", "shifted:5,15,0.7"]).contains("5 ms + log-normal(ln 15 ms, 0.7)")
    );

    std::fs::write(&samples, "1\nsoon\n").unwrap();
    let (code, message) = failure(&["table", "1", "--latency", &spec]);
    assert_eq!(code, Some(1));
    assert!(message.contains("trace.txt: line 2: 'soon' is no latency"), "{message}");
}

#[test]
fn errors_are_one_sentence() {
    for (arguments, says) in [
        (&["table", "1", "--samples", "1"][..], "2 to 1000000000 samples, not 1"),
        (&["table", "1", "--k", "0"], "1 to 65536 experts, not 0"),
        (&["table", "1", "--latency", "lognormal:-3,1"], "the median must be between 0 and"),
        (&["table", "1", "--latency", "cauchy:1"], "'cauchy:1' is no latency"),
        (&["table", "1", "--latency", "file:/nowhere/at/all"], "could not read /nowhere/at/all"),
        (&["table", "3", "--k", "2"], "belong to table 1"),
        (&["table", "2", "--plot", "x.svg"], "no curve to plot"),
        (&["table", "3", "--plot", "/nowhere/x.svg"], "could not write /nowhere/x.svg"),
    ] {
        let (code, message) = failure(arguments);
        assert_eq!(code, Some(1), "{arguments:?}");
        assert!(message.starts_with("moex-sim: ") && message.contains(says), "{arguments:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{arguments:?}: {message}");
    }
    assert_eq!(failure(&["table", "7"]).0, Some(2));
    assert_eq!(failure(&["table", "1", "--json", "--csv"]).0, Some(2));
}
