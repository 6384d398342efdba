//! The report of a chaos run.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use comfy_table::{Table, presets};
use serde_json::Value;

use super::script::Fault;
use super::streams::Outcome;

/// Fields of the totals of `/api/swarm`, and their names in the table.
const TOTALS: [(&str, &str); 16] = [
    ("layers", "layers"),
    ("dispatches", "dispatches"),
    ("answers", "answers used"),
    ("retries", "retries"),
    ("hedges", "hedges"),
    ("hedge_wins", "hedge wins"),
    ("late", "late answers"),
    ("timeouts", "timeouts"),
    ("errors", "errors"),
    ("hub_computed", "computed on the hub"),
    ("duplicate_bytes", "duplicate bytes"),
    ("bytes_sent", "bytes sent"),
    ("bytes_received", "bytes received"),
    ("layer_p50_micros", "layer p50 us"),
    ("layer_p95_micros", "layer p95 us"),
    ("layer_p99_micros", "layer p99 us"),
];

/// The faults of a run, and their effects.
#[derive(Debug)]
pub struct Report {
    /// The seed that repeats the script.
    pub seed: u64,
    /// The number of faults of each kind.
    pub events: BTreeMap<Fault, usize>,
    /// The results of the requests.
    pub outcome: Outcome,
    /// The hub's totals at the end.
    pub totals: Value,
    /// How long the swarm took to recover.
    pub recovery: Duration,
}

impl Report {
    /// Whether every request got the hub's own text.
    pub fn is_good(&self) -> bool {
        self.outcome.n_requests > 0 && self.outcome.n_failed == 0 && self.outcome.n_differing == 0
    }

    /// The number of all faults.
    pub fn n_events(&self) -> usize {
        self.events.values().sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { n_requests, n_new, n_failed, n_differing, longest, shown } = &self.outcome;
        let mut table = Table::new();
        table.load_preset(presets::ASCII_BORDERS_ONLY_CONDENSED);
        table.set_header(["", "seed", &self.seed.to_string()]);
        for (fault, n) in &self.events {
            table.add_row(["event", &format!("{fault:?}"), &n.to_string()]);
        }
        table.add_row(["event", "all", &self.n_events().to_string()]);
        let requests =
            [("all", n_requests), ("long and new", n_new), ("failed", n_failed), ("differing", n_differing)];
        for (name, n) in requests {
            table.add_row(["request", name, &n.to_string()]);
        }
        table.add_row(["request", "longest ms", &longest.as_millis().to_string()]);
        for (key, name) in TOTALS {
            table.add_row(["swarm", name, &figure(&self.totals, key)]);
        }
        table.add_row(["swarm", "whole again after ms", &self.recovery.as_millis().to_string()]);
        write!(f, "{table}")?;
        shown.iter().try_for_each(|what| write!(f, "\n{what}"))
    }
}

/// A number of the status; a dash for one that this hub does not count.
pub fn figure(totals: &Value, key: &str) -> String {
    totals[key].as_u64().map_or_else(|| "-".to_owned(), |n| n.to_string())
}
