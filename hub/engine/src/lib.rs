//! Continuous batching: runs rows of several sequences through the model in one step.
//!
//! [`Scheduler`] is the core: it takes requests and emits events, one [`Scheduler::step`] at a time, without threads,
//! clocks or randomness of its own. [`Engine`] runs it on a thread behind a bounded queue. The API interprets the text;
//! [`Experts`] hides where experts are computed.

mod chunk_length;
mod clock;
mod counts;
mod draft;
mod in_flight;
mod places;
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
    Client, Event, Failure, Finish, FinishReason, Listener, MAX_STOP_BYTES, MAX_STOPS, Request,
    RequestLimits, Sink, SubmitError, Timings, Usage,
};
pub use scheduler::{EngineConfig, Scheduler};

use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use moex_model::text::Text;
use moex_model::{Experts, Model};

use self::places::Places;

/// How often texts that nobody reads are looked at, while there is nothing else to do.
const LOOK_FOR_READERS: Duration = Duration::from_millis(10);

/// A scheduler on its own thread. When the last handle is dropped, the thread ends and unfinished requests with it.
#[derive(Clone)]
pub struct Engine {
    /// Bounded by `places`.
    queue: Sender<(Request, Sink)>,
    places: Arc<Places>,
    limits: RequestLimits,
    max_sequences: usize,
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
        let (queue, requests) = channel();
        let started = Instant::now();
        let scheduler = Scheduler::new(model, text, config).with_clock(Box::new(move || started.elapsed()));
        let (limits, counts) = (scheduler.limits(), scheduler.counts());
        let max_sequences = scheduler.max_sequences();
        let places = Places::new(scheduler.max_requests());
        thread::Builder::new().name("engine".to_owned()).spawn(move || run(scheduler, experts, &requests))?;
        Ok(Self { queue, places, limits, max_sequences, counts })
    }

    /// Queues a request, whose events `sink` hears.
    ///
    /// # Errors
    /// What is wrong with the request, or that the queue is full, or full of this client's.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<(), SubmitError> {
        self.limits.check(&request)?;
        let sink = self.places.take(request.client, sink).ok_or(SubmitError::Busy)?;
        self.queue.send((request, sink)).map_err(|_| SubmitError::Stopped)
    }

    /// What a request may ask for.
    pub fn limits(&self) -> RequestLimits {
        self.limits
    }

    /// Maximum sequences that it computes at once; others wait.
    pub fn max_sequences(&self) -> usize {
        self.max_sequences
    }

    /// What it has done so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

fn run(mut scheduler: Scheduler, mut experts: Box<dyn Experts>, requests: &Receiver<(Request, Sink)>) {
    let mut has_stepped = true;
    loop {
        if scheduler.is_idle() {
            let Ok(next) = requests.recv() else { return };
            take(&mut scheduler, next);
        } else if !has_stepped {
            match requests.recv_timeout(LOOK_FOR_READERS) {
                Ok(next) => take(&mut scheduler, next),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        loop {
            match requests.try_recv() {
                Ok(next) => take(&mut scheduler, next),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        has_stepped = scheduler.step(&mut *experts);
    }
}

fn take(scheduler: &mut Scheduler, (request, sink): (Request, Sink)) {
    if let Err(error) = scheduler.submit(request, sink) {
        // Checked when it was queued, and there was room.
        tracing::error!("a queued request was refused: {error}");
    }
}
