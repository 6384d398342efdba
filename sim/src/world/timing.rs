//! The breakdown of a layer's time: the swarm records its own part, the world records the path between.
//!
//! Recorded if [`moex_swarm::SwarmConfig::is_traced`] is set.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use moex_protocol::AttemptId;
use moex_swarm::trace::{LayerRecord, Record};

use super::World;

/// The most messages under way that are remembered; the oldest are forgotten first.
const MAX_LEGS: usize = 4_096;
/// The frame type of a dispatch.
const DISPATCH: u16 = 1;
/// The most layers that wait to be polled.
const MAX_LAYERS: usize = 256;

/// A finished layer.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedLayer {
    /// The hub's side.
    pub record: LayerRecord,
    /// For each attempt of the record; `None` if the message had not arrived.
    pub legs: Vec<Option<Leg>>,
}

/// A message at its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// When it arrived.
    pub arrived: Duration,
    /// When its computation began, and how long it takes; `None` before it begins.
    pub work: Option<Work>,
}

/// A computation on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// When it began.
    pub began: Duration,
    /// The part for launching and waiting for the device.
    pub sync: Duration,
    /// The part for experts: reading their weights, or the arithmetic.
    pub compute: Duration,
}

impl Work {
    /// When the answer is ready to leave.
    pub fn ends(&self) -> Duration {
        self.began + self.sync + self.compute
    }
}

/// The recorded times.
#[derive(Debug, Default)]
pub(super) struct Timing {
    legs: BTreeMap<AttemptId, Leg>,
    layers: VecDeque<TimedLayer>,
}

impl World {
    /// The next finished layer, with all its times. `None` if no times are recorded.
    pub fn poll_layer(&mut self) -> Option<TimedLayer> {
        self.timing.as_mut()?.layers.pop_front()
    }

    /// Records that a message reached a worker.
    pub(super) fn time_arrival(&mut self, message: &[u8]) {
        let (now, Some(timing)) = (self.now, &mut self.timing) else { return };
        if let Some(attempt) = attempt_of(message) {
            timing.legs.insert(attempt, Leg { arrived: now, work: None });
            if timing.legs.len() > MAX_LEGS {
                timing.legs.pop_first();
            }
        }
    }

    /// Records that a worker began to compute.
    pub(super) fn time_work(&mut self, attempt: AttemptId, sync: Duration, compute: Duration) {
        let (began, Some(timing)) = (self.now, &mut self.timing) else { return };
        if let Some(leg) = timing.legs.get_mut(&attempt) {
            leg.work = Some(Work { began, sync, compute });
        }
    }

    /// Takes the records of the swarm.
    pub(super) fn time_layers(&mut self) {
        let Some(timing) = &mut self.timing else { return };
        while let Some(record) = self.swarm.poll_trace() {
            let Record::Layer(record) = record else { continue };
            let legs = record.attempts.iter().map(|attempt| timing.legs.remove(&AttemptId(attempt.id)));
            let legs = legs.collect();
            if timing.layers.len() == MAX_LAYERS {
                timing.layers.pop_front();
            }
            timing.layers.push_back(TimedLayer { record, legs });
        }
    }
}

/// The attempt that a dispatch is for, from the header of its first frame.
fn attempt_of(message: &[u8]) -> Option<AttemptId> {
    let kind = u16::from_le_bytes(message.get(6..8)?.try_into().ok()?);
    let sequence = u32::from_le_bytes(message.get(12..16)?.try_into().ok()?);
    (kind == DISPATCH).then_some(AttemptId(sequence))
}
