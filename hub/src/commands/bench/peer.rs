//! Runs another program's benchmark beside ours.

use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
};

use anyhow::{Context, bail, ensure};

/// A command, and the figures that it printed.
pub(super) struct Peer {
    command: String,
    /// Best tokens/s of each test that the command names.
    pub(super) best: BTreeMap<String, f64>,
}

impl Peer {
    pub(super) fn new(command: String) -> Self {
        Self { command, best: BTreeMap::new() }
    }

    /// Runs the command once.
    pub(super) fn run(&mut self) -> anyhow::Result<()> {
        let mut shell = match cfg!(windows) {
            true => Command::new("cmd"),
            false => Command::new("sh"),
        };
        shell.args([if cfg!(windows) { "/C" } else { "-c" }, &self.command]);
        let output = shell
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .with_context(|| format!("the peer command {:?} does not start", self.command))?;
        ensure!(output.status.success(), "the peer command {:?} ended with {}", self.command, output.status);
        let printed = String::from_utf8_lossy(&output.stdout);
        let figures = figures(&printed);
        if figures.is_empty() {
            bail!(
                "the peer command {:?} printed no tokens/s: neither a number nor llama-bench's table",
                self.command
            );
        }
        for (test, tokens_per_s) in figures {
            let best = self.best.entry(test).or_insert(tokens_per_s);
            *best = best.max(tokens_per_s);
        }
        Ok(())
    }
}

/// Reads the tokens/s of each table row whose last cell is a number with a deviation, named by the cell before; without
/// such a row, the last number printed.
fn figures(printed: &str) -> Vec<(String, f64)> {
    let row = |line: &str| {
        let mut cells = line.trim().trim_matches('|').rsplit('|').map(str::trim);
        let (value, _) = cells.next()?.split_once('±')?;
        Some((cells.next()?.to_owned(), value.trim().parse().ok()?))
    };
    let rows: Vec<_> = printed.lines().filter_map(row).collect();
    if !rows.is_empty() {
        return rows;
    }
    let number = printed.split_whitespace().rev().find_map(|word| word.parse().ok());
    number.map(|number| ("peer".to_owned(), number)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_plain_numbers_are_read() {
        let table = "| model | size | threads | test | t/s |\n| --- | ---: | --: | ---: | ---: |\n\
                     | qwen3moe | 1.9 GiB | 2 | pp512 | 394.20 ± 1.17 |\n\
                     | qwen3moe | 1.9 GiB | 2 | tg32 @ d2048 | 47.05 ± 0.00 |\n\nbuild: 1234\n";
        let expected = [("pp512".to_owned(), 394.2), ("tg32 @ d2048".to_owned(), 47.05)];
        assert_eq!(figures(table), expected);
        assert_eq!(figures("it was\n12.5 tokens/s\n"), [("peer".to_owned(), 12.5)]);
        assert_eq!(figures("nothing"), []);
    }

    #[test]
    fn the_best_of_its_runs_counts_and_failures_are_said() {
        let mut peer = Peer::new("echo 7.5".to_owned());
        peer.run().unwrap();
        peer.run().unwrap();
        assert_eq!(peer.best["peer"], 7.5);
        for command in ["exit 3", "echo no", "no-such-program-here"] {
            assert!(Peer::new(command.to_owned()).run().unwrap_err().to_string().contains(command));
        }
    }
}
