//! What happened and is not handled yet: a bounded queue between the browser's callbacks and the driver's loop, on one thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Events that may wait. A hub that stays within the worker's input slots never comes near it.
pub(super) const MAX_EVENTS: usize = 1024;

/// The queue; clones are the same queue.
pub(super) struct Inbox<T>(Rc<RefCell<Queue<T>>>);

struct Queue<T> {
    events: VecDeque<T>,
    waker: Option<Waker>,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Self {
        Self(Rc::new(RefCell::new(Queue { events: VecDeque::new(), waker: None })))
    }

    /// Adds an event; gives it back if too many wait.
    pub(super) fn push(&self, event: T) -> Result<(), T> {
        let mut queue = self.0.borrow_mut();
        if queue.events.len() >= MAX_EVENTS {
            return Err(event);
        }
        queue.events.push_back(event);
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
        Ok(())
    }

    /// The oldest event, once there is one.
    pub(super) async fn next(&self) -> T {
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
