//! One worker's life on tokio: connect, feed the core, do its tasks, connect again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use moex_kernels::ExpertFormat;
use moex_kernels::engine::{Batch, Engine, EngineError, EnginePlan};
use moex_protocol::{AttemptId, Block, BlockSource, ErrorCode, Join};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, frame::coding::CloseCode};

use super::WorkerError;
use super::busy::{BusyPoll, poll_again};
use super::fetch::Fetcher;
use super::route::{ConnectError, Route, Socket};
use crate::backoff::Backoff;
use crate::core::{Core, CoreConfig, Loaded, MAX_LOADS_IN_FLIGHT, Status, Task};
use crate::device::{Device, is_lost};

/// The wait before connecting again, at first and at most.
const RECONNECT_DELAY: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// A connection that lasted this long counts as a success.
const STABLE: Duration = Duration::from_secs(5);
/// How long a hub is given to have a certificate that names the address it is reached by: several times what it takes.
const RENEWAL_PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection may take to open, or a message to be taken off our hands.
pub(super) const SOCKET_TIMEOUT: Duration = Duration::from_secs(10);
/// What there is to show is published this often at most.
const SHOW_INTERVAL: Duration = Duration::from_millis(100);
/// The most (row, expert) pairs that the CPU computes where they arrived: those of a few sequences' tokens, done before
/// another thread would have woken up for them. What is larger runs beside the socket.
const MAX_PAIRS_IN_PLACE: usize = 32;

/// The time since a worker's start, which is what the core counts in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn now(self) -> Duration {
        self.0.elapsed()
    }

    fn at(self, time: Duration) -> Instant {
        self.0 + time
    }
}

/// What a task brought back.
enum Done {
    Planned(Result<Engine, String>),
    /// The first number says which plan it was for.
    Loaded(u64, Block, Result<Loaded, String>),
    Computed(AttemptId, Result<Vec<f32>, EngineError>),
}

/// How serving one connection ended.
enum Ended {
    Shutdown,
    Stopped(String),
    Disconnected(String),
}

/// The core and everything it needs done.
pub(super) struct Driver {
    clock: Clock,
    core: Core,
    device: Arc<Device>,
    engine: Option<Arc<Engine>>,
    plans: u64,
    fetcher: Arc<Fetcher>,
    done: (mpsc::Sender<Done>, mpsc::Receiver<Done>),
    status: Option<watch::Sender<Status>>,
    show_at: Duration,
    busy_poll: BusyPoll,
    /// It was the device that failed: another may do better.
    device_failed: bool,
}

impl Driver {
    pub(super) fn new(
        clock: Clock,
        device: Device,
        join: Join,
        fetcher: Fetcher,
        status: Option<watch::Sender<Status>>,
        busy_poll: BusyPoll,
    ) -> Self {
        Self {
            clock,
            core: Core::new(CoreConfig { join }, clock.now()),
            device: Arc::new(device),
            engine: None,
            plans: 0,
            fetcher: Arc::new(fetcher),
            // One plan, one computation and the loads: nothing that reports ever waits.
            done: mpsc::channel(2 + MAX_LOADS_IN_FLIGHT),
            status,
            show_at: Duration::ZERO,
            busy_poll,
            device_failed: false,
        }
    }

    /// Serves until `shutdown`, over as many connections as it takes.
    pub(super) async fn run(
        mut self,
        route: &Route,
        patience: Duration,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), WorkerError> {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut backoff = Backoff::new(RECONNECT_DELAY[0], RECONNECT_DELAY[1]);
        let mut last_contact = self.clock.now();
        let mut not_named_since = None;
        loop {
            let connected = tokio::select! {
                connected = route.connect() => connected,
                () = &mut shutdown => return Ok(()),
            };
            let reason = match connected {
                Ok(socket) => {
                    not_named_since = None;
                    self.core.reconnect(self.clock.now());
                    let since = self.clock.now();
                    let ended = self.serve(socket, shutdown.as_mut()).await;
                    if self.core.was_accepted() {
                        last_contact = self.clock.now();
                    }
                    if self.clock.now() - since > STABLE {
                        backoff.reset();
                    }
                    match ended {
                        Ended::Shutdown => return Ok(()),
                        Ended::Stopped(reason) if self.device_failed => {
                            return Err(WorkerError::Device(reason));
                        }
                        Ended::Stopped(reason) => return Err(WorkerError::Stopped(reason)),
                        Ended::Disconnected(reason) => reason,
                    }
                }
                Err(ConnectError::Stranger(reason)) => return Err(WorkerError::Stopped(reason)),
                Err(ConnectError::NotNamed(reason)) => {
                    let now = self.clock.now();
                    if not_named_since.is_none() {
                        let seconds = RENEWAL_PATIENCE.as_secs();
                        tracing::info!("{reason} It may soon: trying again for {seconds} s.");
                    }
                    if now - *not_named_since.get_or_insert(now) > RENEWAL_PATIENCE {
                        return Err(WorkerError::Stopped(reason));
                    }
                    reason
                }
                Err(ConnectError::NoAnswer(reason)) => reason,
            };
            if self.clock.now() - last_contact > patience {
                return Err(WorkerError::NoHub { url: route.url().to_owned(), reason });
            }
            if not_named_since.is_none() {
                tracing::info!(%reason, "not connected; trying again");
            }
            let until = self.clock.at(self.clock.now() + backoff.delay());
            tokio::select! {
                () = self.idle(until) => {}
                () = &mut shutdown => return Ok(()),
            }
        }
    }

    /// Without a connection, what was under way still ends.
    async fn idle(&mut self, until: Instant) {
        loop {
            tokio::select! {
                Some(done) = self.done.1.recv() => self.handle_done(done),
                () = sleep_until(until) => return,
            }
        }
    }

    async fn serve(
        &mut self,
        mut socket: Socket,
        mut shutdown: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> Ended {
        loop {
            if let Some(ended) = self.flush(&mut socket).await {
                return ended;
            }
            let show = (self.show_at > self.clock.now()).then_some(self.show_at);
            let deadline = [self.core.poll_timeout(), show].into_iter().flatten().min();
            let deadline = deadline.map(|time| self.clock.at(time));
            tokio::select! {
                // In this order: a timer is never starved, and polling again comes when there is nothing else.
                biased;
                () = &mut shutdown => {
                    self.core.leave(self.clock.now());
                    drop(self.flush(&mut socket).await);
                    drop(close(&mut socket, CloseCode::Away).await);
                    return Ended::Shutdown;
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    self.core.handle_timeout(self.clock.now());
                }
                Some(done) = self.done.1.recv() => self.handle_done(done),
                message = socket.next() => {
                    self.busy_poll.stir();
                    if let Some(ended) = self.handle_socket(message) {
                        return ended;
                    }
                }
                () = poll_again(), if self.busy_poll.is_awake() => {}
            }
        }
    }

    /// Sends what waits and does or starts what is to be done; `Some` if that ends the connection.
    async fn flush(&mut self, socket: &mut Socket) -> Option<Ended> {
        loop {
            while let Some(message) = self.core.poll_transmit() {
                match timeout(SOCKET_TIMEOUT, socket.send(Message::Binary(message))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return Some(self.closed(error.to_string())),
                    Err(_) => return Some(self.closed("the hub takes no messages".into())),
                }
            }
            let Some(task) = self.core.poll_task() else { break };
            if let Err(reason) = self.take_up(task) {
                self.show_now();
                drop(close(socket, CloseCode::Normal).await);
                return Some(Ended::Stopped(reason));
            }
        }
        self.show();
        let code = self.core.close_code()?;
        drop(close(socket, CloseCode::from(code)).await);
        Some(self.closed(format!("the session ended with code {code}")))
    }

    fn handle_socket(
        &mut self,
        message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
    ) -> Option<Ended> {
        let now = self.clock.now();
        match message {
            Some(Ok(Message::Binary(bytes))) => self.core.handle_message(now, bytes),
            Some(Ok(Message::Text(_))) => self.core.handle_text(now),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Ok(Message::Close(_))) | None => {
                return Some(self.closed("the hub closed the connection".into()));
            }
            Some(Err(error)) => return Some(self.closed(error.to_string())),
        }
        None
    }

    /// The connection is gone; the core may still want to say that it need not be tried again.
    fn closed(&mut self, reason: String) -> Ended {
        self.core.handle_closed(self.clock.now());
        self.show_now();
        while let Some(task) = self.core.poll_task() {
            if let Err(reason) = self.take_up(task) {
                return Ended::Stopped(reason);
            }
        }
        Ended::Disconnected(reason)
    }

    /// Does or starts what the core wants done; an error is its reason to stop.
    fn take_up(&mut self, task: Task) -> Result<(), String> {
        match task {
            Task::Plan(plan) => self.plan(plan),
            Task::Load { slot, format, source } => self.load(slot, format, source),
            Task::Compute { attempt, batch } => self.compute(attempt, batch),
            Task::Stop(reason) => return Err(reason),
        }
        Ok(())
    }

    /// Publishes what there is to show, since nothing may follow.
    fn show_now(&mut self) {
        self.show_at = Duration::ZERO;
        self.show();
    }

    /// Publishes what there is to show, if it is new and the last time is long enough ago.
    fn show(&mut self) {
        let now = self.clock.now();
        let Some(shown) = self.status.as_ref().filter(|_| now >= self.show_at) else { return };
        let status = self.core.status();
        let is_new = shown.send_if_modified(|shown| status != std::mem::replace(shown, status.clone()));
        if is_new {
            self.show_at = now + SHOW_INTERVAL;
        }
    }

    fn handle_done(&mut self, done: Done) {
        let now = self.clock.now();
        match done {
            Done::Planned(engine) => {
                self.device_failed = engine.is_err();
                let result = engine.map(|engine| self.engine = Some(Arc::new(engine)));
                self.core.planned(now, result);
            }
            Done::Loaded(plan, block, result) if plan == self.plans => self.core.loaded(now, block, result),
            Done::Loaded(..) => {}
            Done::Computed(attempt, result) => {
                let lost = result.as_ref().is_err_and(is_lost);
                self.core.computed(now, attempt, result.map_err(|error| error.to_string()));
                if lost {
                    self.device_failed = true;
                    self.core.device_failed(now, ErrorCode::DeviceLost, "The GPU was lost.".into());
                }
            }
        }
    }

    fn plan(&mut self, plan: EnginePlan) {
        self.engine = None;
        self.plans += 1;
        let device = self.device.clone();
        self.start(async move || Done::Planned(device.engine(plan).await.map_err(|error| error.to_string())));
    }

    fn load(&mut self, slot: u32, format: ExpertFormat, source: BlockSource) {
        let (engine, fetcher, plan) = (self.engine.clone(), self.fetcher.clone(), self.plans);
        self.start(async move || {
            let load = async {
                let engine = engine.ok_or_else(|| no_engine().to_string())?;
                let (bytes, loaded) = fetcher.fetch(&source).await?;
                engine.load(slot, format, &bytes).await.map_err(|error| error.to_string())?;
                Ok(loaded)
            };
            Done::Loaded(plan, source.block, load.await)
        });
    }

    fn compute(&mut self, attempt: AttemptId, batch: Batch) {
        if let Some(Engine::Cpu(cpu)) = self.engine.as_deref()
            && batch.n_pairs() <= MAX_PAIRS_IN_PLACE
        {
            let result = cpu.compute(&batch);
            return self.handle_done(Done::Computed(attempt, result));
        }
        let engine = self.engine.clone();
        self.start(async move || {
            let result = match engine {
                Some(engine) => engine.compute(&batch).await,
                None => Err(no_engine()),
            };
            Done::Computed(attempt, result)
        });
    }

    /// Runs a task beside the socket, on a thread that it may keep busy.
    fn start(&self, task: impl AsyncFnOnce() -> Done + Send + 'static) {
        let (sender, runtime) = (self.done.0.clone(), tokio::runtime::Handle::current());
        tokio::task::spawn_blocking(move || {
            runtime.block_on(async move {
                // The receiver is gone when the worker has ended, and then nobody waits for the outcome.
                drop(sender.send(task().await).await);
            });
        });
    }
}

/// What the core never lets happen: it asks for nothing before it was told that the engine is there.
fn no_engine() -> EngineError {
    EngineError::Plan("there is none yet".into())
}

async fn close(socket: &mut Socket, code: CloseCode) -> Result<(), String> {
    let frame = CloseFrame { code, reason: "".into() };
    match timeout(SOCKET_TIMEOUT, socket.close(Some(frame))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer".into()),
    }
}
