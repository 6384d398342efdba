//! Work on requests that takes processor time: parsing large bodies, rendering and tokenising prompts, compiling schemas.
//!
//! Short and long work waits in queues of its own, so that a chat does not wait for megabytes; in each, clients take turns. Work
//! for large bodies and new schemas runs on one thread of low priority.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use moex_engine::Client;
use tokio::sync::oneshot;

use super::error::ApiError;
use super::queue::Queue;
use crate::priority;

/// Requests with small bodies that are worked on at the same time.
const SMALL_AT_ONCE: usize = 2;

type Job = Box<dyn FnOnce() + Send>;

/// Both queues, and the thread for large bodies.
pub(super) struct Work {
    small: Queue,
    large: Queue,
    /// Dropping it ends the thread. At most one job is in it: it holds its turn.
    large_jobs: mpsc::Sender<Job>,
}

/// Whether a request has a small or a large body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Small,
    Large,
}

impl Default for Work {
    fn default() -> Self {
        let (large_jobs, jobs) = mpsc::channel::<Job>();
        // Without the thread, nobody receives what is sent, and requests with large bodies fail in words.
        let _ = std::thread::Builder::new().name("large-prompts".into()).spawn(move || {
            priority::lower();
            for job in jobs {
                // Whoever waits for a job that panicked is told so: its sender is dropped.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        });
        Self { small: Queue::new(SMALL_AT_ONCE), large: Queue::new(1), large_jobs }
    }
}

impl Work {
    /// Runs `work` once it is the client's turn; fails if too many wait already.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        client: Client,
        size: Size,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let failed = || ApiError::internal("The request could not be processed.");
        match size {
            Size::Small => {
                let turn = self.small.turn(client).await?;
                let worked = tokio::task::spawn_blocking(move || {
                    // Kept even if the client disconnects: the work cannot be interrupted.
                    let _turn = turn;
                    work()
                });
                worked.await.unwrap_or_else(|_| Err(failed()))
            }
            Size::Large => {
                let turn = self.large.turn(client).await?;
                let (reply, worked) = oneshot::channel();
                let job = move || {
                    let _turn = turn;
                    // Nobody receives it if the client has disconnected.
                    let _ = reply.send(work());
                };
                // If the thread has ended, `worked` fails.
                let _ = self.large_jobs.send(Box::new(job));
                worked.await.unwrap_or_else(|_| Err(failed()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures_util::FutureExt;

    use super::*;

    /// A client with many requests.
    const MANY: Client = Client(1);

    type Running<'a> = Pin<Box<dyn Future<Output = Result<(), ApiError>> + 'a>>;

    /// Work that ends when the sender is dropped, and has begun.
    async fn begun(work: &Work, size: Size) -> (mpsc::Sender<()>, Running<'_>) {
        let (end, ended) = mpsc::channel::<()>();
        let (begin, mut begun) = oneshot::channel();
        let mut running: Running<'_> = Box::pin(work.run(MANY, size, move || {
            let _ = begin.send(());
            let _ = ended.recv();
            Ok(())
        }));
        tokio::select! {
            _ = &mut running => panic!("it ended"),
            begun = &mut begun => begun.unwrap(),
        }
        (end, running)
    }

    #[tokio::test]
    async fn so_many_work_at_once_and_another_client_is_next() {
        let work = Work::default();
        for (size, n_at_once) in [(Size::Small, SMALL_AT_ONCE), (Size::Large, 1)] {
            let mut running = Vec::new();
            for _ in 0..n_at_once {
                running.push(begun(&work, size).await);
            }
            let waiting = |client| Box::pin(work.run(client, size, || Ok(())));
            let mut many: Vec<_> = (0..100).map(|_| waiting(MANY)).collect();
            let mut other = waiting(Client(2));
            assert!(many.iter_mut().chain([&mut other]).all(|one| one.now_or_never().is_none()));
            drop(running.into_iter().map(|(end, _)| end).collect::<Vec<_>>());
            assert!(many.remove(0).await.is_ok());
            assert!(other.await.is_ok());
        }
    }

    #[tokio::test]
    async fn small_requests_do_not_wait_for_large_ones() {
        let work = Work::default();
        let (end, large) = begun(&work, Size::Large).await;
        assert!(work.run(MANY, Size::Small, || Ok(())).await.is_ok());
        drop(end);
        assert!(large.await.is_ok());
    }

    #[tokio::test]
    async fn work_that_panics_fails_its_request_alone() {
        let work = Work::default();
        for size in [Size::Small, Size::Large] {
            assert_eq!(
                work.run::<()>(MANY, size, || panic!("as the test wants it")).await.err().unwrap().status(),
                500
            );
            assert_eq!(work.run(MANY, size, || Ok(7)).await.ok(), Some(7));
        }
    }
}
