//! The task that owns the swarm's time: takes events, feeds the swarm, carries out its actions, arms the timer.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as std_mpsc};
use std::time::{Duration, Instant as StdInstant};

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use moex_protocol::{Answer, Dispatch};
use moex_worker::native::{BusyPoll, poll_again};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::shards::ServedBytes;
use super::socket::Outbox;
use super::trace::Tracer;
use crate::shards::ShardStore;
use moex_swarm::trace::{Record, micros};
use moex_swarm::{
    Action, ComputeId, ConnectionId, JobError, JobId, LayerJob, Readiness, Swarm, SwarmConfig, SwarmStatus,
};
use moex_worker::core::answer::ComputeError;

/// Events that are taken before their actions are carried out: enough to save work, few enough not to hold up answers.
const MAX_EVENTS_AT_ONCE: usize = 16;

/// How often it is published how ready the swarm is, at most.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);

/// Where a layer's result goes.
pub(super) type Reply = std_mpsc::SyncSender<Result<Vec<f32>, JobError>>;

/// What happens to the driver.
pub(super) enum Event {
    Connected(ConnectionId, String, Outbox),
    Message(ConnectionId, Bytes),
    Text(ConnectionId),
    Disconnected(ConnectionId),
    /// A layer, and when the engine asked for it.
    Layer(LayerJob, Duration, Reply),
    Computed(ComputeId, Result<Answer, ComputeError>),
    ShutDown(oneshot::Sender<()>),
}

/// What the driver shares with those who only look.
pub(super) struct Shared {
    pub config: SwarmConfig,
    pub store: Arc<ShardStore>,
    pub served: ServedBytes,
    pub tracer: Option<Tracer>,
    pub busy_poll: BusyPoll,
    /// The swarm's readiness a moment ago: looked at without waiting for the swarm.
    readiness: Mutex<Readiness>,
    /// What all times count from.
    started: StdInstant,
    /// Locked by the driver for each event, and by others to take its status; nobody waits for anything while holding it.
    swarm: Mutex<Swarm>,
}

impl Shared {
    pub(super) fn new(
        config: SwarmConfig,
        swarm: Swarm,
        store: Arc<ShardStore>,
        tracer: Option<Tracer>,
        busy_poll: BusyPoll,
    ) -> Self {
        let (served, started) = (ServedBytes::default(), StdInstant::now());
        let readiness = Mutex::new(swarm.readiness());
        Self { config, store, served, tracer, busy_poll, readiness, started, swarm: Mutex::new(swarm) }
    }

    /// Since the start.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn status(&self) -> SwarmStatus {
        let mut status = self.swarm().status();
        status.weights_served_bytes = self.served.total();
        for worker in &mut status.workers {
            worker.weights_served_bytes = self.served.of(worker.id);
        }
        status
    }

    /// As it was [`PUBLISH_INTERVAL`] ago at most.
    pub(super) fn readiness(&self) -> Readiness {
        *self.published()
    }

    fn published(&self) -> MutexGuard<'_, Readiness> {
        self.readiness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request shows the join token.
    pub(super) fn is_admitted(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = value.and_then(|value| value.strip_prefix("Bearer "));
        token.is_some_and(|token| self.config.token.matches(token))
    }

    pub(super) fn swarm(&self) -> MutexGuard<'_, Swarm> {
        self.swarm.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs until told to shut down, and gives back whom to tell that it has, or until nobody is left who could send an event.
pub(super) async fn drive(
    shared: Arc<Shared>,
    mut events: mpsc::Receiver<Event>,
    compute: std_mpsc::SyncSender<(ComputeId, Dispatch)>,
) -> Option<oneshot::Sender<()>> {
    let started = Instant::from_std(shared.started);
    let mut busy_poll = shared.busy_poll;
    let mut driver = Driver {
        shared,
        compute,
        outboxes: HashMap::new(),
        strangers: HashSet::new(),
        replies: HashMap::new(),
        jobs: 0,
        publish_at: Duration::ZERO,
        is_news: false,
        times: HashMap::new(),
        n_lost: 0,
    };
    loop {
        let mut deadline = driver.shared.swarm().poll_timeout();
        if driver.is_news {
            deadline = Some(deadline.map_or(driver.publish_at, |at| at.min(driver.publish_at)));
        }
        let mut event = None;
        while event.is_none() && busy_poll.is_awake() && deadline.is_none_or(|at| driver.now() < at) {
            poll_again().await;
            event = events.try_recv().ok();
        }
        if event.is_none() {
            event = tokio::select! {
                () = sleep_until(started, deadline) => None,
                event = events.recv() => match event {
                    Some(event) => Some(event),
                    None => return None,
                },
            };
        }
        match event {
            None => driver.on_timeout(),
            Some(event) => {
                busy_poll.stir();
                let mut next = Some(event);
                let mut taken = 0;
                while let Some(event) = next.take() {
                    if let Event::ShutDown(done) = event {
                        driver.on_shut_down();
                        return Some(done);
                    }
                    driver.on_event(event);
                    taken += 1;
                    if taken < MAX_EVENTS_AT_ONCE {
                        next = events.try_recv().ok();
                    }
                }
            }
        }
        driver.act();
        driver.trace();
        driver.publish();
    }
}

async fn sleep_until(started: Instant, deadline: Option<Duration>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(started + deadline).await,
        None => std::future::pending().await,
    }
}

struct Driver {
    shared: Arc<Shared>,
    compute: std_mpsc::SyncSender<(ComputeId, Dispatch)>,
    /// Bounded by the swarm's limit on connections.
    outboxes: HashMap<ConnectionId, Outbox>,
    /// Of these connections, those that have not joined.
    strangers: HashSet<ConnectionId>,
    /// Bounded by the swarm's limit on jobs.
    replies: HashMap<JobId, Reply>,
    jobs: u64,
    /// When it may be said again how ready the swarm is.
    publish_at: Duration,
    /// Whether something has happened since it was said.
    is_news: bool,
    /// Of each layer in flight; only where a trace is written.
    times: HashMap<u64, Times>,
    /// Records that the swarm had no room for, as far as the trace knows.
    n_lost: u64,
}

/// What only the driver knows of a layer.
struct Times {
    asked: Duration,
    /// When its first messages had left.
    sent: Option<Duration>,
    /// When its sum was handed back.
    replied: Option<Duration>,
}

impl Driver {
    fn now(&self) -> Duration {
        self.shared.now()
    }

    fn on_timeout(&mut self) {
        let now = self.now();
        self.shared.swarm().handle_timeout(now);
    }

    fn on_event(&mut self, event: Event) {
        let now = self.now();
        let mut swarm = self.shared.swarm();
        match event {
            Event::Connected(id, address, outbox) => {
                self.outboxes.insert(id, outbox);
                self.strangers.insert(id);
                swarm.connected(now, id, address);
            }
            Event::Message(id, message) => {
                swarm.handle_message(now, id, message);
                let is_new = !self.strangers.is_empty() && swarm.has_joined(id) && self.strangers.remove(&id);
                if let Some(outbox) = self.outboxes.get_mut(&id).filter(|_| is_new) {
                    outbox.admit();
                }
            }
            Event::Text(id) => swarm.handle_text(now, id),
            Event::Disconnected(id) => {
                self.outboxes.remove(&id);
                self.strangers.remove(&id);
                swarm.disconnected(now, id);
            }
            Event::Layer(job, asked, reply) => {
                self.jobs += 1;
                if self.shared.tracer.is_some() {
                    self.times.insert(self.jobs, Times { asked, sent: None, replied: None });
                }
                self.replies.insert(JobId(self.jobs), reply);
                swarm.start_layer(now, JobId(self.jobs), job);
            }
            Event::Computed(id, Ok(answer)) => swarm.hub_computed(now, id, answer),
            Event::Computed(id, Err(error)) => swarm.hub_failed(now, id, error.to_string()),
            Event::ShutDown(_) => {}
        }
    }

    fn on_shut_down(&mut self) {
        let now = self.now();
        self.shared.swarm().shut_down(now);
        self.act();
        self.trace();
    }

    /// Carries out all that the swarm wants done. Closing a slow worker makes more of it.
    fn act(&mut self) {
        loop {
            let action = self.shared.swarm().poll_action();
            match action {
                None => return,
                Some(Action::Transmit(id, message)) => self.transmit(id, message),
                Some(Action::Close(id, code)) => {
                    if let Some(outbox) = self.outboxes.remove(&id) {
                        outbox.close(code);
                    }
                }
                Some(Action::HubCompute(id, dispatch)) => {
                    if let Err(error) = self.compute.try_send((id, dispatch)) {
                        let now = self.now();
                        self.shared.swarm().hub_failed(now, id, error.to_string());
                    }
                }
                Some(Action::Finished(id, result)) => {
                    let now = self.now();
                    if let Some(times) = self.times.get_mut(&id.0) {
                        times.replied = Some(now);
                    }
                    // Nobody waits any more if the caller's own deadline has passed.
                    let _ = self.replies.remove(&id).map(|reply| reply.try_send(result));
                }
            }
        }
    }

    /// Says how ready the swarm is, now or soon.
    fn publish(&mut self) {
        let now = self.now();
        self.is_news = now < self.publish_at;
        if !self.is_news {
            let readiness = self.shared.swarm().readiness();
            *self.shared.published() = readiness;
            self.publish_at = now + PUBLISH_INTERVAL;
        }
    }

    /// Gives the trace what the swarm has written down, with the times that only the driver knows.
    fn trace(&mut self) {
        let Some(tracer) = self.shared.tracer.clone() else { return };
        let now = self.now();
        self.times.values_mut().for_each(|times| times.sent = times.sent.or(Some(now)));
        let mut swarm = self.shared.swarm();
        while let Some(mut record) = swarm.poll_trace() {
            if let Record::Layer(layer) = &mut record
                && let Some(Times { asked, sent, replied }) = self.times.remove(&layer.job)
            {
                layer.asked = micros(asked);
                (layer.sent, layer.replied) = (micros(sent.unwrap_or(now)), micros(replied.unwrap_or(now)));
            }
            tracer.record(record);
        }
        let n_lost = swarm.trace_dropped();
        tracer.lose(n_lost - std::mem::replace(&mut self.n_lost, n_lost));
    }

    fn transmit(&mut self, id: ConnectionId, message: Bytes) {
        let Some(outbox) = self.outboxes.get(&id) else { return };
        if outbox.send(message).is_err() {
            tracing::warn!(connection = id.0, "a worker does not read what it is sent: closed");
            if let Some(outbox) = self.outboxes.remove(&id) {
                outbox.kill();
            }
            let now = self.now();
            self.shared.swarm().disconnected(now, id);
        }
    }
}
