//! The product from outside: the `moex` binary, real sockets, real processes, a real Chromium.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and these lines say where")]

mod access;
mod adversary;
mod api;
mod archive;
mod chat;
mod chromium;
mod clients;
mod commands;
mod compression;
mod defaults;
mod demo;
mod eval;
mod exact;
mod families;
mod gateway;
mod invitations;
mod join_page;
mod lan;
mod lan_chromium;
mod liveness;
mod logits;
mod pages;
mod predicted;
mod pull;
mod reach;
mod restarts;
mod room;
mod several_hubs;
mod starts;
mod strangers;
mod untrusted;

use std::process::{Command, Output};

use moex_tests::moex;
use serde_json::Value;

/// Runs `moex ARGS` to its end and returns its output, whatever its exit code.
fn run(args: &[&str]) -> Output {
    Command::new(moex()).args(args).output().expect("the moex binary starts")
}

/// Runs `moex ARGS`, which must succeed.
fn succeed(args: &[&str]) -> Output {
    let output = run(args);
    assert!(output.status.success(), "moex {args:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Runs `moex ARGS --json`, which must succeed and print one JSON object.
fn json(args: &[&str]) -> Value {
    let output = succeed(&[args, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).expect("stdout is one JSON value")
}

/// A path of `tests/data` as an argument.
fn data(name: &str) -> String {
    moex_tests::data(name).display().to_string()
}
