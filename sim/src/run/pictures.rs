//! Draws the results of runs: distributions of times, their breakdown, their change with a setting, and the timeline of
//! one token.

use std::time::Duration;

use super::{Outcome, Part};
use crate::{
    bars::{Bars, Lane, Piece},
    histogram::Histogram,
    plot::{Axis, Chart, Curve, Legend, Scale},
};

/// Draws the distributions of all runs' times: a curve for each run's layers. With one run, also its tokens, and the
/// closed form: the slowest of as many independent answers.
pub fn latencies(title: &str, runs: &[(String, Outcome)]) -> Chart {
    let mut curves = Vec::new();
    let mut add = |label: String, mut points: Vec<(f64, f64)>| {
        if let Some((first, _)) = points.first().copied().filter(|_| points.len() > 1) {
            points.insert(0, (first, 0.0));
            curves.push(Curve { label, points, dots: Vec::new(), drops: false });
        }
    };
    for (setting, outcome) in runs {
        let named = |what: &str| if setting.is_empty() { what.to_owned() } else { setting.clone() };
        add(named("a layer's experts"), outcome.layers.cdf());
        if runs.len() == 1 {
            add("closed form".to_owned(), slowest_of_independent(&outcome.answers, &outcome.n_answers));
            add("a token".to_owned(), outcome.tokens.cdf());
            add("a first token".to_owned(), outcome.first_tokens.cdf());
        }
    }
    let ends = curves.iter().flat_map(|curve| curve.points.first().into_iter().chain(curve.points.last()));
    let (mut from, mut to) = (f64::INFINITY, f64::MIN_POSITIVE);
    for (ms, _) in ends {
        (from, to) = (from.min(*ms), to.max(*ms));
    }
    let from = if from.is_finite() { from.max(1e-3) } else { 0.1 };
    Chart {
        title: title.to_owned(),
        x: Axis {
            label: "milliseconds",
            from: libm::pow(10.0, libm::floor(libm::log10(from))),
            // Room for the legend beside the slowest curve.
            to: 5.0 * to.max(from * 2.0),
            scale: Scale::Log,
        },
        y: Axis { label: "share that is done", from: 0.0, to: 1.0, scale: Scale::Linear },
        curves,
        legend: Legend::LowerRight,
    }
}

/// P(layer <= t) = sum over n of p(n) F(t)^n, with the answers' F and the layers' numbers of answers.
fn slowest_of_independent(answers: &Histogram, n_answers: &[u64]) -> Vec<(f64, f64)> {
    let n_layers = n_answers.iter().sum::<u64>().max(1) as f64;
    let slowest = |share: f64| {
        let of = |(n, count): (usize, &u64)| *count as f64 / n_layers * libm::pow(share, n as f64);
        n_answers.iter().enumerate().map(of).sum::<f64>()
    };
    answers.cdf().into_iter().map(|(ms, share)| (ms, slowest(share))).collect()
}

/// Draws the average parts of a layer's time: one bar for each run.
pub fn stack(title: &str, runs: &[(String, Outcome)]) -> Bars {
    let lane = |(setting, outcome): &(String, Outcome)| {
        let n_layers = outcome.layers.count().max(1) as f64;
        let mut from_ms = 0.0;
        // The head belongs to a token, not to a layer.
        let parts = Part::ALL.into_iter().filter(|part| *part != Part::Head);
        let pieces = parts.map(|part| {
            let to_ms = from_ms + millis(outcome.parts.of(part)) / n_layers;
            Piece { kind: part as usize, from_ms: std::mem::replace(&mut from_ms, to_ms), to_ms }
        });
        let label = setting.split_once('=').map_or("a layer", |(_, value)| value).to_owned();
        Lane { label, pieces: pieces.collect() }
    };
    let setting = runs.first().and_then(|(setting, _)| setting.split_once('='));
    let by = setting.map_or(String::new(), |(key, _)| format!(" by {key}"));
    Bars {
        title: format!("{title}: a layer's time{by}"),
        kinds: kinds(),
        lanes: runs.iter().map(lane).collect(),
    }
}

/// Draws one token: the hub above, its workers below. `None` if no token was decoded in the middle of the run.
pub fn lanes(title: &str, outcome: &Outcome) -> Option<Bars> {
    let begun = outcome.token.iter().map(|span| span.from).min()?;
    let last = outcome.token.iter().map(|span| span.lane).max()?;
    let mut lanes: Vec<Lane> = (0..=last)
        .map(|lane| Lane {
            label: if lane == 0 { "hub".to_owned() } else { format!("worker {lane}") },
            pieces: Vec::new(),
        })
        .collect();
    for span in &outcome.token {
        let (from_ms, to_ms) = (millis(span.from - begun), millis(span.to - begun));
        lanes[span.lane].pieces.push(Piece { kind: span.part as usize, from_ms, to_ms });
    }
    let worked = lanes.into_iter().filter(|lane| !lane.pieces.is_empty()).collect();
    Some(Bars { title: format!("{title}: one token"), kinds: kinds(), lanes: worked })
}

/// Draws a token's time by the swept value; `None` if the values are not numbers.
pub fn sweep_curves(title: &str, runs: &[(String, Outcome)]) -> Option<Chart> {
    let value =
        |setting: &str| setting.split_once('=')?.1.parse::<f64>().ok().filter(|value| value.is_finite());
    let mut points: Vec<(f64, &Outcome)> =
        runs.iter().map(|(setting, outcome)| Some((value(setting)?, outcome))).collect::<Option<_>>()?;
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (first, last) = (points.first()?.0, points.last()?.0);
    let key = runs.first()?.0.split_once('=')?.0;
    let curves: Vec<Curve> = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)]
        .map(|(label, q)| {
            let points: Vec<(f64, f64)> =
                points.iter().map(|(value, outcome)| (*value, outcome.tokens.quantile_ms(q))).collect();
            Curve { label: label.to_owned(), dots: points.clone(), points, drops: false }
        })
        .into();
    let most = curves.iter().flat_map(|curve| &curve.points).map(|(_, ms)| *ms).fold(1.0, f64::max);
    (first < last).then(|| Chart {
        title: format!("{title}: a token by {key}"),
        x: Axis { label: "value", from: first, to: last, scale: Scale::Linear },
        y: Axis { label: "milliseconds", from: 0.0, to: 1.25 * most, scale: Scale::Linear },
        curves,
        legend: Legend::UpperRight,
    })
}

fn kinds() -> Vec<&'static str> {
    Part::ALL.map(Part::name).to_vec()
}

fn millis(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}
