//! The driver task: owns the swarm, feeds it events and times, carries out its actions, and arms the timer.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, atomic::Ordering, mpsc as std_mpsc};
use std::time::Duration;

use bytes::Bytes;
use moex_protocol::Dispatch;
use moex_swarm::trace::{Record, micros};
use moex_swarm::{Action, ComputeId, ConnectionId, JobId, Swarm};
use moex_worker::native::poll_again;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::event::{Event, Reply};
use super::outbox::Outbox;
use super::shared::{LocalLayer, Shared};

/// Events handled before their actions are carried out: enough to batch work, few enough not to delay answers.
const MAX_EVENTS_AT_ONCE: usize = 16;

/// Minimum interval between publications of the swarm's readiness.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);

/// Runs until told to shut down, or until all senders of events are dropped. Returns the sender to notify once shutdown
/// is complete.
pub(super) async fn drive(
    shared: Arc<Shared>,
    mut swarm: Swarm,
    mut events: mpsc::Receiver<Event>,
    compute: std_mpsc::SyncSender<(ComputeId, Dispatch)>,
) -> Option<oneshot::Sender<()>> {
    let started = Instant::from_std(shared.started);
    let mut busy_poll = shared.busy_poll;
    let (now, revoked) = (shared.now(), shared.revocations.all());
    revoked.into_iter().for_each(|invitation| swarm.revoke(now, invitation));
    let mut driver = Driver {
        shared,
        swarm,
        compute,
        outboxes: HashMap::new(),
        strangers: HashSet::new(),
        replies: HashMap::new(),
        jobs: 0,
        publish_at: Duration::ZERO,
        covered: 0,
        is_news: false,
        times: HashMap::new(),
        n_dropped: 0,
    };
    loop {
        let mut deadline = driver.swarm.poll_timeout();
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

/// Counts layers that the hub computed without the swarm.
fn count_local(swarm: &mut Swarm, layers: Vec<LocalLayer>) {
    for LocalLayer { layer, routing, took } in layers {
        swarm.computed_locally(layer, &routing, took);
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
    swarm: Swarm,
    compute: std_mpsc::SyncSender<(ComputeId, Dispatch)>,
    /// Bounded by the swarm's limit on connections.
    outboxes: HashMap<ConnectionId, Outbox>,
    /// Those of the connections that have not joined.
    strangers: HashSet<ConnectionId>,
    /// Bounded by the swarm's limit on jobs.
    replies: HashMap<JobId, Reply>,
    jobs: u64,
    /// Earliest time of the next publication.
    publish_at: Duration,
    /// Blocks that were covered at the last one.
    covered: usize,
    /// Whether anything has happened since the last publication.
    is_news: bool,
    /// Times of each layer in flight; filled only while tracing.
    times: HashMap<u64, Times>,
    /// Records that the swarm has dropped, as counted by the tracer so far.
    n_dropped: u64,
}

/// The times of a layer that only the driver knows.
struct Times {
    asked: Duration,
    /// When its first messages were sent.
    sent: Option<Duration>,
    /// When its sum was returned.
    replied: Option<Duration>,
}

impl Driver {
    fn now(&self) -> Duration {
        self.shared.now()
    }

    fn on_timeout(&mut self) {
        let now = self.now();
        self.swarm.handle_timeout(now);
    }

    fn on_event(&mut self, event: Event) {
        let now = self.now();
        let swarm = &mut self.swarm;
        match event {
            Event::Connected(id, address, outbox) => {
                // Worker selection depends on the hub's own compute times.
                count_local(swarm, self.shared.take_local());
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
            Event::Layer(layer, asked, reply) => {
                self.jobs += 1;
                if self.shared.tracer.is_some() {
                    self.times.insert(self.jobs, Times { asked, sent: None, replied: None });
                }
                self.replies.insert(JobId(self.jobs), reply);
                swarm.start_layer(now, JobId(self.jobs), layer);
            }
            Event::Computed(id, Ok(answer)) => swarm.hub_computed(now, id, answer),
            Event::Computed(id, Err(error)) => swarm.hub_failed(now, id, error.to_string()),
            Event::Caught(lies) => swarm.caught(now, lies),
            Event::Revoked(invitation) => swarm.revoke(now, invitation),
            Event::LocalLayers => count_local(swarm, self.shared.take_local()),
            Event::Publish => {
                count_local(swarm, self.shared.take_local());
                self.shared.publish_status(swarm.status());
            }
            Event::ShutDown(_) => {}
            #[cfg(test)]
            // It ends when the test drops the sender.
            Event::Hold(held) => drop(held.recv()),
        }
    }

    fn on_shut_down(&mut self) {
        let now = self.now();
        count_local(&mut self.swarm, self.shared.take_local());
        self.swarm.shut_down(now);
        self.act();
        self.trace();
        self.shared.publish_status(self.swarm.status());
        self.shared.publish_is_alone(false);
    }

    /// Carries out all actions of the swarm. Closing a slow worker creates further actions.
    fn act(&mut self) {
        loop {
            let action = self.swarm.poll_action();
            match action {
                None => break,
                Some(Action::Transmit(id, message)) => self.transmit(id, message),
                Some(Action::Close(id, code)) => {
                    if let Some(outbox) = self.outboxes.remove(&id) {
                        outbox.close(code);
                    }
                }
                Some(Action::HubCompute(id, dispatch)) => {
                    if let Err(error) = self.compute.try_send((id, dispatch)) {
                        let now = self.now();
                        self.swarm.hub_failed(now, id, error.to_string());
                    }
                }
                Some(Action::Finished(id, result)) => {
                    let now = self.now();
                    if let Some(times) = self.times.get_mut(&id.0) {
                        times.replied = Some(now);
                    }
                    // Fails if the caller's deadline has passed.
                    let _ = self.replies.remove(&id).map(|reply| reply.try_send(result));
                }
            }
        }
        self.shared.n_doubts.store(self.swarm.n_doubts(), Ordering::Relaxed);
    }

    /// Publishes whether the hub is alone at once, and the readiness now or soon.
    fn publish(&mut self) {
        let now = self.now();
        self.shared.publish_is_alone(self.swarm.is_alone(now));
        self.is_news = now < self.publish_at;
        if !self.is_news {
            let readiness = self.swarm.readiness();
            let covered = readiness.coverage.covered;
            if let Some(verifier) = self.shared.verifier.as_ref().filter(|_| covered != self.covered) {
                verifier.prepare(self.swarm.held_blocks());
            }
            self.covered = covered;
            self.shared.publish_readiness(readiness);
            self.publish_at = now + PUBLISH_INTERVAL;
        }
    }

    /// Passes the swarm's records to the tracer, with the times that only the driver knows.
    fn trace(&mut self) {
        let Some(tracer) = self.shared.tracer.clone() else { return };
        let now = self.now();
        self.times.values_mut().for_each(|times| times.sent = times.sent.or(Some(now)));
        while let Some(mut record) = self.swarm.poll_trace() {
            if let Record::Layer(layer) = &mut record
                && let Some(Times { asked, sent, replied }) = self.times.remove(&layer.job)
            {
                layer.asked = micros(asked);
                (layer.sent, layer.replied) = (micros(sent.unwrap_or(now)), micros(replied.unwrap_or(now)));
            }
            tracer.record(record);
        }
        let n_dropped = self.swarm.trace_dropped();
        tracer.count_dropped(n_dropped - std::mem::replace(&mut self.n_dropped, n_dropped));
    }

    fn transmit(&mut self, id: ConnectionId, message: Bytes) {
        let Some(outbox) = self.outboxes.get(&id) else { return };
        if outbox.send(message).is_err() {
            tracing::warn!(connection = id.0, "closed a worker that does not read its messages");
            if let Some(outbox) = self.outboxes.remove(&id) {
                outbox.kill();
            }
            let now = self.now();
            self.swarm.disconnected(now, id);
        }
    }
}
