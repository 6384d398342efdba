//! `cargo xtask test`: every test, with what they need installed first.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{
    execute, has,
    needs::{self, Need},
};
use crate::browser;

/// What to run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Passed on to the test runner: names of tests to run, and its flags.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Installs what is missing, builds the `moex` binary, then runs the tests of the workspace.
pub fn run(args: &Args) -> Result<()> {
    needs::install(&NEEDS)?;
    // End-to-end tests start this binary; building it first also shows a compile error before any test runs.
    // With the workspace's features, as the tests have them, so that nothing is compiled twice.
    execute("cargo", &["build", "--workspace", "--bins"])?;
    let rest: Vec<&str> = args.rest.iter().map(String::as_str).collect();
    if has("cargo-nextest") {
        execute("cargo", &[&["nextest", "run", "--workspace"], &rest[..]].concat())?;
    } else {
        let all = ["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"];
        // One at a time: a Chromium with a software GPU wants the machine to itself.
        let alone =
            if rest.contains(&"--") { &["--test-threads=1"][..] } else { &["--", "--test-threads=1"] };
        execute("cargo", &[&all, &rest[..], alone].concat())?;
    }
    if args.rest.is_empty() {
        execute("cargo", &["test", "--workspace", "--doc", "--quiet"])?;
    }
    Ok(())
}

const NEEDS: [Need; 3] = [
    Need { package: "chromium", present: || browser::executable().is_some() },
    // How somebody trusts a certificate authority on Linux.
    Need { package: "libnss3-tools", present: || Command::new("certutil").arg("-H").output().is_ok() },
    // lavapipe: the GPU kernels run on it where there is no GPU.
    Need { package: "mesa-vulkan-drivers", present: has_vulkan_driver },
];

fn has_vulkan_driver() -> bool {
    ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"]
        .iter()
        .any(|folder| Path::new(folder).read_dir().is_ok_and(|mut files| files.next().is_some()))
}
