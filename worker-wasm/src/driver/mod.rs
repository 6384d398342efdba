//! Drives a [`Worker`] in a browser and natively: takes events, feeds the worker, carries out its actions, arms the
//! timer. The two ends provide sockets, the clock, downloads and threads, behind [`End`] and [`Fetch`].

mod job;

use std::time::Duration;

use bytes::Bytes;
#[cfg(target_arch = "wasm32")]
use moex_protocol::Visibility;

pub(crate) use self::job::{Done, Fetch, Job};
use crate::core::{Action, Connection, ConnectionError, Ending, EngineId, HubConfig, HubId, Status, Worker};
use crate::device::{Device, Engine, is_lost};

/// A pointer that jobs share: between threads where there are any.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) type Shared<T> = std::sync::Arc<T>;
/// A pointer that jobs share: between threads where there are any.
#[cfg(target_arch = "wasm32")]
pub(crate) type Shared<T> = std::rc::Rc<T>;

/// An event for the worker.
pub(crate) enum Event {
    /// A socket is open.
    Opened(Connection),
    /// A binary message arrived.
    Message(Connection, Bytes),
    /// A text message arrived.
    Text(Connection),
    /// A socket is closed, or could not be opened.
    Closed(Connection, ConnectionError),
    /// A job has ended.
    Done(Done),
    /// The page was hidden, frozen, shown again, or is about to go.
    #[cfg(target_arch = "wasm32")]
    Visibility(Visibility),
    /// The worker was told to end.
    #[cfg(not(target_arch = "wasm32"))]
    Leave,
    /// The deadline has come.
    Timer,
}

/// The worker's surroundings.
pub(crate) trait End {
    /// The fetcher of blocks.
    type Fetcher: Fetch;

    /// The shortest interval between two updates of the display.
    const SHOW_INTERVAL: Duration;

    /// The time since a fixed moment.
    fn now(&self) -> Duration;

    /// Starts to open a socket.
    fn connect(&mut self, connection: Connection);

    /// Queues a message. It fails if the hub does not read its messages: then the socket must be closed.
    fn send(&mut self, connection: Connection, message: Bytes) -> Result<(), String>;

    /// Closes a socket once its queued messages are sent. It causes no more events.
    fn close(&mut self, connection: Connection, code: u16);

    /// Runs a job beside the sockets; [`Event::Done`] has its outcome.
    fn start(&mut self, job: Job<Self::Fetcher>);

    /// A connection is lost and will be tried again.
    fn retrying(&mut self, hub: HubId, lost: &ConnectionError);

    /// A hub is no longer served.
    fn ended(&mut self, hub: HubId, ending: &Ending, is_last: bool);

    /// Shows each hub's status, and whether it is connected; returns whether any of it was new.
    fn show(&mut self, statuses: Vec<(Status, bool)>) -> bool;

    /// The next event; [`Event::Timer`] at the deadline.
    async fn next(&mut self, deadline: Option<Duration>) -> Event;

    /// Waits until the closing sockets are closed.
    async fn finish(&mut self);
}

/// A worker and its surroundings.
pub(crate) struct Driver<E: End> {
    worker: Worker,
    end: E,
    device: Shared<Device>,
    hubs: Vec<Hub<E::Fetcher>>,
    show_at: Duration,
}

/// The driver's part of a hub.
struct Hub<F> {
    fetcher: Shared<F>,
    engine: Option<(EngineId, Shared<Engine>)>,
    ending: Option<Ending>,
}

impl<E: End> Driver<E> {
    /// A driver that is about to connect to these hubs.
    pub(crate) fn new(end: E, device: Shared<Device>, hubs: Vec<(HubConfig, E::Fetcher)>) -> Self {
        let now = end.now();
        let (configs, fetchers): (Vec<_>, Vec<_>) = hubs.into_iter().unzip();
        let hub = |fetcher| Hub { fetcher: Shared::new(fetcher), engine: None, ending: None };
        Self {
            worker: Worker::new(configs, now),
            end,
            device,
            hubs: fetchers.into_iter().map(hub).collect(),
            show_at: now,
        }
    }

    /// Serves until every hub has ended; returns how each ended.
    pub(crate) async fn run(mut self) -> Vec<Ending> {
        loop {
            let now = self.end.now();
            self.worker.handle_timeout(now);
            self.act(now);
            let is_over = self.worker.is_over();
            self.show(now, is_over);
            if is_over {
                self.end.finish().await;
                return self.hubs.into_iter().map(|hub| hub.ending.unwrap_or(Ending::Left)).collect();
            }
            let show = (self.show_at > now).then_some(self.show_at);
            let deadline = [self.worker.poll_timeout(), show].into_iter().flatten().min();
            let event = self.end.next(deadline).await;
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.end.now();
        match event {
            Event::Opened(connection) => self.worker.opened(now, connection),
            Event::Message(connection, message) => self.worker.handle_message(now, connection, message),
            Event::Text(connection) => self.worker.handle_text(now, connection),
            Event::Closed(connection, lost) => {
                self.show_at = Duration::ZERO;
                self.worker.closed(now, connection, lost);
            }
            Event::Done(done) => self.handle_done(now, done),
            #[cfg(target_arch = "wasm32")]
            Event::Visibility(visibility) => self.worker.set_visibility(now, visibility),
            #[cfg(not(target_arch = "wasm32"))]
            Event::Leave => self.worker.leave(now),
            Event::Timer => {}
        }
    }

    fn handle_done(&mut self, now: Duration, done: Done) {
        match done {
            Done::Planned(id, made) => {
                let result = made.map(|engine| {
                    if self.worker.is_latest(id) {
                        self.hubs[id.hub.0].engine = Some((id, engine));
                    }
                });
                self.worker.planned(now, id, result);
            }
            Done::Loaded(id, block, result) => self.worker.loaded(now, id, block, result),
            Done::Computed(id, attempt, result) => {
                let is_lost = result.as_ref().is_err_and(is_lost);
                self.worker.computed(now, id, attempt, result.map_err(|error| error.to_string()));
                if is_lost {
                    self.worker.device_lost(now);
                }
            }
        }
    }

    /// Carries out all actions of the worker.
    fn act(&mut self, now: Duration) {
        while let Some(action) = self.worker.poll_action() {
            match action {
                Action::Connect(connection) => self.end.connect(connection),
                Action::Send(connection, message) => {
                    if let Err(reason) = self.end.send(connection, message) {
                        self.end.close(connection, 1000);
                        self.worker.closed(now, connection, ConnectionError::Disconnected(reason));
                    }
                }
                Action::Close(connection, code) => {
                    self.show_at = Duration::ZERO;
                    self.end.close(connection, code);
                }
                Action::Plan { engine, plan } => {
                    self.hubs[engine.hub.0].engine = None;
                    self.end.start(Job::Plan { id: engine, device: self.device.clone(), plan });
                }
                Action::Load { engine: id, slot, format, source } => {
                    let (engine, fetcher) = (self.engine(id), self.hubs[id.hub.0].fetcher.clone());
                    self.end.start(Job::Load { id, engine, fetcher, slot, format, source });
                }
                Action::Compute { engine: id, attempt, batch, wanted } => {
                    let engine = self.engine(id);
                    self.end.start(Job::Compute { id, engine, attempt, batch, wanted });
                }
                Action::Retrying(hub, lost) => self.end.retrying(hub, &lost),
                Action::Ended(hub, ending) => {
                    self.end.ended(hub, &ending, self.worker.is_over());
                    let hub = &mut self.hubs[hub.0];
                    (hub.engine, hub.ending) = (None, Some(ending));
                }
            }
        }
    }

    /// The engine, unless it has been replaced.
    fn engine(&self, id: EngineId) -> Option<Shared<Engine>> {
        let latest = self.hubs[id.hub.0].engine.as_ref();
        latest.filter(|(latest, _)| *latest == id).map(|(_, engine)| engine.clone())
    }

    /// Shows the status, if it is new and the last update is long enough ago, or if this is the last one.
    fn show(&mut self, now: Duration, is_last: bool) {
        if now < self.show_at && !is_last {
            return;
        }
        let worker = &self.worker;
        let with_connection = |(hub, status)| (status, worker.is_connected(HubId(hub)));
        if self.end.show(worker.statuses().enumerate().map(with_connection).collect()) {
            self.show_at = now + E::SHOW_INTERVAL;
        }
    }
}
