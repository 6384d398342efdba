//! The results of runs as text: one run as a list, several as one row each. `pictures` draws them.

use std::time::Duration;

use moex_swarm::Totals;

use crate::{
    histogram::Histogram,
    report::{Cell, Column, Digits, Table},
    world::{TimedLayer, Traffic},
};

use super::{Part, Parts, Span, parts::winners};

/// The most answers of one layer that are counted separately.
const MAX_ANSWERS: usize = 64;

/// The measurements between the first request and the last token.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Tokens that were sampled.
    pub n_tokens: u64,
    /// From the first request to the last token.
    pub time: Duration,
    /// The time that workers took before that to load their blocks.
    pub start: Duration,
    /// From a request's arrival to its first token.
    pub first_tokens: Histogram,
    /// The time between two tokens of a request.
    pub tokens: Histogram,
    /// From a layer's start to its sum: the expert phase.
    pub layers: Histogram,
    /// For each answer that counted: from the start of its message, or of the hub's computation, to its arrival.
    pub answers: Histogram,
    /// The number of layers by their number of answers that counted; more answers count as the most.
    pub n_answers: Vec<u64>,
    /// Where the time went.
    pub parts: Parts,
    /// The spans of one token in the middle of the run; empty if none was decoded there.
    pub token: Vec<Span>,
    /// Counts before the first request.
    pub(super) before: (Totals, Traffic),
    /// Counts after the last token.
    pub(super) after: (Totals, Traffic),
}

impl Outcome {
    /// Tokens a second of all requests together.
    pub fn tokens_per_s(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.n_tokens as f64 / self.time.as_secs_f64() }
    }

    /// Adds a finished layer.
    pub(super) fn take_layer(&mut self, took: Duration, layer: &TimedLayer) {
        self.parts.add_layer(took, layer);
        let micros = Duration::from_micros;
        let from_workers = winners(layer).map(|(attempt, _)| (attempt.sent, attempt.ended));
        let from_hub = layer.record.hub.iter().filter_map(|work| Some((work.sent, work.ended?)));
        let mut n = 0;
        for (sent, ended) in from_workers.chain(from_hub) {
            self.answers.record(micros(ended).saturating_sub(micros(sent)));
            n += 1;
        }
        self.n_answers.resize(MAX_ANSWERS + 1, 0);
        self.n_answers[n.min(MAX_ANSWERS)] += 1;
    }

    /// The swarm's counts of this run, and the traffic's.
    pub fn counts(&self) -> (Totals, Traffic) {
        let ((totals, traffic), (totals_before, traffic_before)) = (self.after, self.before);
        let traffic = Traffic {
            events: traffic.events - traffic_before.events,
            bytes_down: traffic.bytes_down - traffic_before.bytes_down,
            bytes_up: traffic.bytes_up - traffic_before.bytes_up,
            bytes_loaded: traffic.bytes_loaded - traffic_before.bytes_loaded,
            compute: traffic.compute - traffic_before.compute,
        };
        (totals.since(&totals_before), traffic)
    }

    /// Key, unit and value of each figure.
    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        let (totals, traffic) = self.counts();
        let tokens = self.n_tokens.max(1) as f64;
        let share =
            |time: Duration| 100.0 * time.as_secs_f64() / self.time.as_secs_f64().max(f64::MIN_POSITIVE);
        let millis = |time: Duration| time.as_nanos() as f64 / 1e6;
        let compute_ms = millis(traffic.compute) / totals.dispatches.max(1) as f64;
        let where_it_goes = Part::ALL.map(|part| (part.name(), "% of time", share(self.parts.of(part))));
        let mut figures = vec![
            ("tokens_per_s", "1/s", self.tokens_per_s()),
            ("first_token_p50", "ms", self.first_tokens.quantile_ms(0.5)),
            ("first_token_p99", "ms", self.first_tokens.quantile_ms(0.99)),
            ("token_p50", "ms", self.tokens.quantile_ms(0.5)),
            ("token_p95", "ms", self.tokens.quantile_ms(0.95)),
            ("token_p99", "ms", self.tokens.quantile_ms(0.99)),
            ("layer_mean", "ms", self.layers.mean_ms()),
            ("layer_p50", "ms", self.layers.quantile_ms(0.5)),
            ("layer_p95", "ms", self.layers.quantile_ms(0.95)),
            ("layer_p99", "ms", self.layers.quantile_ms(0.99)),
        ];
        figures.extend(where_it_goes);
        figures.extend([
            ("experts", "% of time", share(self.parts.experts())),
            ("idle", "% of time", share(self.time.saturating_sub(self.parts.total()))),
            ("compute_per_dispatch", "ms", compute_ms),
            ("dispatches", "/token", totals.dispatches as f64 / tokens),
            ("hedges", "/token", totals.hedges as f64 / tokens),
            ("hedge_wins", "/token", totals.hedge_wins as f64 / tokens),
            ("duplicate_bytes", "KiB/token", totals.duplicate_bytes as f64 / 1024.0 / tokens),
            ("retries", "/token", totals.retries as f64 / tokens),
            ("timeouts", "", totals.timeouts as f64),
            ("late", "", totals.late as f64),
            ("hub_computed", "/token", totals.hub_computed as f64 / tokens),
            ("bytes_down", "KiB/token", traffic.bytes_down as f64 / 1024.0 / tokens),
            ("bytes_up", "KiB/token", traffic.bytes_up as f64 / 1024.0 / tokens),
            ("tokens", "", self.n_tokens as f64),
            ("time", "s", self.time.as_secs_f64()),
        ]);
        figures
    }
}

/// A table of one run, with one line for each figure.
pub fn table(title: &str, outcome: &Outcome) -> Table {
    let rows = outcome
        .figures()
        .into_iter()
        .map(|(key, unit, value)| vec![Cell::from(key), value.into(), unit.into()]);
    Table {
        name: "run",
        title: title.to_owned(),
        columns: vec![
            Column { key: "figure", heading: "figure", digits: Digits::Mixed },
            Column { key: "value", heading: "value", digits: Digits::Mixed },
            Column { key: "unit", heading: "unit", digits: Digits::Mixed },
        ],
        rows: rows.collect(),
        notes: vec![
            "A layer's time is the wait for its experts, from the hub's first message to the last answer it needed."
                .to_owned(),
            "That wait, 'experts', is taken apart: network, queue, sync and compute of its answers' mean, and what the slowest of them took beyond it."
                .to_owned(),
            format!("Before the first request, workers took {:.1} s to load from their own stores.", outcome.start.as_secs_f64()),
        ],
    }
}

/// A table of several runs, with one row for each, by the value that was set.
pub fn sweep_table(title: &str, runs: &[(String, Outcome)]) -> Table {
    let mut columns = vec![Column { key: "setting", heading: "setting", digits: Digits::Mixed }];
    let keys = runs.first().map(|(_, outcome)| outcome.figures()).unwrap_or_default();
    columns.extend(keys.iter().map(|(key, ..)| Column { key, heading: key, digits: Digits::Mixed }));
    let row = |(setting, outcome): &(String, Outcome)| {
        let figures = outcome.figures().into_iter().map(|(_, _, value)| Cell::Number(value));
        std::iter::once(Cell::Text(setting.clone())).chain(figures).collect()
    };
    Table {
        name: "sweep",
        title: title.to_owned(),
        columns,
        rows: runs.iter().map(row).collect(),
        notes: Vec::new(),
    }
}
