//! Validates a scenario: fills in presets, checks bounds, and checks that the model fits into memory.

use std::{sync::Arc, time::Duration};

use moex_kernels::{ExpertShape, WeightFormat};
use moex_protocol::Dtype;
use moex_swarm::{Hedge, Verify};

use super::{
    DeviceKeys, HedgeKey, LinkKeys, Named, Recorded, RoutingKeys, Scenario, ScenarioError,
    presets::{self, delay, from_seconds},
};
use crate::{
    error::ModelError,
    limits::{MAX_SIGMA, MAX_TIME_MS},
    world::{Device, Link, Sizes, from_millis},
};

/// The most workers of all groups together.
const MAX_WORKERS: usize = 1_000;
/// The most requests of a run, and the most tokens or prompt rows of a request.
const MAX_COUNT: usize = 1_000_000;
/// The most rows of a step.
const MAX_STEP_ROWS: usize = 1_024;
const GIB: f64 = (1u64 << 30) as f64;

/// A validated scenario.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The scenario as written.
    pub scenario: Scenario,
    /// The model's sizes.
    pub sizes: Sizes,
    /// How many workers each layer's experts are requested from, and when.
    pub hedge: Hedge,
    /// What answers carry to be checked by.
    pub verify: Verify,
    /// The number format on the wire.
    pub wire: Dtype,
    /// Groups of equal workers, in the order of the file.
    pub groups: Vec<Group>,
    /// The hub's device for experts.
    pub hub_device: Device,
    /// The rate of the hub's end of all links, each direction; none: unlimited.
    pub hub_bytes_per_s: Option<u64>,
    /// The recorded routing, if the scenario uses one.
    pub recorded: Option<Arc<Recorded>>,
}

/// A group of equal workers.
#[derive(Clone, Debug)]
pub struct Group {
    /// The number of workers.
    pub count: usize,
    /// The memory of each for experts, bytes.
    pub memory_bytes: u64,
    /// Each has its own.
    pub link: Link,
    /// Each has its own.
    pub device: Device,
    /// The speed that each reports for its device.
    pub teraflops: f32,
    /// The time that each reports for a sync.
    pub sync_micros: u64,
    /// Dispatches that each takes at a time.
    pub slots: u8,
    /// The mean time between two departures of one of them, and the time that it is gone.
    pub churn: Option<(Duration, Duration)>,
}

/// The position of a figure: the table's header, its index among tables of this name, and the key.
#[derive(Clone, Copy)]
struct Place<'a> {
    text: &'a str,
    table: &'a str,
    index: usize,
}

pub(super) fn check(scenario: &Scenario, text: &str) -> Result<Checked, ScenarioError> {
    let place = |table| Place { text, table, index: 0 };
    let sizes = sizes(scenario, place("model"))?;
    let load = place("load");
    for (key, value, most) in [
        ("streams", scenario.load.streams, MAX_COUNT),
        ("prompt", scenario.load.prompt, MAX_COUNT),
        ("tokens", scenario.load.tokens, MAX_COUNT),
        ("step_rows", scenario.load.step_rows, MAX_STEP_ROWS),
    ] {
        load.within(key, value as f64, 1.0, most as f64)?;
    }
    if let Some(rate) = scenario.load.arrivals_per_s {
        load.within("arrivals_per_s", rate, 1e-6, 1e6)?;
    }
    let hub = place("hub");
    for (key, ms) in [
        ("attention_ms", scenario.hub.attention_ms),
        ("row_ms", scenario.hub.row_ms),
        ("serialise_ms", scenario.hub.serialise_ms),
        ("combine_ms", scenario.hub.combine_ms),
        ("head_ms", scenario.hub.head_ms),
    ] {
        hub.within(key, ms, 0.0, MAX_TIME_MS)?;
    }
    if let Some(mbit) = scenario.hub.link_mbit {
        hub.within("link_mbit", mbit, 1e-3, 1e9)?;
    }
    let swarm = place("swarm");
    swarm.within("replicas", scenario.swarm.replicas as f64, 1.0, 16.0)?;
    let hedge = match &scenario.swarm.hedge {
        HedgeKey::Copies(copies) => copies.to_string().parse::<Hedge>(),
        HedgeKey::Word(word) => word.parse(),
    };
    let hedge = hedge.map_err(|why| swarm.error("hedge", format!("hedge: {why}")))?;
    swarm.within("timeout_ms", scenario.swarm.timeout_ms, 1.0, MAX_TIME_MS)?;
    let verify = match &scenario.swarm.verify {
        Some(verify) => verify.parse().map_err(|why| swarm.error("verify", format!("verify: {why}")))?,
        None => Verify::by_default(scenario.swarm.hub_compute),
    };
    let wire = scenario.swarm.wire.parse().map_err(|_| {
        swarm.error(
            "wire",
            format!("'{}' is no number format: f16, bf16, int8 and int4 are", scenario.swarm.wire),
        )
    })?;
    if verify != Verify::Audit && matches!(wire, Dtype::Int8 | Dtype::Int4) {
        let why = format!(
            "verify \"{verify}\" needs wire f16 or bf16, as for `moex serve`; or verify is \"audit\""
        );
        return Err(swarm.error("wire", why));
    }
    match scenario.routing {
        RoutingKeys::Uniform | RoutingKeys::Recorded { .. } => {}
        RoutingKeys::Zipf { exponent } => place("routing").within("exponent", exponent, 0.0, 10.0)?,
        RoutingKeys::Sticky { stay } => place("routing").within("stay", stay, 0.0, 1.0)?,
    }
    let groups = groups(scenario, &sizes, text)?;
    let default_device = DeviceKeys { preset: Some("wasm-simd".to_owned()), ..DeviceKeys::default() };
    let hub_device = Named::Table(scenario.hub.device.clone().unwrap_or(default_device));
    let (hub_device, _) = device(&hub_device, &sizes, hub)?;
    let hub_bytes_per_s = match scenario.hub.link_mbit {
        Some(mbit) => Some(presets::bytes_per_s(mbit)),
        None => fastest(&groups),
    };
    let (scenario, recorded) = (scenario.clone(), None);
    Ok(Checked { scenario, sizes, hedge, verify, wire, groups, hub_device, hub_bytes_per_s, recorded })
}

/// The rate of the fastest link; none if one is unlimited.
fn fastest(groups: &[Group]) -> Option<u64> {
    let rates = groups.iter().flat_map(|group| [group.link.up.bytes_per_s, group.link.down.bytes_per_s]);
    rates.reduce(|a, b| Some(a?.max(b?))).flatten()
}

fn sizes(scenario: &Scenario, place: Place<'_>) -> Result<Sizes, ScenarioError> {
    let keys = &scenario.model;
    let name = keys.preset.as_deref().unwrap_or("qwen3-30b-a3b");
    let base = presets::model(name)
        .ok_or_else(|| place.error("preset", format!("'{name}' is no model: {} are", presets::MODELS)))?;
    let take = |key, own: Option<u32>, preset: Option<u32>, most: u32| {
        let value = own.or(preset).unwrap_or(0);
        place.within(key, value.into(), 1.0, most.into()).map(|()| value)
    };
    let wide = |value: Option<u16>| value.map(u32::from);
    let hidden = take("hidden", keys.hidden, base.hidden, moex_protocol::limits::MAX_HIDDEN.into())?;
    let inner = take("inner", keys.inner, base.inner, 1 << 16)?;
    let n_layers = take("layers", wide(keys.layers), wide(base.layers), 1_024)? as u16;
    let n_experts = take("experts", wide(keys.experts), wide(base.experts), 1_024)? as u16;
    let k = take("k", wide(keys.k), wide(base.k), n_experts.into())? as u16;
    let format = keys.format.as_deref().unwrap_or("int4");
    let format: WeightFormat = format.parse().map_err(|_| {
        let known = WeightFormat::ALL.map(WeightFormat::name).join(", ");
        place.error("format", format!("'{format}' is no weight format: {known} are"))
    })?;
    let shape = ExpertShape::uniform(hidden as usize, inner as usize, format);
    Ok(Sizes { shape, n_layers, n_experts, k, max_rows: scenario.load.step_rows as u32 })
}

fn groups(scenario: &Scenario, sizes: &Sizes, text: &str) -> Result<Vec<Group>, ScenarioError> {
    if scenario.workers.is_empty() {
        let why = "there are no workers: a [[workers]] table adds some".to_owned();
        return Err(ScenarioError { line: None, why });
    }
    let mut groups = Vec::new();
    for (index, keys) in scenario.workers.iter().enumerate() {
        let place = Place { text, table: "workers", index };
        place.within("count", keys.count as f64, 1.0, MAX_WORKERS as f64)?;
        place.within("memory_gib", keys.memory_gib, 1e-6, 1e6)?;
        place.within("slots", keys.slots.into(), 1.0, moex_protocol::limits::MAX_SLOTS.into())?;
        place.within("away_s", keys.away_s, 0.0, 1e6)?;
        let churn = match keys.leaves_per_hour {
            None => None,
            Some(rate) => {
                place.within("leaves_per_hour", rate, 1e-3, 1e6)?;
                Some((from_seconds(3600.0 / rate), from_seconds(keys.away_s)))
            }
        };
        let (device, figures) = device(&keys.device, sizes, place)?;
        groups.push(Group {
            count: keys.count,
            memory_bytes: (keys.memory_gib * GIB) as u64,
            link: link(&keys.link, place)?,
            device,
            teraflops: figures.teraflops.unwrap_or(f64::NAN) as f32,
            sync_micros: (figures.sync_ms.unwrap_or(0.0) * 1e3) as u64,
            slots: keys.slots,
            churn,
        });
    }
    fits(scenario, sizes, &groups, text)?;
    Ok(groups)
}

/// Checks that the workers together hold the model, unless the hub computes the rest.
fn fits(scenario: &Scenario, sizes: &Sizes, groups: &[Group], text: &str) -> Result<(), ScenarioError> {
    let place = Place { text, table: "workers", index: 0 };
    let block_bytes = sizes.shape.block_bytes() as u64;
    let n_blocks = u64::from(sizes.n_layers) * u64::from(sizes.n_experts);
    let room: u64 = groups.iter().map(|group| group.count as u64 * (group.memory_bytes / block_bytes)).sum();
    if groups.iter().map(|group| group.count).sum::<usize>() > MAX_WORKERS {
        return Err(place.error("count", format!("there are more than {MAX_WORKERS} workers")));
    }
    if room >= n_blocks || scenario.swarm.hub_compute {
        return Ok(());
    }
    let gib = |blocks: u64| blocks as f64 * block_bytes as f64 / GIB;
    let (has, needs) = (gib(room), gib(n_blocks));
    let why = format!(
        "the model does not fit: {needs:.1} GiB of experts, {has:.1} GiB of memory, and no hub_compute"
    );
    Err(place.error("memory_gib", why))
}

fn device(
    named: &Named<DeviceKeys>,
    sizes: &Sizes,
    place: Place<'_>,
) -> Result<(Device, DeviceKeys), ScenarioError> {
    let find = |name: &str| {
        presets::device(name)
            .ok_or_else(|| place.error("device", format!("'{name}' is no device: {} are", presets::DEVICES)))
    };
    let keys = match named {
        Named::Preset(name) => find(name)?,
        Named::Table(own) => {
            let base = own.preset.as_deref().map(find).transpose()?.unwrap_or_default();
            DeviceKeys {
                preset: None,
                gigabytes_per_s: own.gigabytes_per_s.or(base.gigabytes_per_s),
                teraflops: own.teraflops.or(base.teraflops),
                launch_ms: own.launch_ms.or(base.launch_ms),
                sync_ms: own.sync_ms.or(base.sync_ms),
                jitter_sigma: own.jitter_sigma.or(base.jitter_sigma),
            }
        }
    };
    let optional =
        |key, value: Option<f64>, least, most| value.map_or(Ok(()), |v| place.within(key, v, least, most));
    optional("gigabytes_per_s", keys.gigabytes_per_s, 1e-6, 1e6)?;
    optional("teraflops", keys.teraflops, 1e-6, 1e6)?;
    optional("launch_ms", keys.launch_ms, 0.0, MAX_TIME_MS)?;
    optional("sync_ms", keys.sync_ms, 0.0, MAX_TIME_MS)?;
    optional("jitter_sigma", keys.jitter_sigma, 0.0, MAX_SIGMA)?;
    let seconds =
        |work: f64, rate: Option<f64>| rate.map_or(Duration::ZERO, |rate| from_seconds(work / rate));
    let arithmetic = 6.0 * sizes.shape.hidden as f64 * sizes.shape.inner as f64;
    let per_message = delay(
        0.0,
        keys.launch_ms.unwrap_or(0.0) + keys.sync_ms.unwrap_or(0.0),
        keys.jitter_sigma.unwrap_or(0.0),
    );
    let device = Device {
        per_message: per_message.map_err(|error| place.model_error("device", &error))?,
        per_expert: seconds(
            sizes.shape.block_bytes() as f64,
            keys.gigabytes_per_s.map(|gigabytes| gigabytes * 1e9),
        ),
        per_pair: seconds(arithmetic, keys.teraflops.map(|teraflops| teraflops * 1e12)),
        slowdown_percent: 100,
    };
    Ok((device, keys))
}

fn link(named: &Named<LinkKeys>, place: Place<'_>) -> Result<Link, ScenarioError> {
    let find = |name: &str| {
        presets::link(name)
            .ok_or_else(|| place.error("link", format!("'{name}' is no link: {} are", presets::LINKS)))
    };
    let keys = match named {
        Named::Preset(name) => find(name)?,
        Named::Table(own) => {
            let base = own.preset.as_deref().map(find).transpose()?.unwrap_or_default();
            LinkKeys {
                preset: None,
                round_trip_ms: own.round_trip_ms.or(base.round_trip_ms),
                jitter_ms: own.jitter_ms.or(base.jitter_ms),
                jitter_sigma: own.jitter_sigma.or(base.jitter_sigma),
                down_mbit: own.down_mbit.or(base.down_mbit),
                up_mbit: own.up_mbit.or(base.up_mbit),
            }
        }
    };
    let optional =
        |key, value: Option<f64>, least, most| value.map_or(Ok(()), |v| place.within(key, v, least, most));
    optional("round_trip_ms", keys.round_trip_ms, 0.0, MAX_TIME_MS)?;
    optional("jitter_ms", keys.jitter_ms, 0.0, MAX_TIME_MS)?;
    optional("jitter_sigma", keys.jitter_sigma, 0.0, MAX_SIGMA)?;
    optional("down_mbit", keys.down_mbit, 1e-3, 1e9)?;
    optional("up_mbit", keys.up_mbit, 1e-3, 1e9)?;
    keys.link().map_err(|error| place.model_error("link", &error))
}

impl Place<'_> {
    fn within(self, key: &str, value: f64, least: f64, most: f64) -> Result<(), ScenarioError> {
        if value >= least && value <= most {
            return Ok(());
        }
        Err(self.error(key, format!("{key} must be between {least} and {most}, not {value}")))
    }

    fn model_error(self, key: &str, error: &ModelError) -> ScenarioError {
        self.error(key, error.to_string())
    }

    fn error(self, key: &str, why: String) -> ScenarioError {
        ScenarioError { line: self.line_of(key), why }
    }

    /// The line that sets the key in the `index`-th table of this name, otherwise that table's header.
    fn line_of(self, key: &str) -> Option<usize> {
        let is_header = |line: &str| {
            let name = line.trim_start_matches('[').split(']').next().unwrap_or_default().trim();
            name == self.table || name.strip_prefix(self.table).is_some_and(|rest| rest.starts_with('.'))
        };
        let (mut seen, mut inside, mut header) = (0, false, None);
        for (number, line) in self.text.lines().enumerate() {
            let line = line.trim();
            if line.starts_with('[') {
                inside = is_header(line) && seen == self.index;
                seen += usize::from(is_header(line));
                header = header.or(inside.then_some(number + 1));
            } else if inside && names(line, key) {
                return Some(number + 1);
            }
        }
        header
    }
}

/// Whether a line sets this key, alone or within braces.
fn names(line: &str, key: &str) -> bool {
    let code = line.split('#').next().unwrap_or_default();
    code.match_indices(key).any(|(at, _)| {
        let before = code[..at].trim_end();
        (before.is_empty() || before.ends_with(['{', ',']))
            && code[at + key.len()..].trim_start().starts_with('=')
    })
}

/// The times of the hub's own part of a step, from the scenario's figures.
impl Checked {
    /// Attention and router of a layer over so many rows.
    pub fn attention(&self, rows: usize) -> Duration {
        let hub = &self.scenario.hub;
        from_millis(hub.attention_ms + hub.row_ms * (rows.max(1) - 1) as f64)
    }

    /// Writing a layer's messages.
    pub fn serialise(&self) -> Duration {
        from_millis(self.scenario.hub.serialise_ms)
    }

    /// Adding up a layer's answers.
    pub fn combine(&self) -> Duration {
        from_millis(self.scenario.hub.combine_ms)
    }

    /// Head and sampler.
    pub fn head(&self) -> Duration {
        from_millis(self.scenario.hub.head_ms)
    }
}
