//! A queue in which clients take turns: the next turn is that of the client whose last one is the longest ago.
//!
//! A client waits for one turn of each other client at most, however many requests they send.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use moex_engine::Client;
use tokio::sync::oneshot;

use super::error::ApiError;

/// Most requests that wait in a queue. The last quarter of the places is for clients with less than a quarter of them.
pub(super) const MAX_WAITING: usize = 256;

/// See the [module's description](self). Clones are the same queue.
#[derive(Clone, Debug)]
pub(super) struct Queue(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Turns that may begin at once.
    free: usize,
    /// Clients with requests that wait, the next first.
    clients: VecDeque<(Client, VecDeque<oneshot::Sender<Turn>>)>,
}

/// A turn. It ends when this is dropped, and the next begins.
#[derive(Debug)]
pub(super) struct Turn {
    /// None once it is over.
    queue: Option<Queue>,
}

/// A request that waits; it gives up its place when it is dropped.
struct Waiting {
    queue: Queue,
    client: Client,
    /// None once it is dropped.
    turn: Option<oneshot::Receiver<Turn>>,
}

impl Queue {
    /// A queue with so many turns at the same time.
    pub(super) fn new(n_at_once: usize) -> Self {
        Self(Arc::new(Mutex::new(State { free: n_at_once, clients: VecDeque::new() })))
    }

    /// Waits for a turn; fails if too many wait already.
    pub(super) async fn turn(&self, client: Client) -> Result<Turn, ApiError> {
        let mut waiting = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                return Ok(Turn { queue: Some(self.clone()) });
            }
            let turn = state.wait(client).ok_or_else(ApiError::queue_full)?;
            Waiting { queue: self.clone(), client, turn: Some(turn) }
        };
        let Some(turn) = &mut waiting.turn else { return Err(ApiError::queue_full()) };
        // A sender is only dropped together with its receiver.
        turn.await.map_err(|_| ApiError::queue_full())
    }

    /// Gives the place of a turn that is over to the next request that still waits.
    fn pass_on(&self) {
        loop {
            let next = {
                let mut state = self.state();
                let next = state.next();
                state.free += usize::from(next.is_none());
                next
            };
            let Some(next) = next else { return };
            match next.send(Turn { queue: Some(self.clone()) }) {
                Ok(()) => return,
                // The request is gone: its turn is another's.
                Err(mut turn) => turn.queue = None,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wait(&mut self, client: Client) -> Option<oneshot::Receiver<Turn>> {
        let n_waiting: usize = self.clients.iter().map(|(_, requests)| requests.len()).sum();
        let at = self.clients.iter().position(|(other, _)| *other == client);
        let n_own = at.map_or(0, |at| self.clients[at].1.len());
        let most = if n_own < MAX_WAITING / 4 { MAX_WAITING } else { MAX_WAITING / 4 * 3 };
        if n_waiting >= most {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        match at {
            Some(at) => self.clients[at].1.push_back(sender),
            None => self.clients.push_back((client, [sender].into())),
        }
        Some(receiver)
    }

    /// The oldest request of the first client, which then comes last.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let (client, mut requests) = self.clients.pop_front()?;
        let next = requests.pop_front();
        if !requests.is_empty() {
            self.clients.push_back((client, requests));
        }
        next
    }

    /// Forgets a client's requests that are gone.
    fn tidy(&mut self, client: Client) {
        if let Some((_, requests)) = self.clients.iter_mut().find(|(other, _)| *other == client) {
            requests.retain(|request| !request.is_closed());
        }
        self.clients.retain(|(_, requests)| !requests.is_empty());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.pass_on();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // A turn that has come in the meantime is in it, and passed on.
        drop(self.turn.take());
        self.queue.state().tidy(self.client);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures_util::FutureExt;

    use super::*;

    type Waiting = Pin<Box<dyn Future<Output = Result<Turn, ApiError>>>>;

    /// A request that waits, and whose.
    fn waits(queue: &Queue, client: u128) -> (u128, Waiting) {
        let queue = queue.clone();
        let mut waiting: Waiting = Box::pin(async move { queue.turn(Client(client)).await });
        assert!((&mut waiting).now_or_never().is_none());
        (client, waiting)
    }

    /// Ends turns, one after another, and tells whose were the next.
    fn order(mut turn: Turn, mut waiting: Vec<(u128, Waiting)>) -> Vec<u128> {
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(turn);
            let ready = |(_, waiting): &mut (u128, Waiting)| waiting.now_or_never();
            let (at, next) =
                waiting.iter_mut().enumerate().find_map(|(at, one)| Some((at, ready(one)?))).unwrap();
            order.push(waiting.remove(at).0);
            turn = next.ok().unwrap();
        }
        order
    }

    #[tokio::test]
    async fn clients_take_turns_however_many_requests_each_has() {
        let queue = Queue::new(1);
        let turn = queue.turn(Client(1)).await.ok().unwrap();
        let waiting = [1, 1, 1, 1, 2, 3, 2].map(|client| waits(&queue, client));
        assert_eq!(order(turn, waiting.into()), [1, 2, 3, 1, 2, 1, 1]);
        assert!(queue.turn(Client(9)).now_or_never().is_some(), "all is free again");
    }

    #[tokio::test]
    async fn who_gives_up_loses_its_place_and_nobody_elses() {
        let queue = Queue::new(1);
        let turn = queue.turn(Client(1)).await.ok().unwrap();
        let mut waiting = Vec::from([1, 2, 3].map(|client| waits(&queue, client)));
        drop(waiting.remove(0));
        drop(turn);
        // The turn is that of the second by now, which gives up, too.
        drop(waiting.remove(0));
        let (_, last) = waiting.remove(0);
        let turn = last.now_or_never().unwrap().ok().unwrap();
        drop(turn);
        assert!(queue.turn(Client(9)).now_or_never().is_some());
    }

    #[tokio::test]
    async fn one_client_leaves_places_for_others() {
        let queue = Queue::new(1);
        let _turn = queue.turn(Client(1)).await.ok().unwrap();
        let _own: Vec<_> = (0..MAX_WAITING / 4 * 3).map(|_| waits(&queue, 1)).collect();
        assert!(queue.turn(Client(1)).await.is_err(), "the rest is for others");
        let _others: Vec<_> = (0..MAX_WAITING as u128 / 4).map(|n| waits(&queue, 2 + n)).collect();
        assert!(queue.turn(Client(9)).await.is_err(), "the queue is full");
    }
}
