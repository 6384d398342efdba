//! Continuous batching: runs rows of several sequences through the model in one step.
//!
//! [`Scheduler`] is the core: it takes requests and emits events, one [`Scheduler::step`] at a time, without threads,
//! clocks or randomness of its own. [`Engine`] runs it on a thread behind a bounded queue. The API interprets the text;
//! [`Experts`] hides where experts are computed.

mod clock;
mod counts;
mod draft;
mod in_flight;
mod prefix;
mod request;
pub mod sampler;
mod scheduler;
mod sequence;
mod stop;
mod utility;

#[cfg(test)]
mod tests;

pub use clock::Clock;
pub use counts::Counts;
pub use request::{
    Event, Failure, Finish, FinishReason, MAX_STOP_BYTES, MAX_STOPS, Request, RequestLimits, Sink,
    SubmitError, Timings, Usage,
};
pub use scheduler::{EngineConfig, Scheduler};

use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    thread,
    time::Instant,
};

use moex_model::text::Text;
use moex_model::{Experts, Model};

/// A scheduler on its own thread. When the last handle is dropped, the thread ends and unfinished requests with it.
#[derive(Clone)]
pub struct Engine {
    queue: SyncSender<(Request, Sink)>,
    limits: RequestLimits,
    counts: Arc<Counts>,
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(
        model: Arc<Model>,
        text: Arc<Text>,
        experts: Box<dyn Experts>,
        config: EngineConfig,
    ) -> io::Result<Self> {
        let (queue, requests) = sync_channel(config.max_waiting);
        let started = Instant::now();
        let scheduler = Scheduler::new(model, text, config).with_clock(Box::new(move || started.elapsed()));
        let (limits, counts) = (scheduler.limits(), scheduler.counts());
        thread::Builder::new().name("engine".to_owned()).spawn(move || run(scheduler, experts, &requests))?;
        Ok(Self { queue, limits, counts })
    }

    /// Queues a request; `sink` gets its events on the engine's thread and must not block.
    ///
    /// # Errors
    /// What is wrong with the request, or that the queue is full.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<(), SubmitError> {
        self.limits.check(&request)?;
        self.queue.try_send((request, sink)).map_err(|error| match error {
            TrySendError::Full(_) => SubmitError::Busy,
            TrySendError::Disconnected(_) => SubmitError::Stopped,
        })
    }

    /// What a request may ask for.
    pub fn limits(&self) -> RequestLimits {
        self.limits
    }

    /// What it has done so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

fn run(mut scheduler: Scheduler, mut experts: Box<dyn Experts>, requests: &Receiver<(Request, Sink)>) {
    loop {
        if scheduler.is_idle() {
            let Ok(next) = requests.recv() else { return };
            take(&mut scheduler, next);
        }
        while scheduler.has_room() {
            match requests.try_recv() {
                Ok(next) => take(&mut scheduler, next),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        scheduler.step(&mut *experts);
    }
}

fn take(scheduler: &mut Scheduler, (request, sink): (Request, Sink)) {
    if let Err(error) = scheduler.submit(request, sink) {
        // Checked when it was queued, and there was room.
        tracing::error!("a queued request was refused: {error}");
    }
}
