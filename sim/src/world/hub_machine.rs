//! The hub's machine: turns the swarm's actions into messages and events, and simulates the time of the hub's own
//! computation.

use std::{collections::BTreeMap, time::Duration};

use moex_protocol::{Dispatch, tensor};
use moex_swarm::{Action, ComputeId, HubResult, JobError, JobId, LayerResult, Swarm, Verify};

use super::{Arithmetic, Device, Event, Notice, World, link::Packet};

/// The relative length of a lie that the hub's check may miss.
const UNSEEN: f64 = 5e-3;

/// The hub's hardware.
#[derive(Clone, Debug)]
pub struct HubDevice {
    /// The device that computes experts, one message after another.
    pub device: Device,
    /// The rate of its end of every link, each direction; `None`: unlimited.
    pub bytes_per_s: Option<u64>,
}

/// The hub's device, what it is computing, and its end of the links.
#[derive(Debug)]
pub(super) struct HubMachine {
    pub(super) config: HubDevice,
    computing: BTreeMap<ComputeId, Dispatch>,
    free_at: Duration,
    /// The times at which the hub's end of the links is free, down and up.
    pub(super) down_free_at: Duration,
    pub(super) up_free_at: Duration,
}

impl HubMachine {
    pub(super) fn new(config: HubDevice) -> Self {
        let computing = BTreeMap::new();
        let [free_at, down_free_at, up_free_at] = [Duration::ZERO; 3];
        Self { config, computing, free_at, down_free_at, up_free_at }
    }
}

impl World {
    /// Slows the hub's computation down from the next message on: 100 is its normal time.
    pub fn slow_hub(&mut self, percent: u32) {
        self.note(|| format!("the hub computes at {percent} % of its time"));
        self.hub.config.device.slowdown_percent = percent;
    }

    /// Calls the swarm, then runs the actions that it returns.
    pub(super) fn with_swarm(&mut self, call: impl FnOnce(&mut Swarm, Duration)) {
        call(&mut self.swarm, self.now);
        while let Some(action) = self.swarm.poll_action() {
            match action {
                Action::Transmit(to, message) => {
                    self.traffic.bytes_down += message.len() as u64;
                    if self.send_down(to, Packet::Binary(message)).is_err() {
                        self.note(|| format!("connection {} cannot take more and is closed", to.0));
                        self.cut_off(to);
                        self.swarm.disconnected(self.now, to);
                    }
                }
                Action::Close(connection, code) => self.close_from_hub(connection, code),
                Action::HubCompute(id, dispatch) => self.compute_on_hub(id, dispatch),
                Action::Finished(id, result) => {
                    let result = result.map(|result| self.verified(result).sum());
                    self.finished(id, result);
                }
            }
        }
        self.time_layers();
        self.swarm_deadline = self.swarm.poll_timeout();
    }

    /// Simulates the hub's check of workers' answers by its result: it finds every answer that is off by more than
    /// [`UNSEEN`], and replaces it by the hub's own.
    fn verified(&mut self, mut result: LayerResult) -> LayerResult {
        if self.verify == Verify::Audit || self.arithmetic == Arithmetic::Zeros {
            return result;
        }
        let (dtype, hidden) = (result.rows().0, self.model.summary().hidden as usize);
        let mut said: Vec<(usize, Vec<f32>)> = result
            .unchecked()
            .map(|part| (part.item, tensor::decode_rows(dtype, part.answer, hidden).unwrap_or_default()))
            .collect();
        said.sort_by_key(|(item, _)| *item);
        let items: Vec<usize> = said.iter().map(|(item, _)| *item).collect();
        let Ok(truth) = self.model.answer(&result.dispatch(&items)) else { return result };
        let is_wrong = |said: &[f32], truth: &[u8]| {
            let truth = tensor::decode_rows(dtype, truth, hidden).unwrap_or_default();
            let square =
                |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
            let error = square(&mut said.iter().zip(&truth).map(|(said, truth)| said - truth));
            error.is_nan() || error > UNSEEN * UNSEEN * square(&mut truth.iter().copied())
        };
        let parts = said.iter().zip(&truth.parts);
        let wrong = parts.filter(|((_, said), truth)| is_wrong(said, &truth.payload));
        let wrong: Vec<usize> = wrong.map(|((item, _), _)| *item).collect();
        if wrong.is_empty() {
            return result;
        }
        let Ok(own) = self.model.answer(&result.dispatch(&wrong)) else { return result };
        if let Some(lies) = result.replace(&wrong, &own, false) {
            self.note(|| format!("the hub finds {} of {} answers wrong", lies.len(), items.len()));
            self.swarm.caught(self.now, lies);
        }
        result
    }

    pub(super) fn finished(&mut self, id: JobId, result: Result<Vec<f32>, JobError>) {
        self.note(|| match &result {
            Ok(_) => format!("job {} is done", id.0),
            Err(error) => format!("job {} failed: {error}", id.0),
        });
        self.notices.push_back(Notice::Finished(id, result));
    }

    fn compute_on_hub(&mut self, id: ComputeId, dispatch: Dispatch) {
        let (n_experts, n_pairs) = (dispatch.calls.len(), dispatch.n_pairs());
        let (sync, compute) = self.hub.config.device.compute_time(n_experts, n_pairs, &mut self.random);
        self.hub.free_at = self.hub.free_at.max(self.now) + sync + compute;
        self.note(|| format!("hub computes {n_pairs} pairs as {}", id.0));
        self.events.push(self.hub.free_at, Event::HubComputed(id));
        self.hub.computing.insert(id, dispatch);
    }

    pub(super) fn hub_computed(&mut self, id: ComputeId) {
        let Some(dispatch) = self.hub.computing.remove(&id) else { return };
        match self.model.answer(&dispatch) {
            Ok(answer) => self.with_swarm(|swarm, now| swarm.hub_computed(now, id, HubResult::new(answer))),
            Err(error) => self.with_swarm(|swarm, now| swarm.hub_failed(now, id, error.to_string())),
        }
    }
}
