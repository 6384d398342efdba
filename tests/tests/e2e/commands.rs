//! Mistakes of users: one clear sentence, and the right exit code. And the information that `moex` prints about itself.

use moex_tests::hub::Hub;

use crate::{data, run, succeed};

/// Checks the exit code for some arguments, and the names in the sentence.
fn check(args: &[&str], code: i32, names: &[&str]) {
    let output = run(args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "moex {args:?} said: {said}");
    for name in names {
        assert!(said.contains(name), "moex {args:?} should name {name:?}, it said: {said}");
    }
    assert!(!said.contains("panicked"), "moex {args:?} panicked: {said}");
}

#[test]
fn wrong_use_exits_with_2() {
    check(&["serve", "--no-such-flag"], 2, &["--no-such-flag"]);
    check(&["no-such-command"], 2, &["no-such-command"]);
    check(&["logits", "--ids", "one", "--out", "/dev/null"], 2, &["--ids"]);
}

#[test]
fn a_model_that_is_not_there_is_named() {
    check(&["info", "--model", "/no/such/model"], 1, &["/no/such/model"]);
}

#[test]
fn a_cause_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    let output = run(&["info", "--model", folder.path().to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.matches("EOF while parsing").count(), 1, "{said}");
    assert_eq!(said.matches("not a model config").count(), 1, "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn every_help_of_a_model_names_gguf() {
    for command in ["serve", "info", "logits", "eval", "bench"] {
        let help = String::from_utf8(succeed(&[command, "--help"]).stdout).unwrap();
        let model =
            help.split_once("--model <").unwrap_or_else(|| panic!("{command} has no --model:\n{help}")).1;
        let model = model.split("\n\n").next().unwrap();
        assert!(model.contains("GGUF"), "{command} --help: {model}");
    }
}

#[test]
fn the_version_names_commit_and_features() {
    let version = String::from_utf8(succeed(&["--version"]).stdout).unwrap();
    assert!(version.starts_with(concat!("moex ", env!("CARGO_PKG_VERSION"), " (")), "{version}");
    assert!(version.contains(", gpu"), "{version}");
    // An archive of the sources may lack this folder.
    if moex_tests::root().join(".git").exists() {
        let hash = version.split_once("commit ").expect(&version).1;
        assert!(hash.chars().take(12).all(|c| c.is_ascii_hexdigit()), "{version}");
    }
}

#[test]
fn every_shell_has_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = String::from_utf8(succeed(&["completions", shell]).stdout).unwrap();
        assert!(script.contains("moex") && script.contains("busy-poll"), "{shell}: {script}");
    }
    check(&["completions", "cmd"], 2, &["cmd", "bash"]);
}

#[test]
fn a_port_in_use_is_named() {
    let hub = Hub::start(&[]).unwrap();
    let address = hub.url.trim_start_matches("http://");
    check(&["serve", "--listen", address], 1, &[address]);
}

#[test]
fn a_missing_and_a_truncated_shard_are_named_with_a_tensor() {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(data("tiny-qwen3-moe/sharded")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let model = folder.path().to_str().unwrap();
    let args = ["logits", "--model", model, "--ids", "1,2", "--out", "/dev/null"];
    let shard = folder.path().join("model-00002-of-00003.safetensors");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() - 100]).unwrap();
    check(&args, 1, &["model-00002-of-00003.safetensors", "model.layers."]);
    std::fs::remove_file(&shard).unwrap();
    check(&args, 1, &["model-00002-of-00003.safetensors", "model.layers."]);
}
