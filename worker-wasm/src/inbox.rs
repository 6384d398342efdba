//! A bounded queue of events between the browser's callbacks and the driver's loop, on one thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The most events that may wait. A hub that respects the worker's input slots causes far fewer.
const MAX_EVENTS: usize = 1024;
/// The part of a full inbox up to which a connection is not blamed for filling it.
const MAX_SHARE: usize = MAX_EVENTS / 4;

/// The queue; clones are the same queue.
pub(crate) struct Inbox<T>(Rc<RefCell<Queue<T>>>);

struct Queue<T> {
    events: VecDeque<T>,
    waker: Option<Waker>,
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> Self {
        Self(Rc::new(RefCell::new(Queue { events: VecDeque::new(), waker: None })))
    }

    /// Adds an event regardless of the bound. For rare events that must not be lost: the end of a task or a connection.
    pub(crate) fn push(&self, event: T) {
        let mut queue = self.0.borrow_mut();
        queue.events.push_back(event);
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
    }

    /// Adds an event; returns it if too many wait.
    pub(crate) fn offer(&self, event: T) -> Result<(), T> {
        if self.0.borrow().events.len() >= MAX_EVENTS {
            return Err(event);
        }
        self.push(event);
        Ok(())
    }

    /// Adds an event of a connection. If too many wait and many of them `belong` to the connection, adds its `end` in
    /// place of all of those: a stream of messages is useless with one missing.
    pub(crate) fn offer_or_end(&self, event: T, belongs: impl Fn(&T) -> bool, end: T) {
        let Err(event) = self.offer(event) else { return };
        let waiting = self.0.borrow().events.iter().filter(|waiting| belongs(waiting)).count();
        if waiting < MAX_SHARE {
            return self.push(event);
        }
        self.0.borrow_mut().events.retain(|waiting| !belongs(waiting));
        self.push(end);
    }

    /// The oldest event, once there is one.
    pub(crate) async fn next(&self) -> T {
        poll_fn(|context| {
            let mut queue = self.0.borrow_mut();
            match queue.events.pop_front() {
                Some(event) => Poll::Ready(event),
                None => {
                    queue.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl<T> Clone for Inbox<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll};

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Event {
        Message(u64, usize),
        Closed(u64),
        Done,
    }

    fn offer(inbox: &Inbox<Event>, connection: u64, n: usize) {
        let belongs = move |event: &Event| matches!(event, Event::Message(of, _) if *of == connection);
        inbox.offer_or_end(Event::Message(connection, n), belongs, Event::Closed(connection));
    }

    fn drain(inbox: &Inbox<Event>) -> Vec<Event> {
        let mut context = Context::from_waker(Waker::noop());
        let mut events = Vec::new();
        while let Poll::Ready(event) = pin!(inbox.next()).poll(&mut context) {
            events.push(event);
        }
        events
    }

    #[test]
    fn a_connection_that_floods_the_inbox_ends_and_nothing_else_is_lost() {
        let inbox = Inbox::new();
        inbox.push(Event::Done);
        (0..MAX_EVENTS - 1).for_each(|n| offer(&inbox, 1, n));
        assert_eq!(inbox.offer(Event::Done), Err(Event::Done));
        inbox.push(Event::Done);
        offer(&inbox, 1, MAX_EVENTS);
        assert_eq!(drain(&inbox), [Event::Done, Event::Done, Event::Closed(1)]);
        offer(&inbox, 2, 0);
        assert_eq!(drain(&inbox), [Event::Message(2, 0)], "the next connection has all the room");
    }

    #[test]
    fn a_connection_beside_one_that_floods_the_inbox_goes_on() {
        let inbox = Inbox::new();
        (0..MAX_EVENTS).for_each(|n| offer(&inbox, 1, n));
        offer(&inbox, 2, 0);
        offer(&inbox, 1, MAX_EVENTS);
        assert_eq!(drain(&inbox), [Event::Message(2, 0), Event::Closed(1)]);
    }
}
