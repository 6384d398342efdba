//! What the latency model predicts for the swarm as it is, beside what is measured, and what would help most.
//!
//! The model is `moex_latency::room`; this gives it what the hub measured: the swarm's last layers and answers, and the
//! engine's steps since a moment at least [`MIN_STEPS`] steps ago. Where that says too little, the reason stands instead of
//! numbers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use moex_engine::Counts;
use moex_latency::error::ModelError;
use moex_latency::room::{Change, Room, Step, WIRED_MS, Worker};
use moex_protocol::WorkerId;
use moex_swarm::{SwarmStatus, Verify, WorkerStatus};
use serde::Serialize;

/// Steps that a prediction covers at least.
const MIN_STEPS: u64 = 64;
/// Answers of a worker below which its latency is not known.
const MIN_ANSWERS: usize = 16;
/// Moments kept; a page asks once a second.
const MAX_MOMENTS: usize = 64;
/// Workers that are computed for: the time grows with their square.
const MAX_WORKERS: usize = 48;
/// The part of all pairs that the hub may compute itself: the model has no hub among the workers. And the part of the
/// workers' pairs that those of unknown latency may compute: a slow one is asked so rarely that it stays unknown for long.
const MAX_UNKNOWN_SHARE: f64 = 0.1;
/// The part by which a predicted layer may differ before the model says nothing of changes: workers of one machine wait
/// for each other, and it takes them for independent.
const MAX_DIFFERENCE: f64 = 0.3;
/// Changes that add less than this part are not worth their words.
const WORTH: f64 = 0.01;

/// The counts of the last minutes.
#[derive(Debug, Default)]
pub(super) struct Predictor(Mutex<VecDeque<Moment>>);

/// Prediction and measurement, or why there is none.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Prediction {
    /// In a sentence, why nothing is predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(flatten)]
    figures: Option<Figures>,
}

#[derive(Clone, Debug, Serialize)]
struct Figures {
    /// Steps that it covers.
    steps: u64,
    /// Tokens for each second that the engine computes.
    tokens_per_second: Beside,
    /// Mean time of a layer in the swarm.
    layer_micros: Beside,
    /// The part of the engine's time in which it does not wait for experts.
    hub_share: f64,
    /// What would help, the best first.
    what_ifs: Vec<WhatIf>,
    /// What to conclude, in a sentence.
    advice: String,
}

/// A predicted number beside the measured one.
#[derive(Clone, Copy, Debug, Serialize)]
struct Beside {
    predicted: f64,
    measured: f64,
    /// Of the measured one, how much the predicted one is more.
    difference: f64,
}

#[derive(Clone, Debug, Serialize)]
struct WhatIf {
    /// In words.
    change: String,
    /// Part of the predicted tokens/s that it adds.
    gain: f64,
}

/// Counts at a moment.
#[derive(Clone, Debug, Default)]
struct Moment {
    steps: u64,
    tokens: u64,
    stepped_ms: f64,
    waited_ms: f64,
    layers: u64,
    dispatches: u64,
    hedges: u64,
    hub_pairs: u64,
    /// Messages and pairs.
    workers: BTreeMap<WorkerId, (u64, u64)>,
}

impl Predictor {
    /// Predicts for the swarm at this moment, and keeps its counts for later ones.
    pub(super) fn predict(&self, counts: &Counts, status: &SwarmStatus) -> Prediction {
        let now = Moment::of(counts, status);
        let mut moments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if moments.is_empty() {
            moments.push_back(Moment::default());
        }
        // The latest that is long enough ago; before there is one, the start.
        while moments.get(1).is_some_and(|next| now.steps >= next.steps + MIN_STEPS) {
            moments.pop_front();
        }
        let since = moments.front().cloned().unwrap_or_default();
        if moments.back().is_none_or(|last| last.steps < now.steps) && moments.len() < MAX_MOMENTS {
            moments.push_back(now.clone());
        }
        drop(moments);
        match Figures::of(&since, &now, status) {
            Ok(figures) => Prediction { reason: None, figures: Some(figures) },
            Err(reason) => Prediction { reason: Some(reason), figures: None },
        }
    }
}

impl Moment {
    fn of(counts: &Counts, status: &SwarmStatus) -> Self {
        Self {
            steps: counts.steps(),
            tokens: counts.tokens(),
            stepped_ms: 1e3 * counts.stepped().as_secs_f64(),
            waited_ms: 1e3 * counts.waited().as_secs_f64(),
            layers: status.totals.layers,
            dispatches: status.totals.dispatches,
            hedges: status.totals.hedges,
            hub_pairs: status.hub.rows,
            workers: status.workers.iter().map(|w| (w.id, (w.dispatches, w.rows))).collect(),
        }
    }
}

impl Figures {
    /// The figures, or a sentence that says why there are none.
    fn of(since: &Moment, now: &Moment, status: &SwarmStatus) -> Result<Self, String> {
        let (room, names, unknown) = room(since, now, status)?;
        let failed = |error: ModelError| format!("The model has no answer: {error}.");
        let layer_ms = room.layer_ms().map_err(failed)?;
        let step = room.step;
        let layer_micros = beside(1e3 * layer_ms, 1e3 * step.layer_ms);
        let is_near = layer_micros.difference.abs() <= MAX_DIFFERENCE;
        let what_ifs = if is_near { room.what_ifs().map_err(failed)? } else { Vec::new() };
        let mut advice = match what_ifs.first() {
            _ if !is_near => {
                "The prediction is too far off to say what would help: workers that share a machine \
                              wait for each other."
                    .to_owned()
            }
            Some((change, gain)) if *gain >= WORTH => {
                format!("What would help most: {}, by {:.0} %.", in_words(*change, &names), 100.0 * gain)
            }
            _ => "None of these changes would help.".to_owned(),
        };
        if !unknown.is_empty() {
            advice.push_str(&format!(" Asked too rarely to be counted: {}.", unknown.join(", ")));
        }
        Ok(Self {
            steps: now.steps - since.steps,
            tokens_per_second: beside(room.tokens_per_s(layer_ms), room.measured_tokens_per_s()),
            layer_micros,
            hub_share: 1.0 - step.waited_ms / step.took_ms,
            what_ifs: what_ifs
                .into_iter()
                .map(|(change, gain)| WhatIf { change: in_words(change, &names), gain })
                .collect(),
            advice,
        })
    }
}

fn beside(predicted: f64, measured: f64) -> Beside {
    Beside { predicted, measured, difference: predicted / measured - 1.0 }
}

/// The room that the model computes for, its workers' names, and those of the workers that it leaves out.
fn room<'a>(
    since: &Moment,
    now: &Moment,
    status: &'a SwarmStatus,
) -> Result<(Room, Vec<&'a str>, Vec<&'a str>), String> {
    if status.workers.is_empty() {
        return Err("No worker has joined: the hub computes alone.".to_owned());
    }
    if let Some(times) = status.hub.compared.filter(|times| times.is_hub_used) {
        let ms = |micros: u64| format!("{:.1} ms", micros as f64 / 1e3);
        let own = ms(times.own_micros);
        return Err(match times.workers_micros {
            Some(workers) => format!(
                "The hub alone is faster than with its workers: a step takes {own} instead of {}. \
                 While that is so, nothing but a faster hub would help.",
                ms(workers)
            ),
            None => format!(
                "No worker answered in the last step that asked them: the hub computes, {own} a step."
            ),
        });
    }
    let n_steps = now.steps - since.steps;
    let n_layers = now.layers.saturating_sub(since.layers) as f64;
    let n_tokens = now.tokens - since.tokens;
    if n_steps < MIN_STEPS || n_tokens == 0 || n_layers == 0.0 {
        return Err(format!(
            "Too little is measured: {n_steps} steps, of at least {MIN_STEPS} with workers."
        ));
    }
    let since_of = |id| since.workers.get(&id).copied().unwrap_or_default();
    // Of one that has joined anew, the counts begin anew.
    let added = |w: &WorkerStatus| {
        let (dispatches, pairs) = since_of(w.id);
        (w.dispatches.saturating_sub(dispatches) as f64, w.rows.saturating_sub(pairs) as f64)
    };
    let asked: Vec<(&WorkerStatus, f64, f64)> = status
        .workers
        .iter()
        .map(|w| (w, added(w).0, added(w).1))
        .filter(|(.., pairs)| *pairs > 0.0)
        .collect();
    if asked.len() > MAX_WORKERS {
        return Err(format!("More than {MAX_WORKERS} workers are asked: that many are not computed for."));
    }
    let pairs = |of: &[(&WorkerStatus, f64, f64)]| of.iter().map(|(.., pairs)| pairs).sum::<f64>();
    let by_all = pairs(&asked);
    let (asked, unknown): (Vec<_>, Vec<_>) =
        asked.into_iter().partition(|(w, ..)| w.answers_micros.len() >= MIN_ANSWERS);
    if let Some((worker, ..)) = unknown.first().filter(|_| pairs(&unknown) > MAX_UNKNOWN_SHARE * by_all) {
        return Err(format!("Too little is measured of worker {}.", name(worker)));
    }
    let by_workers = pairs(&asked);
    let by_hub = now.hub_pairs.saturating_sub(since.hub_pairs) as f64;
    let hub_share = by_hub / (by_hub + by_workers).max(1.0);
    if by_workers == 0.0 || hub_share > MAX_UNKNOWN_SHARE {
        return Err(format!(
            "The hub computes {:.0} % of the experts itself, and the model only knows workers.",
            100.0 * hub_share
        ));
    }
    let hedges = now.hedges.saturating_sub(since.hedges) as f64;
    let dispatches = (now.dispatches.saturating_sub(since.dispatches) as f64).max(1.0);
    // Where two answers have to agree, the second copy does not shorten the wait.
    let is_hedged = status.verification.mode != Verify::Exact;
    let first = if is_hedged { (1.0 - hedges / dispatches).clamp(0.0, 1.0) } else { 1.0 };
    let names = asked.iter().map(|(worker, ..)| name(worker)).collect();
    let unknown = unknown.iter().map(|(worker, ..)| name(worker)).collect();
    let workers = asked
        .into_iter()
        .map(|(worker, messages, pairs)| Worker {
            answers_ms: worker.answers_micros.iter().map(|micros| *micros as f64 / 1e3).collect(),
            round_trip_ms: worker.round_trip_micros.map_or(0.0, |micros| micros as f64 / 1e3),
            asked: (messages * first / n_layers).min(1.0),
            share: pairs / by_workers,
        })
        .collect();
    let per_step = |value: f64| value / n_steps as f64;
    let step = Step {
        tokens: per_step(n_tokens as f64),
        layers: per_step(n_layers),
        took_ms: per_step(now.stepped_ms - since.stepped_ms),
        waited_ms: per_step(now.waited_ms - since.waited_ms),
        layer_ms: status.totals.layer_mean_micros as f64 / 1e3,
    };
    let hedged = if is_hedged { hedges / dispatches } else { 0.0 };
    Ok((Room { workers, pairs: by_workers / n_layers, hedged, step }, names, unknown))
}

fn in_words(change: Change, names: &[&str]) -> String {
    match change {
        Change::OneMore => "one more worker like the median one".to_owned(),
        Change::WithoutSlowest(at) => {
            format!("without the slowest worker, {}", names.get(at).copied().unwrap_or_default())
        }
        Change::Wired => format!("wired links, {WIRED_MS} ms there and back"),
        Change::FasterHub => "a hub that is twice as fast".to_owned(),
    }
}

/// As its owner or its device names it.
fn name(worker: &WorkerStatus) -> &str {
    if worker.name.is_empty() { &worker.adapter } else { &worker.name }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The status of a hub with two workers that take 5 ms, of which 4 are the way.
    fn status() -> SwarmStatus {
        let zeros = |names: &str| -> Value {
            names
                .split_whitespace()
                .map(|name| (name.to_owned(), json!(0)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let worker = |id: u32, name: &str| {
            let mut worker = zeros(
                "blocks_assigned blocks_resident bytes_resident bytes_downloaded weights_served_bytes dispatches answers \
                 rows timeouts errors latency_p50_micros latency_p99_micros sync_latency_micros queue_depth",
            );
            let more = json!({
                "id": format!("{id:032x}"), "name": name, "kind": "native", "adapter": "CPU", "backend": "cpu",
                "address": "here", "state": "serving", "tier": "decode", "reason": null, "visibility": "visible",
                "is_exact": true, "round_trip_micros": 4_000,
            });
            worker.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            worker
        };
        let model = json!({
            "name": "m", "hidden": 1, "inner": 1, "n_layers": 4, "n_experts": 8, "n_experts_per_token": 4,
            "format": "f16", "block_bytes": 1, "max_rows": 1, "max_pairs": 1,
        });
        let mut status: SwarmStatus = serde_json::from_value(json!({
            "model": model,
            "coverage": {"blocks": 32, "covered": 32, "replicas": 1},
            "workers": [worker(1, "near"), worker(2, "far")],
            "quarantined": [],
            "hub": {"rows": 0, "dispatches": 0},
            "totals": moex_swarm::Totals::default(),
            "weights_served_bytes": 0,
        }))
        .unwrap();
        status.totals.layer_mean_micros = 5_000;
        for worker in &mut status.workers {
            worker.answers_micros = vec![5_000; 32];
        }
        status
    }

    /// A hundred steps of a token and four layers, in each of which both workers are asked; 10 ms are the hub's own.
    fn counted(status: &SwarmStatus) -> Moment {
        Moment {
            steps: 100,
            tokens: 100,
            stepped_ms: 3_000.0,
            waited_ms: 2_000.0,
            layers: 400,
            dispatches: 800,
            hedges: 0,
            hub_pairs: 0,
            workers: status.workers.iter().map(|w| (w.id, (400, 800))).collect(),
        }
    }

    /// As if the workers' counts were those of `moment`.
    fn figures(mut status: SwarmStatus, now: &Moment) -> Result<Figures, String> {
        for worker in &mut status.workers {
            (worker.dispatches, worker.rows) = now.workers[&worker.id];
        }
        Figures::of(&Moment::default(), now, &status)
    }

    #[test]
    fn steady_workers_are_predicted_as_they_are_measured() {
        let status = status();
        let figures = figures(status.clone(), &counted(&status)).unwrap();
        let Beside { predicted, measured, difference } = figures.tokens_per_second;
        assert!((predicted - 1e3 / 30.0).abs() < 1e-9 && (measured - predicted).abs() < 1e-9);
        assert!(difference.abs() < 1e-9 && (figures.layer_micros.predicted - 5_000.0).abs() < 1e-6);
        assert!((figures.hub_share - 1.0 / 3.0).abs() < 1e-9);
        // 10 + 4 x (0.5 + 1) = 16 ms instead of 30.
        assert_eq!(figures.what_ifs[0].change, "wired links, 0.5 ms there and back");
        assert!((figures.what_ifs[0].gain - (30.0 / 16.0 - 1.0)).abs() < 1e-9);
        assert!(figures.advice.starts_with("What would help most: wired links, 0.5 ms there and back, by 8"));
    }

    #[test]
    fn a_worker_that_is_rarely_asked_does_not_keep_the_others_from_being_predicted() {
        let mut status = status();
        let mut now = counted(&status);
        let far = status.workers[1].id;
        status.workers[1].answers_micros.truncate(11);
        now.workers.insert(far, (11, 80));
        let predicted = figures(status.clone(), &now).unwrap();
        assert!((predicted.layer_micros.predicted - 5_000.0).abs() < 1e-6);
        assert!(predicted.advice.ends_with(" Asked too rarely to be counted: far."), "{}", predicted.advice);
        now.workers.insert(far, (11, 90));
        assert_eq!(figures(status, &now).unwrap_err(), "Too little is measured of worker far.");
    }

    #[test]
    fn a_prediction_that_is_far_off_gives_no_advice() {
        let mut status = status();
        status.totals.layer_mean_micros = 3_000;
        let figures = figures(status.clone(), &counted(&status)).unwrap();
        assert!((figures.layer_micros.difference - 2.0 / 3.0).abs() < 1e-9);
        assert!(figures.what_ifs.is_empty() && figures.advice.starts_with("The prediction is too far off"));
    }

    #[test]
    fn a_prediction_covers_the_steps_since_the_start_until_there_is_a_later_moment() {
        let (predictor, counts, status) = (Predictor::default(), Counts::default(), status());
        let first = predictor.predict(&counts, &status).reason.unwrap();
        assert_eq!(first, predictor.predict(&counts, &status).reason.unwrap());
        let moments = predictor.0.lock().unwrap();
        assert_eq!(moments.iter().map(|moment| moment.steps).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn without_enough_measured_there_is_a_sentence() {
        let status = status();
        let now = counted(&status);
        let reason = |status: SwarmStatus, now: &Moment| figures(status, now).unwrap_err();
        let few = Moment { steps: 63, ..now.clone() };
        assert_eq!(
            reason(status.clone(), &few),
            "Too little is measured: 63 steps, of at least 64 with workers."
        );
        let mut new = status.clone();
        new.workers[1].answers_micros.truncate(MIN_ANSWERS - 1);
        assert_eq!(reason(new, &now), "Too little is measured of worker far.");
        let mixed = Moment { hub_pairs: 400, ..now.clone() };
        assert!(reason(status.clone(), &mixed).starts_with("The hub computes 20 % of the experts itself"));
        let alone = SwarmStatus { workers: Vec::new(), ..status.clone() };
        assert_eq!(reason(alone, &now), "No worker has joined: the hub computes alone.");
        let mut faster = status;
        faster.hub.compared =
            Some(moex_swarm::StepTimes { own_micros: 2_000, workers_micros: Some(9_000), is_hub_used: true });
        assert!(
            reason(faster, &now)
                .starts_with("The hub alone is faster than with its workers: a step takes 2.0 ms")
        );
    }
}
