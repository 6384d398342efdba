//! The bounded queue of messages from the driver to a worker's socket task. The driver never waits for it.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// Maximum queued messages; a worker that reads too slowly to stay below is closed.
const MAX_WAITING_MESSAGES: usize = 128;

/// The driver's end.
pub(super) struct Outbox {
    messages: mpsc::Sender<Outgoing>,
    kill: oneshot::Sender<()>,
    /// Dropped once the worker has joined.
    admit: Option<oneshot::Sender<()>>,
}

/// The socket task's end.
pub(super) struct Inbox {
    /// Messages to send, in order.
    pub outgoing: mpsc::Receiver<Outgoing>,
    /// Signals that the connection must end now.
    pub killed: oneshot::Receiver<()>,
    /// Signals that the worker has joined.
    pub admitted: oneshot::Receiver<()>,
}

/// A message to send.
pub(super) enum Outgoing {
    Message(Bytes),
    /// Close with this code; nothing follows.
    Close(u16),
}

/// The queue is full: the worker reads too slowly.
pub(super) struct Full;

impl Outbox {
    /// Creates both ends for one connection.
    pub(super) fn new() -> (Self, Inbox) {
        let (messages, outgoing) = mpsc::channel(MAX_WAITING_MESSAGES);
        let (kill, killed) = oneshot::channel();
        let (admit, admitted) = oneshot::channel();
        (Self { messages, kill, admit: Some(admit) }, Inbox { outgoing, killed, admitted })
    }

    /// Queues a message.
    pub(super) fn send(&self, message: Bytes) -> Result<(), Full> {
        match self.messages.try_send(Outgoing::Message(message)) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(Full),
            // A closed queue is about to be reported as disconnected.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }

    /// Lets the worker send more than its first message, since it has joined.
    pub(super) fn admit(&mut self) {
        // Fails if the task has ended.
        let _ = self.admit.take().map(|admit| admit.send(()));
    }

    /// Closes the connection after the queued messages.
    pub(super) fn close(self, code: u16) {
        if self.messages.try_send(Outgoing::Close(code)).is_err() {
            self.kill();
        }
    }

    /// Ends the connection now.
    pub(super) fn kill(self) {
        // Fails if the task has already ended, which is fine.
        let _ = self.kill.send(());
    }
}
