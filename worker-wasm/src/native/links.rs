//! The sockets to the hubs: one task opens, reads, writes and closes them, and never waits for a single one.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Sink, Stream};
use moex_protocol::limits::MAX_OUTBOX_BYTES;
use tokio::time::{Sleep, sleep};
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, frame::coding::CloseCode};

use super::route::{Route, SOCKET_TIMEOUT, Socket};
use crate::core::{Connection, ConnectionError, HubId};
use crate::driver::Event;

/// The error for a hub that does not read its messages.
const NOT_READING: &str = "the hub does not read messages";

/// The sockets, at most one to each hub.
pub(super) struct Links {
    routes: Vec<Arc<Route>>,
    links: Vec<Link>,
    /// The socket to poll first next time, so that a busy hub does not starve the others.
    first: usize,
}

struct Link {
    connection: Connection,
    state: State,
}

enum State {
    Opening(Pin<Box<dyn Future<Output = Result<Socket, ConnectionError>> + Send>>),
    Open(Box<Open>),
}

/// A socket and its outgoing messages.
struct Open {
    socket: Socket,
    /// At most [`MAX_OUTBOX_BYTES`] and the last message.
    outbox: VecDeque<Message>,
    outbox_bytes: usize,
    /// Timeout that runs while data waits to be sent; restarted for each message.
    stuck: Option<Pin<Box<Sleep>>>,
    is_flushed: bool,
    /// Closed by this end: not read any more, and dropped once everything is sent.
    is_closing: bool,
}

impl Links {
    /// No links yet, for these routes.
    pub(super) fn new(routes: Vec<Arc<Route>>) -> Self {
        Self { routes, links: Vec::new(), first: 0 }
    }

    /// Number of hubs.
    pub(super) fn n_hubs(&self) -> usize {
        self.routes.len()
    }

    /// The address of a hub's WebSocket.
    pub(super) fn url(&self, hub: HubId) -> &str {
        self.routes[hub.0].url()
    }

    /// Starts connecting.
    pub(super) fn connect(&mut self, connection: Connection) {
        // An earlier closing connection has had its time.
        self.links.retain(|link| link.connection.hub != connection.hub);
        let route = self.routes[connection.hub.0].clone();
        let opening = Box::pin(async move { route.connect().await });
        self.links.push(Link { connection, state: State::Opening(opening) });
    }

    /// Queues a message; fails if too much is queued. Does nothing if the connection has ended.
    pub(super) fn send(&mut self, connection: Connection, message: Bytes) -> Result<(), String> {
        let Some(open) = self.open(connection) else { return Ok(()) };
        if open.outbox_bytes > MAX_OUTBOX_BYTES {
            return Err(NOT_READING.into());
        }
        open.push(Message::Binary(message));
        Ok(())
    }

    /// Closes with this code after the queued messages. Does nothing if already closed.
    pub(super) fn close(&mut self, connection: Connection, code: u16) {
        if let Some(open) = self.open(connection) {
            open.is_closing = true;
            open.push(Message::Close(Some(CloseFrame { code: CloseCode::from(code), reason: "".into() })));
        } else {
            let is_opening = |link: &Link| matches!(link.state, State::Opening(_));
            self.links.retain(|link| link.connection != connection || !is_opening(link));
        }
    }

    /// The next event: a connection opens or closes, or a message arrives. Also sends queued messages.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let n = self.links.len();
        self.first = self.first.wrapping_add(1);
        let mut event = Poll::Pending;
        let mut gone = None;
        for turn in 0..n {
            let index = (self.first.wrapping_add(turn)) % n;
            match self.links[index].poll(context) {
                Poll::Pending => {}
                Poll::Ready(Some(happened)) => {
                    if matches!(happened, Event::Closed(..)) {
                        gone = Some(index);
                    }
                    event = Poll::Ready(happened);
                    break;
                }
                Poll::Ready(None) => {
                    gone = Some(index);
                    // Polls the others at once.
                    context.waker().wake_by_ref();
                    break;
                }
            }
        }
        if let Some(index) = gone {
            self.links.swap_remove(index);
        }
        event
    }

    /// Sends as much as the sockets accept now. [`poll`](Self::poll) reports failures.
    pub(super) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for link in &mut self.links {
            if let State::Open(open) = &mut link.state {
                let _ = open.poll_send(context);
            }
        }
        Poll::Ready(())
    }

    /// Finishes closing sockets; ready when done. Drops everything else.
    pub(super) fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.links.retain_mut(|link| match &mut link.state {
            State::Open(open) if open.is_closing => open.poll_send(context).is_pending(),
            State::Open(_) | State::Opening(_) => false,
        });
        if self.links.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn open(&mut self, connection: Connection) -> Option<&mut Open> {
        let link = self.links.iter_mut().find(|link| link.connection == connection)?;
        match &mut link.state {
            State::Open(open) if !open.is_closing => Some(open),
            State::Open(_) | State::Opening(_) => None,
        }
    }
}

impl Link {
    /// The next event; `None` once this end's close is done.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let connection = self.connection;
        match &mut self.state {
            State::Opening(opening) => opening.as_mut().poll(context).map(|opened| match opened {
                Ok(socket) => {
                    self.state = State::Open(Box::new(Open::new(socket)));
                    Some(Event::Opened(connection))
                }
                Err(lost) => Some(Event::Closed(connection, lost)),
            }),
            State::Open(open) => {
                let sent = open.poll_send(context);
                if open.is_closing {
                    return sent.map(|_| None);
                }
                let closed = |reason| {
                    Poll::Ready(Some(Event::Closed(connection, ConnectionError::Disconnected(reason))))
                };
                if let Poll::Ready(Err(reason)) = sent {
                    return closed(reason);
                }
                loop {
                    match Pin::new(&mut open.socket).poll_next(context) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Some(Ok(Message::Binary(message)))) => {
                            return Poll::Ready(Some(Event::Message(connection, message)));
                        }
                        Poll::Ready(Some(Ok(Message::Text(_)))) => {
                            return Poll::Ready(Some(Event::Text(connection)));
                        }
                        Poll::Ready(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)))) => {}
                        Poll::Ready(Some(Ok(Message::Close(_))) | None) => {
                            return closed("the hub closed the connection".into());
                        }
                        Poll::Ready(Some(Err(error))) => return closed(error.to_string()),
                    }
                }
            }
        }
    }
}

impl Open {
    fn new(socket: Socket) -> Self {
        Self {
            socket,
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            stuck: None,
            is_flushed: true,
            is_closing: false,
        }
    }

    fn push(&mut self, message: Message) {
        self.outbox_bytes += message.len();
        self.outbox.push_back(message);
    }

    /// Ready when everything is sent, or sending failed.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), String>> {
        loop {
            match self.poll_socket(context) {
                Poll::Ready(Ok(true)) => self.stuck = None,
                Poll::Ready(Ok(false)) => {
                    self.stuck = None;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.to_string())),
                Poll::Pending => {
                    let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(SOCKET_TIMEOUT)));
                    return stuck.as_mut().poll(context).map(|()| Err(NOT_READING.into()));
                }
            }
        }
    }

    /// Whether a message was handed to the socket; otherwise everything has been sent.
    fn poll_socket(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Error>> {
        let mut socket = Pin::new(&mut self.socket);
        if !self.outbox.is_empty() {
            std::task::ready!(socket.as_mut().poll_ready(context))?;
            if let Some(message) = self.outbox.pop_front() {
                self.outbox_bytes -= message.len();
                self.is_flushed = false;
                socket.start_send(message)?;
            }
            return Poll::Ready(Ok(true));
        }
        if !self.is_flushed {
            std::task::ready!(socket.poll_flush(context))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(false))
    }
}
