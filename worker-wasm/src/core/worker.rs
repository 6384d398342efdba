//! The whole worker, without I/O: a [`Core`] and a connection for each of its hubs, and one device for all of them.
//!
//! Each hub has its own session, model, blocks and share of the memory. The device computes one batch at a time; the
//! hubs take turns. A hub's messages and failures do not affect the others; only a lost device ends them all.
//!
//! ```text
//! opened, handle_message, handle_text, closed, handle_timeout      what sockets and the timer bring
//! planned, loaded, computed, device_lost, set_visibility, leave    what the device, the loader and the user bring
//!                            then, until all are empty
//! poll_action   ->  what to do
//! poll_timeout  ->  when to call handle_timeout
//! is_over       ->  whether every hub has ended
//! ```
//!
//! Events of a socket or an engine that has been replaced are ignored, so a driver need not tell them apart.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use moex_kernels::{
    ExpertFormat,
    engine::{Batch, EnginePlan, Output, Wanted},
};
use moex_protocol::{AttemptId, Block, BlockSource, ErrorCode, Visibility};

use super::link::{ConnectionError, Ending, Link, Next};
use super::{Core, CoreConfig, Loaded, Status, Task};

/// The close code of a socket when the worker, or its hub, is done.
const CLOSE_NORMAL: u16 = 1000;
/// The close code of a socket when the worker leaves.
const CLOSE_AWAY: u16 = 1001;

/// The index of a hub among those that the worker was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubId(pub usize);

/// One socket: the `number`th to this hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The hub that it leads to.
    pub hub: HubId,
    /// Counted from 1.
    pub number: u64,
}

/// One engine: the `number`th made for this hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineId {
    /// The hub whose experts it holds.
    pub hub: HubId,
    /// Counted from 1.
    pub number: u64,
}

/// A hub to serve.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// The worker's description of itself there; its memory budget is this hub's share.
    pub core: CoreConfig,
    /// How long to go on without a hub that accepts; `None` means forever.
    pub patience: Option<Duration>,
}

/// An action for the driver.
#[derive(Debug)]
pub enum Action {
    /// Open a socket, within a bounded time; then call [`Worker::opened`] or [`Worker::closed`].
    Connect(Connection),
    /// Send a message, without waiting for it.
    Send(Connection, Bytes),
    /// Close the socket with this code once all is sent, and forget it.
    Close(Connection, u16),
    /// Make an engine with this plan, in place of the hub's earlier one; then call [`Worker::planned`].
    Plan {
        /// The engine for [`Worker::planned`].
        engine: EngineId,
        /// The engine's sizes.
        plan: EnginePlan,
    },
    /// Fetch the bytes of `source` from the hub, check their hash, put them into the engine's `slot`; then call
    /// [`Worker::loaded`].
    Load {
        /// The engine.
        engine: EngineId,
        /// The engine's slot.
        slot: u32,
        /// One of the plan's formats.
        format: ExpertFormat,
        /// The block and its source.
        source: BlockSource,
    },
    /// Compute the batch; then call [`Worker::computed`]. Only one runs at a time.
    Compute {
        /// The engine to use.
        engine: EngineId,
        /// The attempt for [`Worker::computed`].
        attempt: AttemptId,
        /// Rows (R, D) and their experts.
        batch: Batch,
        /// What the answer is to have.
        wanted: Wanted,
    },
    /// No action: reports that the connection is lost and will be tried again, which may be worth a line in a log.
    Retrying(HubId, ConnectionError),
    /// Drop the hub's engine: the hub is no longer served.
    Ended(HubId, Ending),
}

/// Sessions with several hubs, each with its models and its share of the memory.
#[derive(Debug)]
pub struct Worker {
    hubs: Vec<Hub>,
    /// Emptied by the driver after each call.
    actions: VecDeque<Action>,
    /// Batches that wait for the device: at most one for each hub.
    waiting: VecDeque<Action>,
    is_computing: bool,
}

#[derive(Debug)]
struct Hub {
    core: Core,
    link: Link,
    /// The number of the latest engine.
    engine: u64,
    /// Whether the device has failed.
    device_failed: bool,
}

impl Worker {
    /// A worker that is about to connect to each of these hubs.
    pub fn new(hubs: Vec<HubConfig>, now: Duration) -> Self {
        let hub = |config: HubConfig| Hub {
            link: Link::new(now, config.core.join.key, config.patience),
            core: Core::new(config.core, now),
            engine: 0,
            device_failed: false,
        };
        let hubs = hubs.into_iter().map(hub).collect();
        Self { hubs, actions: VecDeque::new(), waiting: VecDeque::new(), is_computing: false }
    }

    /// The socket is open.
    pub fn opened(&mut self, now: Duration, connection: Connection) {
        if let Some(hub) = self.of(connection)
            && hub.link.opened(now)
        {
            hub.core.reconnect(now);
            self.flush(now, connection.hub);
        }
    }

    /// A binary message arrived.
    pub fn handle_message(&mut self, now: Duration, connection: Connection, message: Bytes) {
        if let Some(hub) = self.open(connection) {
            hub.core.handle_message(now, message);
            self.flush(now, connection.hub);
        }
    }

    /// A text message arrived, which the protocol does not have.
    pub fn handle_text(&mut self, now: Duration, connection: Connection) {
        if let Some(hub) = self.open(connection) {
            hub.core.handle_text(now);
            self.flush(now, connection.hub);
        }
    }

    /// The socket is closed, or could not be opened.
    pub fn closed(&mut self, now: Duration, connection: Connection, lost: ConnectionError) {
        if self.of(connection).is_some() {
            self.disconnected(now, connection.hub, lost);
        }
    }

    /// The time of [`poll_timeout`](Self::poll_timeout) has come. A call that is too early is harmless.
    pub fn handle_timeout(&mut self, now: Duration) {
        for index in 0..self.hubs.len() {
            let (id, hub) = (HubId(index), &mut self.hubs[index]);
            if hub.link.connect_due(now) {
                let connection = Connection { hub: id, number: hub.link.number() };
                self.actions.push_back(Action::Connect(connection));
            } else if hub.link.is_open() && hub.core.poll_timeout().is_some_and(|at| at <= now) {
                hub.core.handle_timeout(now);
                self.flush(now, id);
            }
        }
    }

    /// [`Action::Plan`] is done. An error ends the hub: the worker may do better on another device.
    pub fn planned(&mut self, now: Duration, engine: EngineId, result: Result<(), String>) {
        if let Some(hub) = self.with(engine) {
            hub.device_failed = result.is_err();
            hub.core.planned(now, result);
            self.flush(now, engine.hub);
        }
    }

    /// [`Action::Load`] is done.
    pub fn loaded(&mut self, now: Duration, engine: EngineId, block: Block, result: Result<Loaded, String>) {
        if let Some(hub) = self.with(engine) {
            hub.core.loaded(now, block, result);
            self.flush(now, engine.hub);
        }
    }

    /// [`Action::Compute`] is done.
    pub fn computed(
        &mut self,
        now: Duration,
        engine: EngineId,
        attempt: AttemptId,
        result: Result<Output, String>,
    ) {
        self.is_computing = false;
        self.compute_next();
        // The engine may have been replaced meanwhile, and the core still waits for its batch.
        if let Some(hub) = self.hubs.get_mut(engine.hub.0).filter(|hub| !hub.link.is_over()) {
            hub.core.computed(now, attempt, result);
            self.flush(now, engine.hub);
        }
    }

    /// The device stopped working: every hub is told, and none is served any more.
    pub fn device_lost(&mut self, now: Duration) {
        for index in 0..self.hubs.len() {
            let hub = &mut self.hubs[index];
            if !hub.link.is_over() {
                hub.device_failed = true;
                hub.core.device_failed(now, ErrorCode::DeviceLost, "The GPU was lost.".into());
                self.flush(now, HubId(index));
            }
        }
    }

    /// The tab was hidden, frozen or shown again.
    pub fn set_visibility(&mut self, now: Duration, visibility: Visibility) {
        for index in 0..self.hubs.len() {
            self.hubs[index].core.set_visibility(now, visibility);
            self.flush(now, HubId(index));
        }
    }

    /// The worker ends now: it tells its hubs, and waits for nothing that is running.
    pub fn leave(&mut self, now: Duration) {
        for index in 0..self.hubs.len() {
            let (id, hub) = (HubId(index), &mut self.hubs[index]);
            if hub.link.is_open() {
                hub.core.leave(now);
                self.flush(now, id);
            }
            self.end(id, Ending::Left, CLOSE_AWAY);
        }
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), unless something else happens first.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let deadline = |hub: &Hub| match hub.link.is_open() {
            true => hub.core.poll_timeout(),
            false => hub.link.poll_timeout(),
        };
        self.hubs.iter().filter_map(deadline).min()
    }

    /// Whether every hub has ended.
    pub fn is_over(&self) -> bool {
        self.hubs.iter().all(|hub| hub.link.is_over())
    }

    /// Whether there is a connection to this hub.
    pub fn is_connected(&self, hub: HubId) -> bool {
        self.hubs.get(hub.0).is_some_and(|hub| hub.link.is_open())
    }

    /// Whether no later engine was requested in this one's place.
    pub fn is_latest(&self, engine: EngineId) -> bool {
        self.hubs.get(engine.hub.0).is_some_and(|hub| hub.engine == engine.number && !hub.link.is_over())
    }

    /// The status of each hub.
    pub fn statuses(&self) -> impl Iterator<Item = Status> {
        self.hubs.iter().map(|hub| hub.core.status())
    }

    /// The hub of a socket, if that socket is its latest and has not ended.
    fn of(&mut self, connection: Connection) -> Option<&mut Hub> {
        let hub = self.hubs.get_mut(connection.hub.0)?;
        (hub.link.number() == connection.number && hub.link.has_socket()).then_some(hub)
    }

    /// [`Self::of`], if the socket is open.
    fn open(&mut self, connection: Connection) -> Option<&mut Hub> {
        self.of(connection).filter(|hub| hub.link.is_open())
    }

    /// The hub of an engine, if that engine is its latest.
    fn with(&mut self, engine: EngineId) -> Option<&mut Hub> {
        if self.is_latest(engine) { self.hubs.get_mut(engine.hub.0) } else { None }
    }

    /// Carries out the sends and tasks of the hub's core, and closes the socket if the session is over.
    fn flush(&mut self, now: Duration, id: HubId) {
        let hub = &mut self.hubs[id.0];
        if hub.link.is_open() {
            let connection = Connection { hub: id, number: hub.link.number() };
            while let Some(message) = hub.core.poll_transmit() {
                self.actions.push_back(Action::Send(connection, message));
            }
        }
        self.take_tasks(id);
        let hub = &mut self.hubs[id.0];
        if let Some(code) = hub.core.close_code().filter(|_| hub.link.is_open()) {
            let connection = Connection { hub: id, number: hub.link.number() };
            self.actions.push_back(Action::Close(connection, code));
            self.disconnected(
                now,
                id,
                ConnectionError::Disconnected(format!("the session ended with code {code}")),
            );
        }
    }

    fn disconnected(&mut self, now: Duration, id: HubId, lost: ConnectionError) {
        let hub = &mut self.hubs[id.0];
        if hub.link.is_open() {
            hub.core.handle_closed(now);
            // The core may still say that no retry is needed.
            self.take_tasks(id);
        }
        let hub = &mut self.hubs[id.0];
        if hub.link.is_over() {
            return;
        }
        match hub.link.lost(now, hub.core.was_accepted(), &lost) {
            Next::Retry { is_news: true } => self.actions.push_back(Action::Retrying(id, lost)),
            Next::Retry { is_news: false } => {}
            Next::End(ending) => self.end(id, ending, CLOSE_NORMAL),
        }
    }

    fn take_tasks(&mut self, id: HubId) {
        while let Some(task) = self.hubs[id.0].core.poll_task() {
            let hub = &mut self.hubs[id.0];
            match task {
                Task::Plan { plan } => {
                    hub.engine += 1;
                    let engine = EngineId { hub: id, number: hub.engine };
                    self.actions.push_back(Action::Plan { engine, plan });
                }
                Task::Load { slot, format, source } => {
                    let engine = EngineId { hub: id, number: hub.engine };
                    self.actions.push_back(Action::Load { engine, slot, format, source });
                }
                Task::Compute { attempt, batch, wanted } => {
                    let engine = EngineId { hub: id, number: hub.engine };
                    self.waiting.push_back(Action::Compute { engine, attempt, batch, wanted });
                    self.compute_next();
                }
                Task::Stop(reason) => {
                    let ending = if hub.device_failed { Ending::DeviceFailed } else { Ending::Stopped };
                    return self.end(id, ending(reason), CLOSE_NORMAL);
                }
            }
        }
    }

    /// Gives the device the batch that has waited longest, if it is free.
    fn compute_next(&mut self) {
        if !self.is_computing
            && let Some(next) = self.waiting.pop_front()
        {
            self.is_computing = true;
            self.actions.push_back(next);
        }
    }

    /// Stops serving the hub, if it is served.
    fn end(&mut self, id: HubId, ending: Ending, code: u16) {
        let hub = &mut self.hubs[id.0];
        if hub.link.is_over() {
            return;
        }
        if hub.link.has_socket() {
            let connection = Connection { hub: id, number: hub.link.number() };
            self.actions.push_back(Action::Close(connection, code));
        }
        hub.link.end();
        let is_its = |action: &Action| matches!(action, Action::Compute { engine, .. } if engine.hub == id);
        self.waiting.retain(|waiting| !is_its(waiting));
        self.actions.push_back(Action::Ended(id, ending));
    }
}
