//! `/metrics`: the swarm's status and the request counters as Prometheus text. This file counts nothing itself.
//!
//! A metric that vLLM has too, with the same meaning, has vLLM's name.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use super::counters::Counters;
use super::{engine_metrics, state::Api};
use moex_swarm::{SwarmStatus, Tier, WorkerStatus};

/// The exposition format that Prometheus reads.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `GET /metrics`
pub(super) async fn metrics(State(api): State<Arc<Api>>) -> impl IntoResponse {
    let text =
        text(&api.swarm().await) + &requests(&api.counters) + &engine_metrics::text(api.engine.counts());
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text)
}

/// Request metrics, by vLLM's names.
fn requests(c: &Counters) -> String {
    let mut out = String::new();
    let numbers = [
        ("num_requests_running", "gauge", "Sequences being generated.", &c.running),
        ("num_requests_waiting", "gauge", "Sequences waiting for their first step.", &c.waiting),
        ("prompt_tokens_total", "counter", "Prompt tokens of finished sequences.", &c.prompt_tokens),
        (
            "generation_tokens_total",
            "counter",
            "Generated tokens of finished sequences.",
            &c.generation_tokens,
        ),
    ];
    for (name, kind, help, value) in numbers {
        metric(&mut out, &format!("vllm:{name}"), kind, help, [(String::new(), value.load(Relaxed) as f64)]);
    }
    let ended = [("stop", &c.stopped), ("length", &c.cut)];
    let ended = ended.map(|(why, n)| (format!("{{finished_reason=\"{why}\"}}"), n.load(Relaxed) as f64));
    metric(&mut out, "vllm:request_success_total", "counter", "Finished sequences, by finish reason.", ended);
    let times = [
        ("time_to_first_token_seconds", "Time from submission to the first piece of text.", &c.first_token),
        ("inter_token_latency_seconds", "Time between two pieces of a text.", &c.between_tokens),
        (
            "request_time_per_output_token_seconds",
            "Time per token after the first, one value per sequence.",
            &c.per_token,
        ),
        ("e2e_request_latency_seconds", "Time from submission to the end of a sequence.", &c.whole),
    ];
    for (name, help, times) in times {
        let (counts, sum) = times.read();
        let all = counts.last().map_or(0, |(_, count)| *count);
        let end = |end: f64| if end.is_finite() { end.to_string() } else { "+Inf".to_owned() };
        let buckets = counts.into_iter().map(|(to, n)| (format!("_bucket{{le=\"{}\"}}", end(to)), n as f64));
        let totals = [("_sum".to_owned(), sum), ("_count".to_owned(), all as f64)];
        metric(&mut out, &format!("vllm:{name}"), "histogram", help, buckets.chain(totals));
    }
    out
}

/// The swarm's status as text; per-worker metrics are labelled with the worker's id.
pub(super) fn text(status: &SwarmStatus) -> String {
    let mut out = String::new();
    let t = &status.totals;
    let counters = [
        ("layers", "Layers computed.", t.layers),
        ("dispatches", "Dispatches sent to workers.", t.dispatches),
        ("answers", "Answers from workers that were used.", t.answers),
        ("retries", "Dispatches sent again because an earlier attempt was not answered.", t.retries),
        ("hedges", "Hedges: second copies of dispatches.", t.hedges),
        ("hedge_wins", "Hedges that were answered first.", t.hedge_wins),
        ("hedges_denied", "Hedges not sent because the byte budget was spent.", t.hedges_denied),
        (
            "probes",
            "Probes: dispatches to workers that are otherwise not used, to measure their current speed.",
            t.probes,
        ),
        ("late_answers", "Answers that arrived after their attempt was settled or abandoned.", t.late),
        ("timeouts", "Attempts not answered in time.", t.timeouts),
        ("errors", "Attempts that failed on a worker or gave an unusable answer.", t.errors),
        ("unhealthy", "Times a worker became unhealthy by several failures in a row.", t.unhealthy),
        ("compared_answers", "Parts of answers compared with another worker's or the hub's.", t.compared),
        ("checks", "Attempts that the hub computed too, to check the answer.", t.checks),
        ("mismatches", "Answers that differed beyond the tolerance.", t.mismatches),
        (
            "doubts",
            "Wrong answers of workers whose others were used unchecked: only with --verify audit.",
            t.doubts,
        ),
        ("quarantines", "Workers quarantined for wrong answers.", t.quarantined),
        ("refused_joins", "Connections and joins refused.", t.refused),
        ("limited_connections", "Connections refused or closed for exceeding a limit.", t.limited),
        ("sessions_ended", "Sessions that ended.", t.sessions_ended),
        ("hub_computed", "Dispatches computed on the hub instead of on a worker.", t.hub_computed),
        ("hub_rows", "(row, expert) pairs computed on the hub.", status.hub.rows),
        ("duplicate_bytes", "Bytes of hedges and probes, both ways.", t.duplicate_bytes),
        ("sent_bytes", "Bytes of all messages to workers.", t.bytes_sent),
        ("received_bytes", "Bytes of all messages from workers.", t.bytes_received),
        ("weights_served_bytes", "Bytes of weights sent over HTTP.", status.weights_served_bytes),
    ];
    for (name, help, value) in counters {
        metric(&mut out, &format!("moex_{name}_total"), "counter", help, [(String::new(), value as f64)]);
    }
    let seconds = |micros: u64| micros as f64 / 1e6;
    let gauges = [
        ("blocks", "Experts of the model, all layers.", status.coverage.blocks as f64),
        ("blocks_covered", "Experts held by at least one usable worker.", status.coverage.covered as f64),
        ("workers", "Workers that have joined.", status.workers.len() as f64),
        ("workers_quarantined", "Workers in quarantine.", status.quarantined.len() as f64),
        ("layer_mean_seconds", "Mean time of the last layers.", seconds(t.layer_mean_micros)),
        ("layer_p50_seconds", "Median time of a layer.", seconds(t.layer_p50_micros)),
        ("layer_p95_seconds", "95th percentile of the time of a layer.", seconds(t.layer_p95_micros)),
        ("layer_p99_seconds", "99th percentile of the time of a layer.", seconds(t.layer_p99_micros)),
    ];
    for (name, help, value) in gauges {
        metric(&mut out, &format!("moex_{name}"), "gauge", help, [(String::new(), value)]);
    }
    type Read = fn(&WorkerStatus) -> f64;
    let of_workers: [(&str, &str, &str, Read); 11] = [
        ("healthy", "gauge", "1 unless the worker is unhealthy.", |w| {
            f64::from(u8::from(w.state != "unhealthy"))
        }),
        (
            "fallback",
            "gauge",
            "1 if the worker is used only for experts that no other worker can compute.",
            |w| f64::from(u8::from(w.tier == Tier::Fallback)),
        ),
        ("blocks_resident", "gauge", "Experts that the worker holds.", |w| w.blocks_resident as f64),
        ("queue_depth", "gauge", "Messages waiting at the worker's last heartbeat.", |w| {
            f64::from(w.queue_depth)
        }),
        ("latency_p50_seconds", "gauge", "Median time from dispatch to answer.", |w| {
            w.latency_p50_micros as f64 / 1e6
        }),
        ("latency_p99_seconds", "gauge", "99th percentile of the time from dispatch to answer.", |w| {
            w.latency_p99_micros as f64 / 1e6
        }),
        ("dispatches_total", "counter", "Dispatches sent to the worker.", |w| w.dispatches as f64),
        ("answers_total", "counter", "Answers from the worker that were used.", |w| w.answers as f64),
        ("rows_total", "counter", "(row, expert) pairs in answers from the worker that were used.", |w| {
            w.rows as f64
        }),
        ("timeouts_total", "counter", "Attempts that the worker did not answer in time.", |w| {
            w.timeouts as f64
        }),
        ("errors_total", "counter", "Attempts that failed on the worker.", |w| w.errors as f64),
    ];
    for (name, kind, help, read) in of_workers {
        // Ids are hexadecimal, so they need no escaping.
        let samples = status.workers.iter().map(|w| (format!("{{worker=\"{}\"}}", w.id), read(w)));
        metric(&mut out, &format!("moex_worker_{name}"), kind, help, samples);
    }
    out
}

fn metric(
    out: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    samples: impl IntoIterator<Item = (String, f64)>,
) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(out, "{name}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A status in which every number is another one.
    fn status() -> SwarmStatus {
        let mut n = 1000;
        let mut next = || {
            n += 1;
            json!(n)
        };
        let mut totals = serde_json::to_value(moex_swarm::Totals::default()).unwrap();
        for (_, value) in totals.as_object_mut().unwrap() {
            *value = next();
        }
        let mut worker = json!({
            "id": "0000000000000000000000000000002a", "name": "", "kind": "native", "adapter": "CPU", "backend": "cpu",
            "address": "here", "state": "unhealthy", "tier": "fallback", "reason": "slow", "visibility": "visible",
            "is_exact": true,
        });
        for name in "blocks_assigned blocks_resident bytes_resident bytes_downloaded weights_served_bytes dispatches \
                     answers rows timeouts errors latency_p50_micros latency_p99_micros sync_latency_micros queue_depth"
            .split_whitespace()
        {
            worker[name] = next();
        }
        let model = json!({
            "name": "m", "hidden": 1, "inner": 1, "n_layers": 1, "n_experts": 1, "n_experts_per_token": 1,
            "format": "f16", "block_bytes": 1, "max_rows": 1, "max_pairs": 1,
        });
        serde_json::from_value(json!({
            "model": model,
            "coverage": {"blocks": 7, "covered": 5, "replicas": 2},
            "workers": [worker],
            "quarantined": [],
            "hub": {"rows": next(), "dispatches": next()},
            "totals": totals,
            "weights_served_bytes": next(),
        }))
        .unwrap()
    }

    #[test]
    fn every_total_is_there() {
        let status = status();
        let text = text(&status);
        let values: Vec<f64> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        let Value::Object(totals) = serde_json::to_value(status.totals).unwrap() else { unreachable!() };
        for (name, value) in totals {
            let value = value.as_f64().unwrap();
            let shown = if name.ends_with("_micros") { value / 1e6 } else { value };
            assert!(values.contains(&shown), "{name} is missing");
        }
        assert!(text.contains("\nmoex_worker_healthy{worker=\"0000000000000000000000000000002a\"} 0\n"));
        assert!(text.contains("\nmoex_blocks_covered 5\n"));
    }

    #[test]
    fn a_metric_is_said_once_and_every_sample_has_one() {
        let text = text(&status());
        let names: Vec<&str> =
            text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let mut distinct = names.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), names.len());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(names.contains(&name), "{line}");
        }
    }
}
