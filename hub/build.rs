//! Checks that the worker bundle can be embedded, warns how to build it if it is missing, and sets the version string.
//!
//! The bundle is committed, so only an incomplete checkout sees the warning; its hub serves everything but browser
//! workers.

use std::path::Path;
use std::process::Command;

const BUNDLES: [&str; 4] = [
    "src/web/worker/moex_worker.js.gz",
    "src/web/worker/moex_worker_bg.wasm.gz",
    "src/web/worker/moex_worker_relaxed.js.gz",
    "src/web/worker/moex_worker_relaxed_bg.wasm.gz",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for file in BUNDLES {
        println!("cargo::rerun-if-changed={file}");
        if !Path::new(file).is_file() {
            println!(
                "cargo::warning=hub/{file} is missing: browsers cannot join this hub; `cargo xtask worker` makes it"
            );
        }
    }
    println!("cargo::rustc-env=MOEX_VERSION={}", version());
}

/// The version, the commit as far as it is known, and the features: `0.1.0 (commit 0c98bf812345, gpu)`.
fn version() -> String {
    let commit = commit().map(|commit| format!("commit {commit}"));
    let features = ["GPU"].into_iter().filter(|name| has_feature(name)).map(str::to_lowercase);
    let debug = is_debug().then(|| "debug build".to_owned());
    let about: Vec<String> = commit.into_iter().chain(features).chain(debug).collect();
    format!("{} ({})", env!("CARGO_PKG_VERSION"), about.join(", "))
}

/// The packager's setting, otherwise git's answer, otherwise the crate archive's.
fn commit() -> Option<String> {
    println!("cargo::rerun-if-env-changed=MOEX_COMMIT");
    let given = std::env::var("MOEX_COMMIT").ok().filter(|commit| !commit.is_empty());
    given.or_else(commit_by_git).or_else(commit_of_archive)
}

/// The checkout's commit, with `-dirty` if files differ from it.
fn commit_by_git() -> Option<String> {
    // An archive unpacked inside another repository is not a checkout of this one.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    if is_debug() {
        // Debug builds do not rebuild for each commit, so they show none.
        return Some(git(&["rev-parse", "--short=12", "HEAD"])? + " or later");
    }
    for file in ["HEAD", "logs/HEAD", "index"] {
        let file = git(&["rev-parse", "--git-path", file])?;
        if Path::new(&file).exists() {
            println!("cargo::rerun-if-changed={file}");
        }
    }
    git(&["describe", "--always", "--exclude=*", "--abbrev=12", "--dirty"])
}

/// Read from the file that `cargo package` adds beside the manifest.
fn commit_of_archive() -> Option<String> {
    let info = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let hash = info.split_once("\"sha1\"")?.1.split('"').nth(1)?;
    let hash = hash.get(..12)?;
    hash.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| hash.to_owned())
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn is_debug() -> bool {
    std::env::var("PROFILE").is_ok_and(|profile| profile == "debug")
}

fn has_feature(name: &str) -> bool {
    std::env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
}
