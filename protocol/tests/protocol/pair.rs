//! Both ends of one connection on virtual time: messages take a fixed latency each way and arrive in order.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use moex_protocol::{
    AttemptId, Dispatch, Form, HubEvent, HubSession, SessionConfig, State, WorkerConfig, WorkerEvent,
    WorkerSession,
};

use crate::samples;

/// One way, unless a pair is told otherwise.
pub(crate) const LATENCY: Duration = Duration::from_millis(2);

pub(crate) struct Pair {
    pub(crate) now: Duration,
    /// One way.
    pub(crate) latency: Duration,
    pub(crate) hub: HubSession,
    pub(crate) worker: WorkerSession,
    pub(crate) hub_events: Vec<HubEvent>,
    pub(crate) worker_events: Vec<WorkerEvent>,
    to_hub: Wire,
    to_worker: Wire,
    /// Frozen ends neither read nor act on their timer.
    pub(crate) worker_frozen: bool,
    next_attempt: AttemptId,
}

/// One direction: what is under way, and when it arrives. `None` is the close.
#[derive(Default)]
struct Wire {
    under_way: VecDeque<(Duration, Option<Bytes>)>,
    close_sent: bool,
}

impl Pair {
    /// Connected; the worker's join is under way.
    pub(crate) fn new() -> Self {
        Self::with_slots(samples::join().input_slots)
    }

    pub(crate) fn with_slots(input_slots: u8) -> Self {
        let join = moex_protocol::Join { input_slots, ..samples::join() };
        let mut pair = Self {
            now: Duration::ZERO,
            latency: LATENCY,
            hub: HubSession::new(SessionConfig::default(), Duration::ZERO),
            worker: WorkerSession::new(WorkerConfig { join }, Duration::ZERO),
            hub_events: Vec::new(),
            worker_events: Vec::new(),
            to_hub: Wire::default(),
            to_worker: Wire::default(),
            worker_frozen: false,
            next_attempt: AttemptId(1),
        };
        pair.flush();
        pair
    }

    /// Joined, accepted, all of layer 0 resident.
    pub(crate) fn serving(input_slots: u8) -> Self {
        let mut pair = Self::with_slots(input_slots);
        pair.drive_for(LATENCY);
        pair.hub.accept(pair.now, samples::accepted());
        pair.drive_for(LATENCY);
        pair.worker.report_blocks(pair.now, samples::report());
        pair.drive_for(LATENCY);
        assert_eq!((pair.hub.state(), pair.worker.state()), (State::Serving, State::Serving));
        pair.hub_events.clear();
        pair.worker_events.clear();
        pair
    }

    /// Sends a plain dispatch to expert 3 of layer 0.
    pub(crate) fn dispatch(&mut self) -> AttemptId {
        self.dispatch_this(&samples::dispatch(Form::Plain, &[3]))
    }

    pub(crate) fn dispatch_this(&mut self, dispatch: &Dispatch) -> AttemptId {
        let attempt = self.next_attempt;
        self.next_attempt = attempt.next();
        self.hub.dispatch(self.now, attempt, dispatch).expect("the worker serves");
        self.flush();
        attempt
    }

    /// Puts bytes on the wire as if the hub had sent them.
    pub(crate) fn inject_to_worker(&mut self, message: impl Into<Bytes>) {
        self.to_worker.under_way.push_back((self.now + self.latency, Some(message.into())));
    }

    /// Puts bytes on the wire as if the worker had sent them.
    pub(crate) fn inject_to_hub(&mut self, message: impl Into<Bytes>) {
        self.to_hub.under_way.push_back((self.now + self.latency, Some(message.into())));
    }

    /// The next thing that happens, an arrival or a deadline; `false` when nothing is left to happen.
    pub(crate) fn step(&mut self) -> bool {
        self.flush();
        let Some(next) = self.next_time() else { return false };
        self.now = self.now.max(next);
        let now = self.now;
        if self.hub.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.hub.handle_timeout(now);
        }
        match self.to_hub.arrived(now) {
            Some(Some(message)) => self.hub.handle_message(now, message),
            Some(None) => self.hub.handle_closed(now),
            None => {}
        }
        if !self.worker_frozen {
            if self.worker.poll_timeout().is_some_and(|deadline| deadline <= now) {
                self.worker.handle_timeout(now);
            }
            match self.to_worker.arrived(now) {
                Some(Some(message)) => self.worker.handle_message(now, message),
                Some(None) => self.worker.handle_closed(now),
                None => {}
            }
        }
        self.flush();
        true
    }

    /// Steps until `done`, and says whether it came to that.
    pub(crate) fn drive(&mut self, done: impl Fn(&Self) -> bool) -> bool {
        for _ in 0..10_000 {
            if done(self) {
                return true;
            }
            if !self.step() {
                return done(self);
            }
        }
        panic!("10000 steps and still not done at {:?}", self.now);
    }

    /// Steps through everything that happens up to and at `duration` from now.
    pub(crate) fn drive_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.flush();
        while self.next_time().is_some_and(|next| next <= end) {
            self.step();
        }
        self.now = end;
    }

    fn next_time(&self) -> Option<Duration> {
        let worker = [self.worker.poll_timeout(), self.to_worker.next()];
        let worker = worker.into_iter().flatten().filter(|_| !self.worker_frozen);
        [self.hub.poll_timeout(), self.to_hub.next()].into_iter().flatten().chain(worker).min()
    }

    /// What a driver does after every call: send, take events, close.
    fn flush(&mut self) {
        let arrival = self.now + self.latency;
        while let Some(message) = self.hub.poll_transmit() {
            self.to_worker.under_way.push_back((arrival, Some(message)));
        }
        while let Some(message) = self.worker.poll_transmit() {
            self.to_hub.under_way.push_back((arrival, Some(message)));
        }
        self.hub_events.extend(std::iter::from_fn(|| self.hub.poll_event()));
        self.worker_events.extend(std::iter::from_fn(|| self.worker.poll_event()));
        self.to_worker.close(arrival, self.hub.close_code().is_some());
        self.to_hub.close(arrival, self.worker.close_code().is_some());
    }
}

impl Wire {
    fn next(&self) -> Option<Duration> {
        self.under_way.front().map(|(at, _)| *at)
    }

    fn arrived(&mut self, now: Duration) -> Option<Option<Bytes>> {
        if self.next()? > now {
            return None;
        }
        self.under_way.pop_front().map(|(_, message)| message)
    }

    fn close(&mut self, arrival: Duration, closing: bool) {
        if closing && !self.close_sent {
            self.close_sent = true;
            self.under_way.push_back((arrival, None));
        }
    }
}
