//! Prints the results of a benchmark, as text or JSON.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use serde::Serialize;

use super::{peer::Peer, runs::Runs};
use moex_model::{Expert, Model};

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    model: String,
    compute: String,
    load_seconds: f64,
    prompt_tokens: usize,
    prefill_tokens_per_s: f64,
    generated_tokens: usize,
    decode_tokens_per_s: f64,
    at_depth: Vec<AtDepth>,
    /// Median time of each stage for single tokens: per layer, except `embed` and `head`, which run once a step.
    layer_micros: BTreeMap<&'static str, f64>,
    /// On a GPU: dispatches of a token over the layers, its time over the layers in microseconds, head and readback included, and
    /// bytes of intermediates.
    on_gpu: Option<OnGpu>,
    /// The hub's weights in the format they are computed with, and the experts as the checkpoint stores them.
    weight_bytes: usize,
    kv_bytes: usize,
    /// Peak resident memory; none where the system does not report it.
    peak_resident_bytes: Option<usize>,
    /// Tokens/s of the peer, by its own test names.
    peer: BTreeMap<String, f64>,
}

#[derive(Debug, Serialize)]
struct AtDepth {
    depth: usize,
    decode_tokens_per_s: f64,
}

#[derive(Debug, Serialize)]
struct OnGpu {
    dispatches_per_layer: f64,
    token_micros_per_layer: f64,
    /// Of intermediates, as placed.
    intermediate_bytes: usize,
    /// Of intermediates, if each had a buffer of its own.
    naive_intermediate_bytes: usize,
}

impl Report {
    pub(super) fn new(
        name: String,
        compute: String,
        load_seconds: f64,
        model: &Model,
        runs: &Runs,
        peer: Option<&Peer>,
    ) -> Self {
        let rate = |tokens: usize, taken: Duration| tokens as f64 / taken.as_secs_f64();
        let lengths = &runs.lengths;
        let at_depth = lengths.depths.iter().zip(&runs.at_depth).map(|(depth, taken)| AtDepth {
            depth: *depth,
            decode_tokens_per_s: rate(lengths.generate, *taken),
        });
        let experts = (0..model.spec().layers.len()).flat_map(|layer| model.experts(layer));
        Self {
            model: name,
            compute,
            load_seconds,
            prompt_tokens: lengths.prompt,
            prefill_tokens_per_s: rate(lengths.prompt, runs.prefill),
            generated_tokens: lengths.generate,
            decode_tokens_per_s: rate(lengths.generate, runs.decode),
            at_depth: at_depth.collect(),
            layer_micros: runs
                .stage_micros()
                .into_iter()
                .map(|(stage, micros)| (stage.name(), micros))
                .collect(),
            on_gpu: model.device().map(|device| OnGpu {
                dispatches_per_layer: device.n_dispatches() as f64 / model.spec().layers.len() as f64,
                token_micros_per_layer: runs.decode.as_secs_f64() * 1e6
                    / (lengths.generate * model.spec().layers.len()) as f64,
                intermediate_bytes: device.plan_bytes().planned,
                naive_intermediate_bytes: device.plan_bytes().naive,
            }),
            weight_bytes: model.shared_bytes() + experts.map(Expert::n_bytes).sum::<usize>(),
            kv_bytes: runs.kv_bytes(),
            peak_resident_bytes: peak_resident_bytes(),
            peer: peer.map(|peer| peer.best.clone()).unwrap_or_default(),
        }
    }

    pub(super) fn text(&self) -> String {
        const MIB: f64 = 1_048_576.0;
        let mut text = format!("{}: {}\n", self.model, self.compute);
        let mut line = |label: String, value: f64, unit: &str| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{label:>24} {value:>10.2} {unit}");
        };
        line("load".to_owned(), self.load_seconds, "s");
        line(format!("prompt of {}", self.prompt_tokens), self.prefill_tokens_per_s, "tokens/s");
        line(format!("{} tokens", self.generated_tokens), self.decode_tokens_per_s, "tokens/s");
        for at in &self.at_depth {
            line(format!("at depth {}", at.depth), at.decode_tokens_per_s, "tokens/s");
        }
        for (test, tokens_per_s) in &self.peer {
            line(format!("peer, {test}"), *tokens_per_s, "tokens/s");
        }
        for (stage, micros) in &self.layer_micros {
            line((*stage).to_owned(), *micros, "us");
        }
        if let Some(gpu) = &self.on_gpu {
            line("dispatches a layer".to_owned(), gpu.dispatches_per_layer, "");
            line("a token, by layers".to_owned(), gpu.token_micros_per_layer, "us");
            line("intermediates on the GPU".to_owned(), gpu.intermediate_bytes as f64 / MIB, "MiB");
            line("each in its own buffer".to_owned(), gpu.naive_intermediate_bytes as f64 / MIB, "MiB");
        }
        line("weights".to_owned(), self.weight_bytes as f64 / MIB, "MiB");
        line("keys and values".to_owned(), self.kv_bytes as f64 / MIB, "MiB");
        if let Some(bytes) = self.peak_resident_bytes {
            line("resident at most".to_owned(), bytes as f64 / MIB, "MiB");
        }
        text
    }
}

/// Reads the peak that Linux counted.
fn peak_resident_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}
