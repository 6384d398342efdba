//! The bounded queue of messages from the driver to the task of a worker's socket. The driver never waits for room in it.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// Messages that wait for a worker to read them. A worker that lets more gather is closed.
const MAX_WAITING_MESSAGES: usize = 128;

/// The driver's end.
pub(super) struct Outbox {
    messages: mpsc::Sender<Outgoing>,
    kill: oneshot::Sender<()>,
    /// None once the worker has joined.
    admit: Option<oneshot::Sender<()>>,
}

/// The socket task's end.
pub(super) struct Inbox {
    /// What to send, in order.
    pub outgoing: mpsc::Receiver<Outgoing>,
    /// The connection is to end now.
    pub killed: oneshot::Receiver<()>,
    /// The worker has joined.
    pub admitted: oneshot::Receiver<()>,
}

/// What to send.
pub(super) enum Outgoing {
    Message(Bytes),
    /// The last: close with this code.
    Close(u16),
}

/// The worker does not read fast enough.
pub(super) struct Full;

impl Outbox {
    /// Both ends of one connection's.
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
            // A closed one is about to be reported as disconnected.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }

    /// Lets the worker, which has joined, say more than its first message.
    pub(super) fn admit(&mut self) {
        // It fails if the task has ended.
        let _ = self.admit.take().map(|admit| admit.send(()));
    }

    /// Closes after what is queued.
    pub(super) fn close(self, code: u16) {
        if self.messages.try_send(Outgoing::Close(code)).is_err() {
            self.kill();
        }
    }

    /// Ends the connection now.
    pub(super) fn kill(self) {
        // A task that has ended needs no killing.
        let _ = self.kill.send(());
    }
}
