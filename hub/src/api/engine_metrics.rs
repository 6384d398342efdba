//! The engine's counters as Prometheus text.

use std::fmt::Write;

use moex_engine::Counts;

/// Writes one metric per counter.
pub(super) fn text(counts: &Counts) -> String {
    let metrics = [
        ("rows", "Rows computed by the model.", counts.rows() as f64),
        ("tokens", "Tokens generated.", counts.tokens() as f64),
        ("steps", "Forward passes.", counts.steps() as f64),
        (
            "cached_tokens",
            "Prompt tokens whose keys and values were in the prefix cache.",
            counts.cached() as f64,
        ),
        ("step_seconds", "Time spent in forward passes.", counts.stepped().as_secs_f64()),
        (
            "waited_seconds",
            "Time in forward passes spent waiting for experts with nothing else to compute (bubble).",
            counts.waited().as_secs_f64(),
        ),
    ];
    let mut out = String::new();
    for (name, help, value) in metrics {
        let name = format!("moex_engine_{name}_total");
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
    }
    let (name, help) = ("vllm:kv_cache_usage_perc", "Fraction of the KV cache in use: 1 is full.");
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {}", counts.kv_usage());
    out
}
