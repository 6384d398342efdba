//! What a user does wrong: one clear sentence, and the right exit code.

use moex_tests::hub::Hub;

use crate::{data, run};

/// Arguments, the exit code, and what the sentence must name.
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
