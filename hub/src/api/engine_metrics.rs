//! What the engine counts, as Prometheus text.

use std::fmt::Write;

use moex_engine::Counts;

/// One metric a count.
pub(super) fn text(counts: &Counts) -> String {
    let metrics = [
        ("rows", "Rows that went through the model.", counts.rows() as f64),
        ("tokens", "Tokens generated.", counts.tokens() as f64),
        ("steps", "Steps.", counts.steps() as f64),
        (
            "cached_tokens",
            "Tokens of prompts whose keys and values were there from a text that began alike.",
            counts.cached() as f64,
        ),
        ("step_seconds", "Time spent in steps.", counts.stepped().as_secs_f64()),
        (
            "waited_seconds",
            "Time of steps in which experts were away and nothing else was to be computed: the bubble.",
            counts.waited().as_secs_f64(),
        ),
    ];
    let mut out = String::new();
    for (name, help, value) in metrics {
        let name = format!("moex_engine_{name}_total");
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
    }
    let (name, help) = ("vllm:kv_cache_usage_perc", "Part of the cache of keys and values in use: 1 is all.");
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {}", counts.kv_usage());
    out
}
