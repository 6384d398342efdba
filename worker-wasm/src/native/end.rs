//! The native end of the driver: sockets on one thread, jobs on blocking threads; small jobs run on the sockets'
//! thread.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::busy::{BusyPoll, poll_again};
use super::clock::Clock;
use super::fetch::Fetcher;
use super::links::Links;
use super::timing::{Point, Timing};
use crate::core::{
    Connection, ConnectionError, Ending, HubId, MAX_LOADS_IN_FLIGHT, RENEWAL_PATIENCE, Status,
};
use crate::driver::{Done, End, Event, Job};

/// Maximum (row, expert) pairs that are computed on the sockets' thread: a few sequences' tokens, done before
/// another thread would wake up. Larger jobs run on a blocking thread.
const MAX_PAIRS_IN_PLACE: usize = 32;

/// See the [module's description](self).
pub(super) struct NativeEnd<'a, S> {
    clock: Clock,
    links: Links,
    done: (mpsc::Sender<Done>, mpsc::Receiver<Done>),
    /// A computation to run after the queued messages are sent. The worker requests one at a time.
    in_place: VecDeque<Job<Fetcher>>,
    status: Option<watch::Sender<Vec<Status>>>,
    busy_poll: BusyPoll,
    /// Told each time that it polls whether a message was there.
    keep_awake: Option<Box<dyn FnMut(bool)>>,
    timing: Timing,
    shutdown: Option<Pin<&'a mut S>>,
}

impl<'a, S: Future<Output = ()>> NativeEnd<'a, S> {
    /// A worker that leaves once `shutdown` resolves.
    pub(super) fn new(
        clock: Clock,
        links: Links,
        status: Option<watch::Sender<Vec<Status>>>,
        busy_poll: BusyPoll,
        keep_awake: Option<Box<dyn FnMut(bool)>>,
        timing: Timing,
        shutdown: Pin<&'a mut S>,
    ) -> Self {
        // Room for a plan, a computation and the loads of each hub, so that sending an outcome never waits.
        let done = mpsc::channel(links.n_hubs() * (2 + MAX_LOADS_IN_FLIGHT));
        Self {
            clock,
            links,
            done,
            in_place: VecDeque::new(),
            status,
            busy_poll,
            keep_awake,
            timing,
            shutdown: Some(shutdown),
        }
    }
}

impl<S: Future<Output = ()>> End for NativeEnd<'_, S> {
    type Fetcher = Fetcher;

    const SHOW_INTERVAL: Duration = Duration::from_millis(100);

    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn connect(&mut self, connection: Connection) {
        self.links.connect(connection);
    }

    fn send(&mut self, connection: Connection, message: bytes::Bytes) -> Result<(), String> {
        self.timing.reach(Point::Encoded);
        self.links.send(connection, message)
    }

    fn close(&mut self, connection: Connection, code: u16) {
        self.links.close(connection, code);
    }

    fn start(&mut self, job: Job<Fetcher>) {
        if let Job::Compute { batch, .. } = &job {
            self.timing.reach(Point::Parsed);
            if batch.n_pairs() <= MAX_PAIRS_IN_PLACE {
                return self.in_place.push_back(job);
            }
        }
        let (sender, runtime) = (self.done.0.clone(), tokio::runtime::Handle::current());
        tokio::task::spawn_blocking(move || {
            runtime.block_on(async move {
                // Fails if the worker has ended; then nobody waits for the outcome.
                drop(sender.send(job.run().await).await);
            });
        });
    }

    fn retrying(&mut self, hub: HubId, lost: &ConnectionError) {
        let url = self.links.url(hub);
        match lost {
            ConnectionError::AddressNotInCertificate(reason) => {
                let seconds = RENEWAL_PATIENCE.as_secs();
                tracing::info!("{reason} It may soon: trying again for {seconds} s.");
            }
            ConnectionError::Disconnected(reason) | ConnectionError::Untrusted(reason) => {
                tracing::info!(%reason, url, "not connected; trying again");
            }
        }
    }

    fn ended(&mut self, hub: HubId, ending: &Ending, is_last: bool) {
        // The end of the last hub ends the worker, and the caller reports it.
        if let (Ending::Stopped(reason) | Ending::DeviceFailed(reason) | Ending::Unreachable(reason), false) =
            (ending, is_last)
        {
            tracing::warn!(%reason, url = self.links.url(hub), "this hub is no longer served");
        }
    }

    fn show(&mut self, statuses: Vec<(Status, bool)>) -> bool {
        let statuses: Vec<Status> = statuses.into_iter().map(|(status, _)| status).collect();
        let Some(shown) = &self.status else { return false };
        shown.send_if_modified(|shown| {
            let is_new = *shown != statuses;
            if is_new {
                *shown = statuses;
            }
            is_new
        })
    }

    async fn next(&mut self, deadline: Option<Duration>) -> Event {
        if let Some(job) = self.in_place.pop_front() {
            poll_fn(|context| self.links.poll_send(context)).await;
            // On the CPU this never waits, and for so few pairs not for long on a GPU.
            return Event::Done(job.run().await);
        }
        let deadline = deadline.map(|time| self.clock.at(time));
        let Self { links, done, busy_poll, keep_awake, timing, shutdown, .. } = self;
        let mut keep_awake = |was_there: bool| {
            if let Some(keep_awake) = keep_awake.as_mut() {
                keep_awake(was_there);
            }
        };
        loop {
            tokio::select! {
                // In this order, a timer is never starved, and polling again comes last.
                biased;
                () = told_to_end(shutdown) => return Event::Leave,
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    return Event::Timer;
                }
                Some(done) = done.1.recv() => return Event::Done(done),
                event = poll_fn(|context| {
                    let event = links.poll(context);
                    timing.reach(Point::Sent);
                    event
                }) => {
                    keep_awake(true);
                    busy_poll.stir();
                    timing.reach(Point::Received);
                    return event;
                }
                () = poll_again(), if busy_poll.is_awake() => keep_awake(false),
            }
        }
    }

    async fn finish(&mut self) {
        poll_fn(|context| self.links.poll_closed(context)).await;
    }
}

/// Resolves once when the worker is told to end.
async fn told_to_end<S: Future<Output = ()>>(shutdown: &mut Option<Pin<&mut S>>) {
    match shutdown {
        Some(future) => {
            future.as_mut().await;
            *shutdown = None;
        }
        None => std::future::pending().await,
    }
}
