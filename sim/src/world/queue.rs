//! The event queue, ordered by time, then by insertion.

use std::{cmp::Ordering, collections::BinaryHeap, time::Duration};

/// Events with their times.
#[derive(Debug)]
pub(super) struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    entered: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Duration,
    number: u64,
    event: E,
}

impl<E> EventQueue<E> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), entered: 0 }
    }

    /// Adds an event.
    pub(super) fn push(&mut self, at: Duration, event: E) {
        self.entered += 1;
        self.heap.push(Entry { at, number: self.entered, event });
    }

    /// When the next event happens.
    pub(super) fn next_at(&self) -> Option<Duration> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Takes the next event.
    pub(super) fn pop(&mut self) -> Option<E> {
        self.heap.pop().map(|entry| entry.event)
    }
}

impl<E> Ord for Entry<E> {
    /// The earliest event is the greatest, since the heap returns the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_instant_keeps_the_order_of_entry() {
        let mut queue = EventQueue::new();
        for (millis, name) in [(2, 'c'), (1, 'a'), (2, 'd'), (1, 'b')] {
            queue.push(Duration::from_millis(millis), name);
        }
        assert_eq!(queue.next_at(), Some(Duration::from_millis(1)));
        assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<String>(), "abcd");
    }
}
