//! Reads a trace: checks every line and groups layers into steps. The lines are [`moex_swarm::trace::Record`]s.

use std::{
    collections::BTreeMap,
    io::{BufRead, Read as _},
};

use moex_kernels::{ExpertFormat, ExpertShape};
use moex_protocol::{WorkerId, limits};
use moex_swarm::trace::{HubRecord, JoinedRecord, LayerRecord, Record, TRACE_VERSION};

use super::ReplayError;
use crate::world::Sizes;

/// The longest line.
pub const MAX_LINE_BYTES: u64 = 4 << 20;
/// The most lines.
pub const MAX_RECORDS: usize = 4_000_000;
/// The most layers, experts of a layer, and workers: the same as in a scenario.
const MAX_LAYERS: u32 = 1_024;
const MAX_EXPERTS: u32 = 1_024;
const MAX_WORKERS: usize = 1_000;
const MAX_INNER: u32 = 1 << 16;

/// A recorded trace, in the order of time.
#[derive(Clone, Debug)]
pub struct Trace {
    /// What the hub served, and how.
    pub hub: HubRecord,
    /// The model's sizes.
    pub sizes: Sizes,
    /// All workers that ever joined, by id.
    pub workers: BTreeMap<WorkerId, Worker>,
    /// Steps with at least one layer, all of which have a sum.
    pub steps: Vec<Step>,
    /// The times of answers that nobody waited for any more, by attempt.
    pub late: BTreeMap<u32, u64>,
    /// Records that the hub lost.
    pub dropped: u64,
}

/// A worker, its own description when it last joined, and its times.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Its own description.
    pub joined: JoinedRecord,
    /// The times at which it joined, microseconds, ascending.
    pub came: Vec<u64>,
    /// The times at which it left.
    pub left: Vec<u64>,
    /// Round trips of its pings: time and duration.
    pub round_trips: Vec<(u64, u64)>,
}

/// One step of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Microseconds since the hub's start.
    pub begun: u64,
    /// See `begun`.
    pub ended: u64,
    /// T.
    pub rows: u32,
    /// Tokens that it produced.
    pub tokens: u32,
    /// In order.
    pub layers: Vec<LayerRecord>,
}

impl Trace {
    /// Reads a trace. It ignores an incomplete last line: the hub may have been killed.
    ///
    /// # Errors
    /// The first wrong line, and the reason.
    pub fn read(mut from: impl BufRead) -> Result<Self, ReplayError> {
        let mut reading = Reading::default();
        let mut text = Vec::new();
        for line in 1.. {
            text.clear();
            let n_bytes = (&mut from)
                .take(MAX_LINE_BYTES)
                .read_until(b'\n', &mut text)
                .map_err(|error| ReplayError::Line { line, why: error.to_string() })?;
            let is_whole = text.last() == Some(&b'\n');
            if n_bytes as u64 == MAX_LINE_BYTES && !is_whole {
                let why = format!("it is longer than {MAX_LINE_BYTES} bytes");
                return Err(ReplayError::Line { line, why });
            }
            if line > MAX_RECORDS {
                return Err(ReplayError::Line {
                    line,
                    why: format!("there are more than {MAX_RECORDS} lines"),
                });
            }
            if !is_whole {
                break;
            }
            let wrong = |why: String| ReplayError::Line { line, why };
            let record = serde_json::from_slice(&text)
                .map_err(|error| wrong(format!("it is no record of a trace: {error}")))?;
            reading.take(record).map_err(wrong)?;
        }
        reading.finish()
    }

    /// Leaves out the first `n` answers, for readers that come one after another: caches are cold for them, unlike
    /// later. Each answer begins with its prompt; only the last chunk of a prompt gives a token. With fewer answers,
    /// all are left out.
    pub fn skip_answers(&mut self, n: usize) {
        let begins = |at: &usize| self.steps[*at].rows > 1 && (*at == 0 || self.steps[at - 1].tokens > 0);
        let first = (0..self.steps.len()).filter(begins).nth(n).unwrap_or(self.steps.len());
        self.steps.drain(..first);
    }

    /// The number of tokens of these steps.
    pub fn n_tokens(steps: &[Step]) -> u64 {
        steps.iter().map(|step| u64::from(step.tokens)).sum()
    }
}

#[derive(Default)]
struct Reading {
    hub: Option<(HubRecord, Sizes)>,
    workers: BTreeMap<WorkerId, Worker>,
    layers: Vec<LayerRecord>,
    steps: Vec<Step>,
    late: BTreeMap<u32, u64>,
    dropped: u64,
}

impl Reading {
    fn take(&mut self, record: Record) -> Result<(), String> {
        let Some((hub, sizes)) = &self.hub else {
            let Record::Hub(hub) = record else {
                return Err("the first line of a trace must describe the hub".to_owned());
            };
            let sizes = sizes(&hub)?;
            self.hub = Some((hub, sizes));
            return Ok(());
        };
        match record {
            Record::Hub(_) => return Err("a second hub's trace follows the first".to_owned()),
            Record::Joined(joined) => {
                if self.workers.len() >= MAX_WORKERS {
                    return Err(format!("there are more than {MAX_WORKERS} workers"));
                }
                let worker = self.workers.entry(joined.worker).or_insert_with(|| Worker {
                    joined: joined.clone(),
                    came: Vec::new(),
                    left: Vec::new(),
                    round_trips: Vec::new(),
                });
                worker.came.push(joined.at);
                worker.joined = joined;
            }
            Record::Left { worker, at } => {
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.left.push(at);
                }
            }
            Record::RoundTrip { worker, at, micros } => {
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.round_trips.push((at, micros));
                }
            }
            Record::Layer(layer) => {
                check_layer(&layer, hub, sizes)?;
                self.layers.push(layer);
            }
            Record::Late { attempt, at } => {
                self.late.insert(attempt, at);
            }
            Record::Step { begun, ended, rows, tokens } => {
                if ended < begun {
                    return Err("a step ends before it begins".to_owned());
                }
                self.steps.push(Step { begun, ended, rows, tokens, layers: Vec::new() });
            }
            Record::End { dropped } => self.dropped = dropped,
        }
        Ok(())
    }

    /// Assigns layers to steps by the time of the request, since a step's record may overtake that of its last layer.
    fn finish(self) -> Result<Trace, ReplayError> {
        let Self { hub, workers, mut layers, mut steps, late, dropped } = self;
        let Some((hub, sizes)) = hub else {
            return Err(ReplayError::Trace("the trace is empty".to_owned()));
        };
        steps.sort_by_key(|step| step.begun);
        layers.sort_by_key(|layer| layer.asked);
        let mut layers = layers.into_iter().peekable();
        for step in &mut steps {
            while layers.next_if(|layer| layer.asked < step.begun).is_some() {}
            while let Some(layer) = layers.next_if(|layer| layer.asked <= step.ended) {
                step.layers.push(layer);
            }
        }
        // A step that failed, or lost a record, is no useful example.
        let n_layers = usize::from(sizes.n_layers);
        steps.retain(|step| {
            let is_whole =
                step.layers.len() == n_layers || (step.tokens == 0 && step.layers.len() + 1 == n_layers);
            is_whole && step.layers.iter().all(|layer| layer.is_ok)
        });
        Ok(Trace { hub, sizes, workers, steps, late, dropped })
    }
}

fn sizes(hub: &HubRecord) -> Result<Sizes, String> {
    if hub.version != TRACE_VERSION {
        return Err(format!("it is a trace of version {}; this reads {TRACE_VERSION}", hub.version));
    }
    let model = &hub.model;
    let within = |what: &str, value: u32, most: u32| {
        let is_within = (1..=most).contains(&value);
        is_within.then_some(value).ok_or_else(|| format!("{what} must be between 1 and {most}, not {value}"))
    };
    let hidden = within("hidden", model.hidden, limits::MAX_HIDDEN.into())?;
    let inner = within("inner", model.inner, MAX_INNER)?;
    let n_layers = within("n_layers", model.n_layers, MAX_LAYERS)? as u16;
    let n_experts = within("n_experts", model.n_experts, MAX_EXPERTS)? as u16;
    let k = within("n_experts_per_token", model.n_experts_per_token, n_experts.into())? as u16;
    let rows = (model.max_rows / u32::from(k)).max(1);
    let max_rows = within("max_rows", rows, limits::MAX_ROWS)?;
    let format: ExpertFormat =
        model.format.parse().map_err(|_| format!("'{}' is no weight format", model.format))?;
    let shape = ExpertShape { hidden: hidden as usize, inner: inner as usize, format };
    Ok(Sizes { shape, n_layers, n_experts, k, max_rows })
}

fn check_layer(layer: &LayerRecord, hub: &HubRecord, sizes: &Sizes) -> Result<(), String> {
    let k = usize::from(sizes.k);
    let times = [layer.asked, layer.started, layer.sent, layer.done, layer.replied];
    if layer.layer >= sizes.n_layers || layer.experts.iter().any(|expert| *expert >= sizes.n_experts) {
        return Err("a layer has a number that the model does not have".to_owned());
    }
    if layer.experts.len() != layer.rows as usize * k || layer.rows == 0 || layer.rows > hub.model.max_rows {
        return Err(format!("{} experts are not {k} for each of {} rows", layer.experts.len(), layer.rows));
    }
    if layer
        .experts
        .chunks(k)
        .any(|row| row.iter().enumerate().any(|(at, expert)| row[..at].contains(expert)))
    {
        return Err("a row has an expert twice".to_owned());
    }
    if times[0] > times[1] || times[1] > times[3] || times[3] > times[4] {
        return Err("a layer ends before it begins".to_owned());
    }
    Ok(())
}
