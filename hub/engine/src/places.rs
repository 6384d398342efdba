//! How many requests an engine takes, in all and of one client.
//!
//! The last quarter of the places is for clients that hold less than a quarter: nobody fills the queue alone.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::request::{Client, Event, Listener, Sink};

/// See the [module's description](self).
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    taken: Mutex<HashMap<Client, usize>>,
}

/// A listener that keeps its request's place until it is dropped.
struct Placed {
    sink: Sink,
    places: Arc<Places>,
    client: Client,
}

impl Places {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::default() })
    }

    /// Takes a place, which `sink` then keeps; none if there is no place for this client.
    pub(super) fn take(self: &Arc<Self>, client: Client, sink: Sink) -> Option<Sink> {
        let mut taken = self.taken();
        let (all, own) = (taken.values().sum::<usize>(), taken.get(&client).copied().unwrap_or(0));
        let is_last_quarter = 4 * all >= 3 * self.max;
        if all >= self.max || (is_last_quarter && 4 * own >= self.max) {
            return None;
        }
        taken.insert(client, own + 1);
        Some(Box::new(Placed { sink, places: self.clone(), client }))
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<Client, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for Placed {
    fn hear(&mut self, event: Event) -> ControlFlow<()> {
        self.sink.hear(event)
    }

    fn forgets(&mut self) -> bool {
        self.sink.forgets()
    }

    fn n_unread(&self) -> Option<usize> {
        self.sink.n_unread()
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(own) = taken.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_fills_the_queue_alone() {
        let places = Places::new(16);
        let sink = || -> Sink { Box::new(|_| ControlFlow::Continue(())) };
        let mut of_one: Vec<_> = (0..20).map_while(|_| places.take(Client(1), sink())).collect();
        assert_eq!(of_one.len(), 12);
        let of_another: Vec<_> = (0..20).map_while(|_| places.take(Client(2), sink())).collect();
        assert_eq!(of_another.len(), 4);
        assert!(places.take(Client(3), sink()).is_none(), "all are taken");
        drop(of_one.pop());
        assert!(places.take(Client(1), sink()).is_none() && places.take(Client(3), sink()).is_some());
        drop((of_one, of_another));
        assert!(places.taken().is_empty());
    }
}
