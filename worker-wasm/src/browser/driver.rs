//! One worker's life in a browser: connect, feed the core, do its tasks, connect again.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use moex_kernels::ExpertFormat;
use moex_kernels::engine::{Batch, Engine, EngineError, EnginePlan};
use moex_protocol::{AttemptId, Block, BlockSource, ErrorCode, Join, Visibility};

use super::clock::{self, Alarm};
use super::fetch::Fetcher;
use super::js;
use super::report::{Phase, Report};
use super::socket::Socket;
use crate::backoff::Backoff;
use crate::core::{Core, CoreConfig, Loaded, Task};
use crate::device::{Device, is_lost};
use crate::inbox::Inbox;

/// The wait before connecting again, at first and at most.
const RECONNECT_DELAY: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// A connection that lasted this long counts as a success.
const STABLE: Duration = Duration::from_secs(5);
/// How often the page is told at most.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// A device that is slower to say that it is done is nudged while an answer is awaited.
const SLOW_SYNC_MICROS: u64 = 20_000;
/// How often.
const NUDGE_INTERVAL: Duration = Duration::from_millis(1);

/// What happened.
pub(super) enum Event {
    Opened(u64),
    Message(u64, Bytes),
    Text(u64),
    Closed(u64),
    Planned(Result<Engine, String>),
    /// The first number says which plan it was for.
    Loaded(u64, Block, Result<Loaded, String>),
    Computed(AttemptId, Result<Vec<f32>, EngineError>),
    Visibility(Visibility),
    Alarm,
}

/// The core and everything it needs done.
pub(super) struct Driver {
    core: Core,
    device: Rc<Device>,
    engine: Option<Rc<Engine>>,
    plans: u64,
    nudges: bool,
    /// It was the GPU that failed: on the CPU the worker may do better.
    gpu_failed: bool,
    fetcher: Rc<Fetcher>,
    inbox: Inbox<Event>,
    alarm: Alarm,
    link: Link,
    connection: u64,
    backoff: Backoff,
    socket_url: String,
    shown: Option<Report>,
    show_at: Duration,
}

/// The connection as it is.
enum Link {
    Down { retry_at: Duration },
    Opening(Socket),
    Open { socket: Socket, since: Duration },
}

impl Driver {
    pub(super) fn new(device: Device, join: Join, fetcher: Fetcher, inbox: Inbox<Event>) -> Self {
        let ringing = inbox.clone();
        let now = clock::now();
        Self {
            nudges: join.sync_latency_micros > SLOW_SYNC_MICROS,
            gpu_failed: false,
            core: Core::new(CoreConfig { join }, now),
            device: Rc::new(device),
            engine: None,
            plans: 0,
            socket_url: format!("{}/ws", fetcher.hub.replacen("http", "ws", 1)),
            fetcher: Rc::new(fetcher),
            inbox,
            // A full inbox is drained soon, and the driver looks at the time whenever it has drained it.
            alarm: Alarm::new(move || drop(ringing.offer(Event::Alarm))),
            link: Link::Down { retry_at: now },
            connection: 0,
            backoff: Backoff::new(RECONNECT_DELAY[0], RECONNECT_DELAY[1]),
            shown: None,
            show_at: now,
        }
    }

    /// Serves until there is a reason to stop, and returns what to tell the page.
    pub(super) async fn run(mut self) -> Report {
        loop {
            let now = clock::now();
            if let Link::Down { retry_at } = self.link
                && retry_at <= now
            {
                self.connect(now);
            }
            if self.core.poll_timeout().is_some_and(|time| time <= now) {
                self.core.handle_timeout(now);
            }
            if let Some(reason) = self.flush(now) {
                return if self.gpu_failed { Report::crashed(&reason) } else { Report::stopped(reason) };
            }
            self.show(now);
            self.arm();
            let event = self.inbox.next().await;
            self.handle(clock::now(), event);
        }
    }

    fn handle(&mut self, now: Duration, event: Event) {
        match event {
            Event::Opened(connection) if connection == self.connection => self.opened(now),
            Event::Message(connection, message) if connection == self.connection => {
                self.core.handle_message(now, message);
            }
            Event::Text(connection) if connection == self.connection => self.core.handle_text(now),
            Event::Closed(connection) if connection == self.connection => self.closed(now),
            Event::Planned(engine) => {
                self.gpu_failed = engine.is_err() && self.device.is_gpu();
                let result = engine.map(|engine| self.engine = Some(Rc::new(engine)));
                self.core.planned(now, result);
            }
            Event::Loaded(plan, block, result) if plan == self.plans => self.core.loaded(now, block, result),
            Event::Computed(attempt, result) => self.computed(now, attempt, result),
            Event::Visibility(visibility) => self.core.set_visibility(now, visibility),
            Event::Alarm => self.alarm.rang(),
            // Of a socket or an engine that is no more.
            Event::Loaded(..) | Event::Opened(_) | Event::Message(..) | Event::Text(_) | Event::Closed(_) => {
            }
        }
    }

    fn connect(&mut self, now: Duration) {
        self.connection += 1;
        self.link = match Socket::open(&self.socket_url, self.connection, &self.inbox) {
            Ok(socket) => Link::Opening(socket),
            Err(_) => Link::Down { retry_at: now + self.backoff.delay() },
        };
    }

    fn opened(&mut self, now: Duration) {
        let link = std::mem::replace(&mut self.link, Link::Down { retry_at: now });
        if let Link::Opening(socket) = link {
            self.link = Link::Open { socket, since: now };
            self.core.reconnect(now);
        }
    }

    fn closed(&mut self, now: Duration) {
        if let Link::Open { since, .. } = self.link {
            self.core.handle_closed(now);
            if now.saturating_sub(since) > STABLE {
                self.backoff.reset();
            }
        }
        self.link = Link::Down { retry_at: now + self.backoff.delay() };
    }

    fn computed(&mut self, now: Duration, attempt: AttemptId, result: Result<Vec<f32>, EngineError>) {
        let lost = result.as_ref().is_err_and(is_lost);
        self.core.computed(now, attempt, result.map_err(|error| error.to_string()));
        if lost {
            self.gpu_failed = true;
            self.core.device_failed(now, ErrorCode::DeviceLost, "The GPU was lost.".into());
        }
    }

    /// Sends what waits and starts what is to be done; a reason if the worker is to stop.
    fn flush(&mut self, now: Duration) -> Option<String> {
        if let Link::Open { socket, .. } = &self.link {
            let mut sent = Ok(());
            while let Some(message) = self.core.poll_transmit() {
                sent = sent.and_then(|()| socket.send(&message));
            }
            if let Some(code) = self.core.close_code() {
                socket.close(code);
                self.closed(now);
            } else if sent.is_err() {
                self.closed(now);
            }
        }
        while let Some(task) = self.core.poll_task() {
            match task {
                Task::Plan(plan) => self.plan(plan),
                Task::Load { slot, format, source } => self.load(slot, format, source),
                Task::Compute { attempt, batch } => self.compute(attempt, batch),
                Task::Stop(reason) => return Some(reason),
            }
        }
        None
    }

    fn plan(&mut self, plan: EnginePlan) {
        self.engine = None;
        self.plans += 1;
        let device = self.device.clone();
        self.start(
            async move { Event::Planned(device.engine(plan).await.map_err(|error| error.to_string())) },
        );
    }

    fn load(&mut self, slot: u32, format: ExpertFormat, source: BlockSource) {
        let (engine, fetcher, plan) = (self.engine.clone(), self.fetcher.clone(), self.plans);
        self.start(async move {
            let load = async {
                let engine = engine.ok_or_else(|| no_engine().to_string())?;
                let (bytes, loaded) = fetcher.fetch(&source).await?;
                engine.load(slot, format, &bytes).await.map_err(|error| error.to_string())?;
                Ok(loaded)
            };
            Event::Loaded(plan, source.block, load.await)
        });
    }

    fn compute(&mut self, attempt: AttemptId, batch: Batch) {
        let engine = self.engine.clone();
        let nudged = self.nudges.then(|| self.device.clone());
        self.start(async move {
            let result = match &engine {
                Some(engine) => nudging(engine.compute(&batch), nudged).await,
                None => Err(no_engine()),
            };
            Event::Computed(attempt, result)
        });
    }

    fn start(&self, task: impl Future<Output = Event> + 'static) {
        let inbox = self.inbox.clone();
        wasm_bindgen_futures::spawn_local(async move {
            inbox.push(task.await);
        });
    }

    /// Tells the page, if there is something new and the last time is long enough ago.
    fn show(&mut self, now: Duration) {
        if now < self.show_at {
            return;
        }
        let phase = if matches!(self.link, Link::Open { .. }) { Phase::Connected } else { Phase::Connecting };
        let report = Report {
            note: self.device.note().map(str::to_owned),
            keeps_blocks: self.fetcher.store.is_some(),
            gpu_buffers: js::gpu_buffers_created(),
            status: Some(self.core.status()),
            ..Report::new(phase)
        };
        if self.shown.as_ref() != Some(&report) {
            report.post();
            self.shown = Some(report);
            self.show_at = now + REPORT_INTERVAL;
        }
    }

    /// Wakes the loop at the next time that something is due.
    fn arm(&mut self) {
        let retry = match self.link {
            Link::Down { retry_at } => Some(retry_at),
            _ => None,
        };
        let show = (self.show_at > clock::now()).then_some(self.show_at);
        if let Some(deadline) = [self.core.poll_timeout(), retry, show].into_iter().flatten().min() {
            self.alarm.set(deadline);
        }
    }
}

/// The outcome of `computation`, with the device nudged meanwhile if there is one to nudge.
async fn nudging<T>(computation: impl Future<Output = T>, device: Option<Rc<Device>>) -> T {
    let Some(device) = device else { return computation.await };
    let mut computation = pin!(computation);
    loop {
        match select(computation, pin!(clock::sleep(NUDGE_INTERVAL))).await {
            Either::Left((outcome, _)) => return outcome,
            Either::Right(((), unfinished)) => {
                device.nudge();
                computation = unfinished;
            }
        }
    }
}

/// What the core never lets happen: it asks for nothing before it was told that the engine is there.
fn no_engine() -> EngineError {
    EngineError::Plan("there is none yet".into())
}
