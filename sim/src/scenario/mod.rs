//! Reads scenario files: a room with links, devices and work, as TOML, validated before the run.
//!
//! The error for a wrong figure names its line and the reason; nothing is guessed. [`crate::run`] runs scenarios.

mod check;
mod presets;

use std::{fmt, sync::Arc};

use serde::Deserialize;

use crate::{replay::Trace, world::Sizes};

pub use self::check::Checked;
pub use self::presets::{DEVICES, LINKS, MODELS};

/// The longest scenario text.
pub const MAX_SCENARIO_BYTES: usize = 1 << 20;

/// An error in a scenario, and its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ScenarioError {
    /// Counted from 1; `None` if the error belongs to no line.
    pub line: Option<usize>,
    /// The reason, in a sentence.
    pub why: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

/// A scenario as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Seed of all random draws.
    #[serde(default = "one")]
    pub seed: u64,
    /// The served model.
    #[serde(default)]
    pub model: ModelKeys,
    /// The hub.
    #[serde(default)]
    pub hub: HubKeys,
    /// The settings of the swarm.
    #[serde(default)]
    pub swarm: SwarmKeys,
    /// Groups of equal workers.
    #[serde(default)]
    pub workers: Vec<WorkerKeys>,
    /// The routing of rows to experts.
    #[serde(default)]
    pub routing: RoutingKeys,
    /// The load on the hub.
    #[serde(default)]
    pub load: LoadKeys,
}

/// `[model]`: a preset, and the values that differ from it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelKeys {
    /// `qwen3-30b-a3b`, the default, or `paper`.
    pub preset: Option<String>,
    /// D.
    pub hidden: Option<u32>,
    /// F.
    pub inner: Option<u32>,
    /// Layers with experts.
    pub layers: Option<u16>,
    /// E.
    pub experts: Option<u16>,
    /// K.
    pub k: Option<u16>,
    /// The format of the experts on workers: `int4` by default.
    pub format: Option<String>,
}

/// `[hub]`: the costs of the hub's own part of a layer and a token.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HubKeys {
    /// Attention and router of a layer.
    pub attention_ms: f64,
    /// The additional time for each row beyond the first.
    pub row_ms: f64,
    /// Writing a layer's messages.
    pub serialise_ms: f64,
    /// Adding up a layer's answers.
    pub combine_ms: f64,
    /// Head and sampler, once a token.
    pub head_ms: f64,
    /// The rate of its end of all links, each direction, Mbit/s. Default: that of the fastest worker's link, as on one network.
    pub link_mbit: Option<f64>,
    /// The device for experts that no worker can compute.
    pub device: Option<DeviceKeys>,
}

impl Default for HubKeys {
    /// The paper's 1.5, 0.7 and 0.2 ms (section 5): attention, serialising and combining.
    fn default() -> Self {
        Self {
            attention_ms: 1.5,
            row_ms: 0.0,
            serialise_ms: 0.7,
            combine_ms: 0.2,
            head_ms: 0.0,
            link_mbit: None,
            device: None,
        }
    }
}

/// `[swarm]`: the hub's own settings, under the same names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwarmKeys {
    /// Copies of each block.
    pub replicas: usize,
    /// Workers asked at once, 1 to 4, or `adaptive`.
    pub hedge: HedgeKey,
    /// `blocking`, `exact` or `audit`: what answers carry to be checked by; checks themselves take no time. Default, as the
    /// hub's: `blocking`, or `audit` if the hub computes nothing.
    pub verify: Option<String>,
    /// One in so many answers is checked against the hub's own; 0 checks none.
    pub check_every: u32,
    /// The time until another worker is asked.
    pub timeout_ms: f64,
    /// Whether the hub computes what no worker can.
    pub hub_compute: bool,
    /// Number format on the wire.
    pub wire: String,
}

impl Default for SwarmKeys {
    fn default() -> Self {
        Self {
            replicas: 2,
            hedge: HedgeKey::Word("adaptive".to_owned()),
            verify: None,
            check_every: 256,
            timeout_ms: 500.0,
            hub_compute: true,
            wire: "f16".to_owned(),
        }
    }
}

/// A number of workers, or a word.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum HedgeKey {
    /// This many at once.
    Copies(u8),
    /// `adaptive`.
    Word(String),
}

/// `[[workers]]`: a group of equal workers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerKeys {
    /// The number of workers.
    pub count: usize,
    /// The memory of each for experts.
    pub memory_gib: f64,
    /// A preset's name, or a table.
    pub device: Named<DeviceKeys>,
    /// A preset's name, or a table.
    pub link: Named<LinkKeys>,
    /// Dispatches that each takes at a time.
    #[serde(default = "four")]
    pub slots: u8,
    /// How often a worker leaves, on average; never if absent.
    pub leaves_per_hour: Option<f64>,
    /// How long it is gone.
    #[serde(default = "thirty")]
    pub away_s: f64,
}

/// The name of a preset, or a table of values.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Named<T> {
    /// The preset unchanged.
    Preset(String),
    /// Values of its own.
    Table(T),
}

/// A device. Missing values come from its preset.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceKeys {
    /// The preset for missing values.
    pub preset: Option<String>,
    /// The rate of reading weights.
    pub gigabytes_per_s: Option<f64>,
    /// The rate of arithmetic.
    pub teraflops: Option<f64>,
    /// Of each message: launching.
    pub launch_ms: Option<f64>,
    /// Of each message: waiting for the device.
    pub sync_ms: Option<f64>,
    /// Spread of launch and sync, as the deviation of their logarithm.
    pub jitter_sigma: Option<f64>,
}

/// A link. Missing values come from its preset.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkKeys {
    /// The preset for missing values.
    pub preset: Option<String>,
    /// Both ways, without jitter.
    pub round_trip_ms: Option<f64>,
    /// The median of the additional time each way.
    pub jitter_ms: Option<f64>,
    /// Its spread, as the deviation of its logarithm.
    pub jitter_sigma: Option<f64>,
    /// The rate from hub to worker; unlimited if absent.
    pub down_mbit: Option<f64>,
    /// The rate from worker to hub; unlimited if absent.
    pub up_mbit: Option<f64>,
}

/// `[routing]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "lowercase")]
pub enum RoutingKeys {
    /// All experts are equally likely.
    #[default]
    Uniform,
    /// By rank: the n-th expert with weight n^-exponent, ranks shuffled for each layer.
    Zipf {
        /// 0 is uniform.
        exponent: f64,
    },
    /// A row keeps the expert that its stream's last row had there, with this probability.
    Sticky {
        /// 0 is uniform.
        stay: f64,
    },
    /// The rows that a hub's router chose, one after another; starts again when they are used up.
    Recorded {
        /// The file that `moex serve --trace` wrote, in the folder of the scenario's file.
        trace: String,
    },
}

/// The recorded choices of a router: for each layer its rows' experts, K each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded(Vec<Vec<u16>>);

impl Recorded {
    /// The choices in a trace.
    pub fn of(trace: &Trace) -> Self {
        let mut layers = vec![Vec::new(); usize::from(trace.sizes.n_layers)];
        for layer in trace.steps.iter().flat_map(|step| &step.layers) {
            layers[usize::from(layer.layer)].extend_from_slice(&layer.experts);
        }
        Self(layers)
    }

    /// The experts of a layer's `row`-th row; starts again after the last one.
    pub(crate) fn row(&self, layer: usize, row: usize, k: usize) -> &[u16] {
        let all = &self.0[layer];
        let at = row % (all.len() / k) * k;
        &all[at..at + k]
    }
}

impl Checked {
    /// The trace that contains the scenario's routing, if there is one; [`Self::with_recorded`] needs it.
    pub fn recorded_from(&self) -> Option<&str> {
        match &self.scenario.routing {
            RoutingKeys::Recorded { trace } => Some(trace),
            _ => None,
        }
    }

    /// The scenario with the routing of a trace.
    ///
    /// # Errors
    /// If the trace is of another model.
    pub fn with_recorded(self, trace: &Trace) -> Result<Self, ScenarioError> {
        let (ours, theirs) = (&self.sizes, &trace.sizes);
        let figures = |sizes: &Sizes| (sizes.n_layers, sizes.n_experts, sizes.k);
        let recorded = Recorded::of(trace);
        let k = usize::from(ours.k);
        if figures(ours) != figures(theirs) || recorded.0.iter().any(|layer| layer.len() < k) {
            let (layers, experts, k) = figures(theirs);
            let why = format!(
                "the trace is of {layers} layers with {k} of {experts} experts a row; the scenario's model has {}, {} and {}",
                ours.n_layers, ours.k, ours.n_experts
            );
            return Err(ScenarioError { line: None, why });
        }
        Ok(Self { recorded: Some(Arc::new(recorded)), ..self })
    }
}

/// `[load]`: the load on the hub.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadKeys {
    /// The number of requests.
    pub streams: usize,
    /// Rows of each prompt.
    pub prompt: usize,
    /// Tokens of each answer.
    pub tokens: usize,
    /// How many requests begin a second, on average; all at once if absent.
    pub arrivals_per_s: Option<f64>,
    /// The most rows of a step.
    pub step_rows: usize,
}

impl Default for LoadKeys {
    fn default() -> Self {
        Self { streams: 1, prompt: 1, tokens: 100, arrivals_per_s: None, step_rows: 128 }
    }
}

impl Scenario {
    /// Reads and checks a scenario.
    ///
    /// # Errors
    /// The first error and its line.
    pub fn parse(text: &str) -> Result<Checked, ScenarioError> {
        if text.len() > MAX_SCENARIO_BYTES {
            let why = format!("a scenario has at most {MAX_SCENARIO_BYTES} bytes");
            return Err(ScenarioError { line: None, why });
        }
        let scenario: Self = toml::from_str(text).map_err(|error| ScenarioError {
            line: error.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count()),
            why: error.message().to_owned(),
        })?;
        check::check(&scenario, text)
    }

    /// Reads and checks a scenario after setting some keys, such as `swarm.hedge` or `workers.0.link`.
    ///
    /// # Errors
    /// As [`Scenario::parse`]; an error in a value of `sets` has no line.
    pub fn parse_with(text: &str, sets: &[(String, String)]) -> Result<Checked, ScenarioError> {
        if sets.is_empty() {
            return Self::parse(text);
        }
        Self::parse(text)?;
        let without_line = |why: String| ScenarioError { line: None, why };
        let mut table: toml::Table =
            toml::from_str(text).map_err(|error| without_line(error.message().to_owned()))?;
        for (key, value) in sets {
            set(&mut table, key, value).map_err(without_line)?;
        }
        let all: Vec<String> = sets.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let text = table.to_string();
        Self::parse(&text).map_err(|error| without_line(format!("with {}: {}", all.join(", "), error.why)))
    }
}

/// Sets the value at a dotted key; numbers between dots index a list.
fn set(table: &mut toml::Table, key: &str, value: &str) -> Result<(), String> {
    // A bare word is a text: `workers.0.link=wifi`.
    let parsed = toml::from_str::<toml::Table>(&format!("value = {value}"));
    let parsed = parsed.ok().and_then(|mut table| table.remove("value"));
    let value = parsed.unwrap_or_else(|| toml::Value::String(value.to_owned()));
    let missing = || format!("the scenario has no table or list for the key '{key}'");
    let mut parts = key.split('.').peekable();
    let mut at: &mut toml::Value = table
        .entry(parts.next().ok_or_else(missing)?)
        .or_insert_with(|| toml::Value::Table(toml::Table::new()));
    for part in parts {
        at = match at {
            toml::Value::Table(table) => {
                table.entry(part).or_insert_with(|| toml::Value::Table(toml::Table::new()))
            }
            toml::Value::Array(list) => {
                part.parse().ok().and_then(|index: usize| list.get_mut(index)).ok_or_else(missing)?
            }
            _ => return Err(missing()),
        };
    }
    *at = value;
    Ok(())
}

fn one() -> u64 {
    1
}

fn four() -> u8 {
    4
}

fn thirty() -> f64 {
    30.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
[model]
preset = 'qwen3-30b-a3b'
layers = 4

[[workers]]
count = 2
memory_gib = 2.0
device = 'apple-m2'
link = { preset = 'wifi', round_trip_ms = 3.0 }
";

    fn error(text: &str) -> (Option<usize>, String) {
        let error = Scenario::parse(text).expect_err("something is wrong");
        (error.line, error.why)
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_why() {
        assert!(Scenario::parse(GOOD).is_ok());
        for (wrong, line, word) in [
            (GOOD.replace("memory_gib", "memory_gb"), 7, "memory_gb"),
            (GOOD.replace("3.0 }", "-3.0 }"), 9, "round_trip_ms"),
            (GOOD.replace("count = 2", "count = 0"), 6, "count"),
            (GOOD.replace("gib = 2.0", "gib = 0.1"), 7, "not fit"),
            (GOOD.replace("apple-m2", "toaster"), 8, "rtx-4090"),
            (GOOD.replace("layers = 4", "layers = 0"), 3, "layers"),
            (format!("{GOOD}\n[load]\ntokens = 0\n"), 12, "tokens"),
            (format!("{GOOD}\n[swarm]\nwire = 'int8'\n"), 12, "verify \"blocking\" needs wire f16 or bf16"),
            (format!("{GOOD}\n[routing]\nkind = 'zipf'\nexponent = -1.0\n"), 13, "exponent"),
        ] {
            let wrong =
                if word == "not fit" { format!("{wrong}\n[swarm]\nhub_compute = false\n") } else { wrong };
            let (at, why) = error(&wrong);
            assert_eq!(at, Some(line), "{why}");
            assert!(why.contains(word), "{why}");
        }
        assert_eq!(
            error("[load]\ntokens = 5\n"),
            (None, "there are no workers: a [[workers]] table adds some".into())
        );
    }

    #[test]
    fn keys_can_be_set_from_outside() {
        let set = |key: &str, value: &str| {
            Scenario::parse_with(GOOD, &[(key.to_owned(), value.to_owned())]).map(|checked| checked.scenario)
        };
        assert_eq!(set("swarm.hedge", "2").unwrap().swarm.hedge, HedgeKey::Copies(2));
        assert_eq!(set("workers.0.count", "7").unwrap().workers[0].count, 7);
        assert!(matches!(set("workers.0.link", "ethernet").unwrap().workers[0].link, Named::Preset(_)));
        assert!(set("workers.0.count", "0").unwrap_err().why.contains("workers.0.count=0"));
        assert!(set("workers.3.count", "1").is_err() && set("speed", "9").is_err());
    }
}
