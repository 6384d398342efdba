//! State that the handlers share: the engine, the model's text processing and name, and the swarm.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use serde::Deserialize;

use super::auth::ApiKey;
use super::counters::Counters;
use super::error::ApiError;
use super::grammar::Grammars;
use super::prediction::Predictor;
use super::prompts::Prompts;
use super::request::SamplingFields;
use crate::net::SwarmHandle;
use moex_engine::Engine;
use moex_engine::sampler::Sampling;
use moex_model::Checkpoint;
use moex_model::text::Text;
use moex_swarm::{Coverage, Readiness, SwarmStatus};

/// State of the API.
pub struct Api {
    pub(super) engine: Engine,
    pub(super) text: Arc<Text>,
    /// Limits on requests on their way to the engine.
    pub(super) prompts: Prompts,
    /// Request counters.
    pub(super) counters: Arc<Counters>,
    /// Grammars for constrained answers.
    pub(super) grammars: Grammars,
    /// Predicts the swarm's speed.
    pub(super) predictor: Predictor,
    template: String,
    fingerprint: String,
    request_timeout: Option<Duration>,
    swarm: SwarmHandle,
    model: String,
    defaults: Sampling,
    key: Option<ApiKey>,
    origins: Vec<String>,
    started: SystemTime,
    /// Start time by a monotonic clock.
    begun: Instant,
}

/// The parts of an [`Api`].
pub struct ApiParts<'a> {
    /// Gives the model's name and its default sampling parameters.
    pub checkpoint: &'a Checkpoint,
    /// Generates answers.
    pub engine: Engine,
    /// The tokenizer and the chat template.
    pub text: Arc<Text>,
    /// The swarm.
    pub swarm: SwarmHandle,
    /// The API key that clients must send, if any.
    pub key: Option<ApiKey>,
    /// Time limit of an answer, if any.
    pub request_timeout: Option<Duration>,
    /// The `moex` binary, which checks grammars; without it, none is checked.
    pub grammar_checker: Option<PathBuf>,
}

impl Api {
    /// Builds the state from its parts.
    ///
    /// # Errors
    /// If the checkpoint's `generation_config.json` is invalid.
    pub fn new(parts: ApiParts<'_>) -> Result<Self, String> {
        Ok(Self {
            engine: parts.engine,
            text: parts.text,
            prompts: Prompts::default(),
            counters: Arc::default(),
            grammars: Grammars::new(parts.grammar_checker),
            predictor: Predictor::default(),
            fingerprint: fingerprint(parts.checkpoint),
            template: Text::template_source(&parts.checkpoint.text).ok().flatten().unwrap_or_default(),
            request_timeout: parts.request_timeout,
            swarm: parts.swarm,
            model: parts.checkpoint.name.clone(),
            defaults: default_sampling(parts.checkpoint.text.generation_config.as_deref())?,
            key: parts.key,
            origins: Vec::new(),
            started: SystemTime::now(),
            begun: Instant::now(),
        })
    }

    /// Adds the origins (`http://10.0.0.7:8080`) by which other machines reach the hub, the best first.
    #[must_use]
    pub(crate) fn reached_by(self, origins: Vec<String>) -> Self {
        Self { origins, ..self }
    }

    pub(super) fn origins(&self) -> &[String] {
        &self.origins
    }

    /// The token that workers join with.
    pub(super) fn join_token(&self) -> &str {
        self.swarm.join_token()
    }

    /// The swarm, for what concerns who may join.
    pub(super) fn invitations(&self) -> &SwarmHandle {
        &self.swarm
    }

    /// The name the model is served under.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// `system_fingerprint`
    pub(super) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Time limit of an answer.
    pub(super) fn request_timeout(&self) -> Option<Duration> {
        self.request_timeout
    }

    /// The source of the model's chat template.
    pub(super) fn template(&self) -> &str {
        &self.template
    }

    /// Whether the chat template uses a variable.
    pub(super) fn template_reads(&self, variable: &str) -> bool {
        self.template.contains(variable)
    }

    /// Fails if no worker is connected and the hub does not compute. If some workers are connected, the swarm itself
    /// waits for missing experts.
    pub(super) async fn check_coverage(&self) -> Result<(), ApiError> {
        let is_served = |workers, coverage| self.is_ready(coverage) || workers > 0;
        let Readiness { workers, coverage } = self.readiness();
        if is_served(workers, coverage) {
            return Ok(());
        }
        // A worker may have joined in the meantime.
        let swarm = self.swarm().await;
        if is_served(swarm.workers.len(), swarm.coverage) {
            return Ok(());
        }
        Err(ApiError::uncovered(
            "No worker has joined, and this hub does not compute experts itself: open its join address in a browser tab.",
        ))
    }

    /// Positions of prompt and answer together.
    pub(super) fn context_tokens(&self) -> usize {
        self.engine.limits().context
    }

    /// Texts that are written at once.
    pub(super) fn n_slots(&self) -> usize {
        self.engine.max_sequences()
    }

    pub(super) fn started_unix_seconds(&self) -> u64 {
        unix_seconds(self.started)
    }

    /// Time since the hub started.
    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(super) fn hub_compute(&self) -> bool {
        self.swarm.computes_on_hub()
    }

    /// The swarm's current status.
    pub(super) async fn swarm(&self) -> SwarmStatus {
        self.swarm.status().await
    }

    /// Connected workers and coverage, as last published.
    pub(super) fn readiness(&self) -> Readiness {
        self.swarm.readiness()
    }

    /// Whether every expert can be computed.
    pub(super) fn is_ready(&self, coverage: Coverage) -> bool {
        self.hub_compute() || coverage.covered == coverage.blocks
    }

    /// Whether clients must send an API key.
    pub(super) fn has_key(&self) -> bool {
        self.key.is_some()
    }

    pub(super) fn check_key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        self.key.map_or(Ok(()), |key| key.check(headers))
    }

    /// Accepts the served name, `default` or no name.
    pub(super) fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            None | Some("default") => Ok(()),
            Some(asked) if asked == self.model => Ok(()),
            Some(asked) => Err(ApiError::no_such_model(asked, &self.model)),
        }
    }

    /// The request's sampling parameters; the model's own fill the rest.
    pub(super) fn sampling(&self, asked: &SamplingFields, seed: u64) -> Sampling {
        let default = &self.defaults;
        Sampling {
            temperature: asked.temperature.unwrap_or(default.temperature),
            top_k: asked.top_k.unwrap_or(default.top_k),
            // A `top_p` of 0 keeps only the most likely token: the smallest positive value does that.
            top_p: asked.top_p.unwrap_or(default.top_p).max(f32::MIN_POSITIVE),
            min_p: asked.min_p.unwrap_or(default.min_p),
            repetition_penalty: asked.repetition_penalty.unwrap_or(default.repetition_penalty),
            presence_penalty: asked.presence_penalty.unwrap_or(0.0),
            frequency_penalty: asked.frequency_penalty.unwrap_or(0.0),
            logit_bias: Vec::new(),
            seed,
        }
    }
}

/// Identifies model and hub version: results may differ only if this does.
fn fingerprint(checkpoint: &Checkpoint) -> String {
    let named = format!("{} {}", checkpoint.name, env!("CARGO_PKG_VERSION"));
    format!("fp_{}", &blake3::hash(named.as_bytes()).to_hex()[..10])
}

/// Seconds since 1970.
pub(super) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Default sampling parameters from `generation_config.json`; fields it omits have no effect.
fn default_sampling(json: Option<&[u8]>) -> Result<Sampling, String> {
    #[derive(Default, Deserialize)]
    struct GenerationConfig {
        do_sample: Option<bool>,
        temperature: Option<f32>,
        top_k: Option<u32>,
        top_p: Option<f32>,
        min_p: Option<f32>,
        repetition_penalty: Option<f32>,
    }
    let named = |error: &dyn std::fmt::Display| format!("generation_config.json: {error}");
    let config: GenerationConfig = match json {
        Some(json) => serde_json::from_slice(json).map_err(|error| named(&error))?,
        None => GenerationConfig::default(),
    };
    let none = Sampling::default();
    let sampling = Sampling {
        temperature: match config.do_sample {
            Some(true) => config.temperature.unwrap_or(1.0),
            _ => 0.0,
        },
        top_k: config.top_k.unwrap_or(none.top_k),
        top_p: config.top_p.unwrap_or(none.top_p),
        min_p: config.min_p.unwrap_or(none.min_p),
        repetition_penalty: config.repetition_penalty.unwrap_or(none.repetition_penalty),
        ..none
    };
    sampling.check().map_err(|error| named(&error))?;
    Ok(sampling)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_says_how_it_is_sampled() {
        let qwen =
            br#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2]}"#;
        let sampling = default_sampling(Some(qwen)).unwrap();
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.6, 20, 0.95));
        assert_eq!(
            default_sampling(Some(b"{\"do_sample\": false, \"temperature\": 0.6}")).unwrap().temperature,
            0.0
        );
        assert_eq!(default_sampling(None).unwrap(), Sampling::default());
    }

    #[test]
    fn a_broken_generation_config_is_named() {
        for json in ["{", r#"{"top_p": 7}"#, r#"{"top_k": "many"}"#] {
            let error = default_sampling(Some(json.as_bytes())).unwrap_err();
            assert!(error.starts_with("generation_config.json: "), "{error}");
        }
    }
}
