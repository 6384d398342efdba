//! Reports the time of a test run: its stages, the test binaries, the slowest tests.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The number of slow tests that are listed.
const N_SLOWEST: usize = 10;

/// The stages of a run so far, with their times.
#[derive(Debug, Default)]
pub struct Stages(Vec<(&'static str, Duration)>);

/// One test that ran.
#[derive(Clone, Debug, PartialEq)]
pub struct TestTime {
    /// The name of the test binary in nextest.
    pub binary: String,
    /// The test's name.
    pub test: String,
    /// How long it took.
    pub seconds: f64,
}

impl Stages {
    /// Runs a stage and records its time, whether it fails or not.
    pub fn run(&mut self, name: &'static str, stage: impl FnOnce() -> Result<()>) -> Result<()> {
        let begin = Instant::now();
        let result = stage();
        self.0.push((name, begin.elapsed()));
        result
    }

    /// The summary as text; `ran` is empty if the runner reports no times.
    pub fn summary(&self, ran: &[TestTime]) -> String {
        let total: Duration = self.0.iter().map(|(_, took)| *took).sum();
        let mut lines = vec![format!("Where the time went: {}", shown(total.as_secs_f64()))];
        lines.extend(self.0.iter().map(|(name, took)| format!("{}  {name}", shown(took.as_secs_f64()))));
        if !ran.is_empty() {
            lines.push("Test binaries, all their tests added up (they run side by side):".to_owned());
            lines.extend(by_binary(ran).iter().map(|(name, seconds)| format!("{}  {name}", shown(*seconds))));
            lines.push(format!("The slowest of {} tests:", ran.len()));
            let mut slowest = ran.to_vec();
            slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
            let slowest = slowest.iter().take(N_SLOWEST);
            lines.extend(slowest.map(|ran| format!("{}  {} {}", shown(ran.seconds), ran.binary, ran.test)));
        }
        lines.join("\n")
    }
}

/// The tests of a JUnit report written by nextest; empty if there is no report.
///
/// # Errors
/// If the report cannot be read.
pub fn read_report(path: &Path) -> Result<Vec<TestTime>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let report = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(tests_of(&report))
}

fn tests_of(report: &str) -> Vec<TestTime> {
    let cases = report.split("<testcase ").skip(1).map(|case| case.split('>').next().unwrap_or(case));
    let ran = cases.filter_map(|case| {
        let seconds = attribute(case, "time")?.parse().ok()?;
        Some(TestTime { binary: attribute(case, "classname")?, test: attribute(case, "name")?, seconds })
    });
    ran.collect()
}

/// The value of an attribute; names of Rust's tests and binaries need no unescaping.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let tag = format!(" {tag}");
    let value = tag.split_once(&format!(" {name}=\""))?.1;
    Some(value.split_once('"')?.0.to_owned())
}

/// The total seconds of each binary's tests, largest first.
fn by_binary(ran: &[TestTime]) -> Vec<(String, f64)> {
    let mut binaries: Vec<(String, f64)> = Vec::new();
    for TestTime { binary, seconds, .. } in ran {
        match binaries.iter_mut().find(|(name, _)| name == binary) {
            Some((_, total)) => *total += seconds,
            None => binaries.push((binary.clone(), *seconds)),
        }
    }
    binaries.sort_by(|a, b| b.1.total_cmp(&a.1));
    binaries
}

/// `12 min 03 s`, or `4.2 s`, right-aligned for a column.
fn shown(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    let text = match whole {
        60.. => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{seconds:.1} s"),
    };
    format!("{text:>12}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="0" errors="0" time="9.6">
    <testsuite name="moex-hub" tests="2" time="9.1">
        <testcase name="net::one" classname="moex-hub" timestamp="2026-11-22T03:00:00Z" time="0.649">
        </testcase>
        <testcase name="net::two" classname="moex-hub" timestamp="2026-11-22T03:00:00Z" time="62.5"/>
    </testsuite>
    <testsuite name="moex-tests::e2e" tests="1"><testcase name="a" classname="moex-tests::e2e" time="3"/></testsuite>
</testsuites>"#;

    #[test]
    fn a_report_gives_every_test_its_time() {
        let ran = tests_of(REPORT);
        let times: Vec<_> = ran.iter().map(|ran| (ran.test.as_str(), ran.seconds)).collect();
        assert_eq!(times, [("net::one", 0.649), ("net::two", 62.5), ("a", 3.0)]);
        assert_eq!(ran[2].binary, "moex-tests::e2e");
    }

    #[test]
    fn the_summary_names_stages_binaries_and_the_slowest_first() {
        let mut stages = Stages::default();
        stages.run("build", || Ok(())).unwrap();
        let summary = stages.summary(&tests_of(REPORT));
        let at = |text: &str| summary.find(text).unwrap_or_else(|| panic!("no {text:?} in:\n{summary}"));
        assert!(at("build") < at("1 min 03 s  moex-hub"));
        assert!(at("1 min 03 s  moex-hub net::two") < at("3.0 s  moex-tests::e2e a"));
        assert!(stages.summary(&[]).lines().count() == 2);
    }
}
