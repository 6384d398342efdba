//! `cargo xtask test`: installs what the tests need, runs every test, and reports the time of each stage.

use std::num::NonZero;
use std::path::Path;

use anyhow::Result;

use super::{
    execute, has,
    needs::{self, Need},
    target,
    timing::{Stages, read_report},
};
use crate::browser;

/// The report of nextest, according to `.config/nextest.toml`.
const REPORT: &str = "nextest/default/junit.xml";

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Passed on to the test runner: names of tests to run, and its flags.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Installs missing packages, builds the `moex` binary, runs the tests of the workspace, and prints the time of each
/// stage.
pub fn run(args: &Args) -> Result<()> {
    let mut stages = Stages::default();
    let report = target().join(REPORT);
    // A report of an earlier run does not describe this one.
    drop(std::fs::remove_file(&report));
    let tested = run_stages(args, &mut stages);
    println!("\n{}", stages.summary(&read_report(&report)?));
    tested
}

fn run_stages(args: &Args, stages: &mut Stages) -> Result<()> {
    stages.run("what the tests need", || needs::install(&NEEDS))?;
    // End-to-end tests start this binary; building it first also shows a compile error before any test runs. It has the
    // workspace's features, like the tests, so that nothing is compiled twice.
    stages.run("build of the binaries", || execute("cargo", &["build", "--workspace", "--bins"]))?;
    let rest: Vec<&str> = args.rest.iter().map(String::as_str).collect();
    if has("cargo-nextest") {
        stages
            .run("build of the tests", || execute("cargo", &["nextest", "run", "--workspace", "--no-run"]))?;
        let at_once = tests_at_once();
        let is_chosen = rest.iter().any(|arg| arg.starts_with("--test-threads") || arg.starts_with("-j"));
        let at_once = if is_chosen { &[][..] } else { &["--test-threads", &at_once] };
        stages.run("tests", || {
            execute("cargo", &[&["nextest", "run", "--workspace"], at_once, &rest[..]].concat())
        })?;
    } else {
        let all = ["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"];
        // One at a time: a Chromium with a software GPU needs the whole machine.
        let alone =
            if rest.contains(&"--") { &["--test-threads=1"][..] } else { &["--", "--test-threads=1"] };
        stages.run("build of the tests", || execute("cargo", &[&all[..], &["--no-run"]].concat()))?;
        stages.run("tests", || execute("cargo", &[&all, &rest[..], alone].concat()))?;
    }
    if args.rest.is_empty() {
        stages.run("examples in the documentation", || {
            execute("cargo", &["test", "--workspace", "--doc", "--quiet"])
        })?;
    }
    Ok(())
}

/// Half as many tests again as there are cores: many wait for a browser or another process most of the time.
fn tests_at_once() -> String {
    let n_cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    (n_cores + n_cores.div_ceil(2)).to_string()
}

/// Packages that CI may lack, by their Debian names.
const NEEDS: [Need; 7] = [
    Need { package: "chromium", present: || browser::executable().is_some() },
    // lavapipe: the GPU kernels run on it where there is no GPU.
    Need { package: "mesa-vulkan-drivers", present: has_vulkan_driver },
    // Provides a terminal for `moex chat`.
    Need { package: "tmux", present: || has("tmux") || !cfg!(unix) },
    // Lets a user trust a certificate authority on Linux.
    Need { package: "libnss3-tools", present: || has("certutil") || !cfg!(target_os = "linux") },
    Need { package: "curl", present: || has("curl") },
    // Provides a third-party client of OpenAI's API.
    Need { package: "npm", present: || has("npx") },
    // Provides separate hosts for workers and browsers.
    Need { package: "iproute2", present: || has("ip") || !cfg!(target_os = "linux") },
];

fn has_vulkan_driver() -> bool {
    ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"]
        .iter()
        .any(|folder| Path::new(folder).read_dir().is_ok_and(|mut files| files.next().is_some()))
}
