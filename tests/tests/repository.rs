//! Rules about the repository, as tests: the arrows between the crates, the bundle's freshness, the size of files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{CommandFactory, Parser, error::ErrorKind};
use moex_hub::commands::Cli;
use moex_tests::{
    root,
    xtask::{Cli as Xtask, worker},
};
use serde_json::Value;

/// The dependencies between our crates: the arrows of the drawing in `ARCHITECTURE.md`.
const ARROWS: [(&str, &[&str]); 10] = [
    ("moex-latency", &[]),
    ("moex-protocol", &[]),
    ("moex-kernels", &[]),
    ("moex-worker", &["moex-kernels", "moex-protocol"]),
    ("moex-model", &["moex-kernels", "moex-protocol"]),
    ("moex-swarm", &["moex-protocol"]),
    ("moex-engine", &["moex-model"]),
    (
        "moex-hub",
        &[
            "moex-engine",
            "moex-kernels",
            "moex-latency",
            "moex-model",
            "moex-protocol",
            "moex-swarm",
            "moex-worker",
        ],
    ),
    ("moex-sim", &["moex-kernels", "moex-latency", "moex-protocol", "moex-swarm", "moex-worker"]),
    (
        "moex-tests",
        &["moex-hub", "moex-kernels", "moex-model", "moex-protocol", "moex-sim", "moex-swarm", "moex-worker"],
    ),
];

/// Crates that depend on neither an asynchronous runtime nor a GPU interface.
const PURE: [&str; 5] = ["moex-protocol", "moex-latency", "moex-model", "moex-engine", "moex-swarm"];

#[test]
fn dependencies_point_one_way() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("a workspace has packages");
    let mut names: Vec<_> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    names.sort_unstable();
    let mut drawn = ARROWS.map(|(name, _)| name);
    drawn.sort_unstable();
    assert_eq!(names, drawn, "the crates of the workspace and of the drawing");
    for package in packages {
        let name = package["name"].as_str().expect("a package has a name");
        let all = package["dependencies"].as_array().expect("a list");
        // Dependencies of tests alone are listed separately.
        let used = all.iter().filter(|d| d["kind"].as_str() != Some("dev"));
        let used: BTreeSet<&str> = used.filter_map(|d| d["name"].as_str()).collect();
        let ours: BTreeSet<&str> = used.iter().copied().filter(|name| name.starts_with("moex-")).collect();
        let (_, drawn) = ARROWS.iter().find(|(of, _)| *of == name).expect("compared above");
        assert_eq!(ours, drawn.iter().copied().collect(), "what {name} depends on");
        if PURE.contains(&name) {
            for never in ["tokio", "wgpu", "axum", "reqwest"] {
                assert!(!used.contains(never), "{name} must not depend on {never}");
            }
        }
    }
}

/// A larger crate should be split.
#[test]
fn no_crate_has_more_than_three_tenths_of_the_lines() {
    let lines = |folder: &str, but: &[&str]| -> usize {
        let is_other = |file: &PathBuf| but.iter().any(|other| file.starts_with(root().join(other)));
        let files = sources(&root().join(folder)).into_iter().filter(|file| !is_other(file));
        files.map(|file| std::fs::read_to_string(file).expect("a source file is text").lines().count()).sum()
    };
    let inner = ["hub/model", "hub/engine", "hub/swarm"];
    let mut sizes: Vec<(&str, usize)> = ["protocol", "kernels", "worker-wasm", "sim", "tests"]
        .iter()
        .chain(&inner)
        .map(|f| (*f, lines(f, &[])))
        .collect();
    sizes.push(("hub", lines("hub", &inner)));
    let all: usize = sizes.iter().map(|(_, n)| n).sum();
    for (folder, n) in sizes {
        assert!(n * 10 <= all * 3, "{folder} has {n} of {all} lines");
    }
}

/// `cargo xtask`, the binaries and the tests are built one after another. If one of them had other features, every
/// crate above the difference would be compiled once more, which is most of the time from a fresh clone.
#[test]
fn xtask_binaries_and_tests_share_what_they_compile() {
    let tree = |args: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--offline", "--prefix", "none", "--format", "{p} [{f}]"])
            .args(args)
            .current_dir(root())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // A star marks a crate whose dependencies were shown already.
        text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect::<BTreeSet<_>>()
    };
    let tests = tree(&["--workspace", "--edges", "normal,build,dev"]);
    for others in [
        tree(&["--workspace", "--edges", "normal,build"]),
        tree(&["--package", "moex-tests", "--edges", "normal,build"]),
    ] {
        let twice: Vec<_> = others.difference(&tests).filter(|line| !line.is_empty()).collect();
        assert!(twice.is_empty(), "compiled with other features than for the tests: {twice:#?}");
    }
}

/// The things that a crate's header promises not to know.
#[test]
fn crates_know_only_what_they_may() {
    let rules = [
        ("protocol/src", "tokio::"),
        ("protocol/src", "Instant::now"),
        ("worker-wasm/src/core", "tokio::"),
        ("worker-wasm/src/core", "Instant::now"),
        ("hub/swarm", "Instant::now"),
        ("hub/model", "Instant::now"),
        ("sim/latency", "Instant::now"),
    ];
    for (folder, never) in rules {
        for file in sources(&root().join(folder)) {
            let text = std::fs::read_to_string(&file).expect("a source file is text");
            assert!(!text.contains(never), "{} knows {never}", file.display());
        }
    }
}

/// Dropping the last instance would unload a driver under the threads that used it: one function makes one, and keeps
/// it.
#[test]
fn the_instance_of_the_gpu_is_made_in_one_file() {
    let maker = Path::new("kernels/src/engine/gpu/device.rs");
    for folder in ["kernels", "worker-wasm", "hub", "sim", "tests/src"] {
        for file in sources(&root().join(folder)) {
            let text = std::fs::read_to_string(&file).expect("a source file is text");
            let is_maker = file.ends_with(maker);
            assert!(is_maker || !text.contains("wgpu::Instance"), "{} makes an instance", file.display());
        }
    }
}

/// Each file has one idea.
#[test]
fn no_source_file_is_long_without_a_reason() {
    const LONG: usize = 500;
    for folder in [
        "protocol/src",
        "kernels/src",
        "worker-wasm/src",
        "hub",
        "sim/src",
        "sim/latency",
        "tests/src",
        "tests/tests",
    ] {
        for file in sources(&root().join(folder)) {
            let n_lines = std::fs::read_to_string(&file).expect("a source file is text").lines().count();
            assert!(n_lines <= LONG, "{} has {n_lines} lines: is it still one idea?", file.display());
        }
    }
}

/// Users need no wasm toolchain, since the bundles are committed; a change of their sources requires a rebuild.
#[test]
fn the_worker_bundles_are_fresh_and_small() {
    assert!(
        worker::bundle_is_fresh().expect("the bundles can be read"),
        "the bundles are stale: run `cargo xtask worker`"
    );
    let n_bytes = worker::bundle_bytes().expect("the bundles can be read");
    assert!(n_bytes <= worker::MAX_BYTES, "a bundle takes {n_bytes} bytes");
}

/// The README's shell blocks contain only commands and flags that exist.
#[test]
fn commands_of_the_readme_can_be_typed() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("there is a README");
    let blocks = readme.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest));
    let text = blocks.collect::<String>().replace("\\\n", " ");
    let mut n_commands = 0;
    for line in text.lines() {
        let line = line.split(" # ").next().unwrap_or(line);
        let words: Vec<&str> = line.split_whitespace().collect();
        let checked = match &words[..] {
            [] | ["#", ..] => continue,
            ["moex", ..] => Cli::try_parse_from(&words).map(drop),
            ["cargo", "run", "--release", "--", rest @ ..] => {
                Cli::try_parse_from([&["moex"][..], rest].concat()).map(drop)
            }
            ["cargo", "xtask", rest @ ..] => Xtask::try_parse_from([&["xtask"][..], rest].concat()).map(drop),
            ["cargo", "install", "--path", "hub"] | ["curl", ..] | ["-d", ..] => Ok(()),
            _ => panic!("the README names a command that no test knows: {line}"),
        };
        // The parser reports help as an error, which is right here.
        if let Err(error) = checked {
            let shown = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            assert!(shown, "{line}: {error}");
        }
        n_commands += 1;
    }
    assert!(n_commands >= 5, "the README has shell blocks: {text}");
}

/// The systemd unit and the image set only variables of existing flags.
#[test]
fn variables_of_the_deployment_exist() {
    let cli = Cli::command();
    let known: Vec<String> = cli
        .get_subcommands()
        .flat_map(clap::Command::get_arguments)
        .filter_map(|flag| Some(flag.get_env()?.to_string_lossy().into_owned()))
        .chain(["MOEX_COMMIT".to_owned(), "MOEX_LOG".to_owned()])
        .collect();
    for file in ["hub/deploy/Dockerfile", "hub/deploy/moex.service", "hub/deploy/README.md"] {
        let text = std::fs::read_to_string(root().join(file)).unwrap_or_else(|_| panic!("{file} is there"));
        for name in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let known = !name.starts_with("MOEX_") || known.iter().any(|known| known == name);
            assert!(known, "{file}: no flag has the variable {name}");
        }
    }
}

#[test]
fn ci_calls_the_test_command_that_the_readme_names() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).expect("the file is there");
    assert!(read("README.md").contains("cargo xtask test"));
    assert!(read(".ci/run").contains("\nstep cargo xtask test"));
}

/// The Rust files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a source folder can be read").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "{} has no sources", folder.display());
    found
}
