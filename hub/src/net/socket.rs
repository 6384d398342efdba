//! `/ws`: one task per worker carries messages between its WebSocket and the driver.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures_util::{Sink, SinkExt, StreamExt};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use moex_protocol::{SUBPROTOCOL, limits};
use tokio::io::AsyncReadExt;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::handshake::server::create_response;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role, WebSocketConfig};

use super::asked::Asked;
use super::event::Event;
use super::outbox::{Inbox, Outbox, Outgoing};
use super::stream::{Opened, Stream};
use crate::pace::Pace;
use moex_swarm::ConnectionId;

/// A connection's read buffer: a whole answer of a decode step, with its products. It is zeroed before each read.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// How many connections have one of that size: 16 MiB in all, which thousands of strangers do not multiply.
const MAX_READ_BUFFERS: usize = 256;
/// The read buffer of those beyond.
const SMALL_READ_BUFFER_BYTES: usize = 16 << 10;
/// How long sending one message may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a closed connection is still read, so that the peer receives what was sent before the close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum bytes from a peer before it has joined: its JOIN, a frame's header, and a ping or two.
const MAX_STRANGER_BYTES: usize = limits::MAX_JOIN_MESSAGE_BYTES + 1024;
/// Bytes a second that are read of all peers together that have not joined, beyond what comes first: a thousand JOINs. They are
/// read on the swarm's thread, which layers need.
const STRANGERS_BYTES_PER_SECOND: f64 = 2e6;
/// Bytes of strangers that are read at once after a pause: the longest JOIN of one.
const STRANGERS_BURST_BYTES: usize = 2 * MAX_STRANGER_BYTES;
/// Maximum pings and pongs of one connection in [`PING_WINDOW`].
const MAX_PINGS: u32 = 32;
/// Window over which pings are counted.
const PING_WINDOW: Duration = Duration::from_secs(10);

/// `/ws`: sends each socket to `sockets` after the handshake.
pub(super) fn router(sockets: mpsc::Sender<Opened>) -> Router {
    Router::new().route("/ws", any(upgrade)).with_state(sockets)
}

/// The handshake. Everything after it runs on the swarm's thread.
async fn upgrade(State(sockets): State<mpsc::Sender<Opened>>, mut request: Request) -> Response {
    let upgraded = hyper::upgrade::on(&mut request);
    let address = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.to_string());
    let address = address.unwrap_or_else(|| "unknown".to_owned());
    let request = request.map(|_| ());
    let accepted = match create_response(&request) {
        Ok(accepted) => accepted,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("not a WebSocket: {error}")).into_response(),
    };
    if !is_asked_for(request.headers()) {
        let message = format!("this WebSocket speaks {SUBPROTOCOL}: ask for that subprotocol");
        return (StatusCode::BAD_REQUEST, message).into_response();
    }
    tokio::spawn(async move {
        if let Err(error) = hand_over(&sockets, upgraded, address).await {
            tracing::warn!(%error, "handing over a worker's socket failed");
        }
    });
    let mut response = accepted.map(|()| Body::empty());
    response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    response
}

fn is_asked_for(headers: &HeaderMap) -> bool {
    let asked = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    asked
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|p| p.trim() == SUBPROTOCOL)
}

/// Detaches the socket from HTTP and from this runtime.
async fn hand_over(sockets: &mpsc::Sender<Opened>, upgraded: OnUpgrade, address: String) -> io::Result<()> {
    let upgraded = upgraded.await.map_err(io::Error::other)?;
    let other = |_| io::Error::other("the connection was not accepted by this hub's accept loop");
    let parts = upgraded.downcast::<TokioIo<Stream>>().map_err(other)?;
    let stream = parts.io.into_inner().detach()?;
    let opened = Opened { stream, already_read: parts.read_buf, address };
    // If the swarm has ended, the socket is dropped and so closed.
    let _ = sockets.send(opened).await;
    Ok(())
}

/// What all connections of a swarm share.
#[derive(Clone)]
pub(super) struct Shared {
    /// The pace of peers that have not joined.
    strangers: Arc<Pace>,
    read_buffers: Arc<Semaphore>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            strangers: Arc::new(Pace::new(STRANGERS_BYTES_PER_SECOND, STRANGERS_BURST_BYTES)),
            read_buffers: Arc::new(Semaphore::new(MAX_READ_BUFFERS)),
        }
    }
}

/// Carries messages between one worker and the driver until either ends.
pub(super) async fn serve(id: ConnectionId, events: mpsc::Sender<Event>, opened: Opened, shared: Shared) {
    let Shared { strangers, read_buffers } = shared;
    let Opened { stream, already_read, address } = opened;
    let mut stream = match stream.attach() {
        Ok(stream) => stream,
        Err(error) => return tracing::warn!(%error, address, "taking over a worker's socket failed"),
    };
    stream.allow(MAX_STRANGER_BYTES.saturating_sub(already_read.len()), strangers);
    let read_buffer = read_buffers.try_acquire();
    let read_buffer_bytes = if read_buffer.is_ok() { READ_BUFFER_BYTES } else { SMALL_READ_BUFFER_BYTES };
    let config = WebSocketConfig::default()
        .read_buffer_size(read_buffer_bytes)
        .max_message_size(Some(limits::MAX_MESSAGE_BYTES))
        .max_frame_size(Some(limits::MAX_MESSAGE_BYTES));
    let read = already_read.to_vec();
    let mut socket = WebSocketStream::from_partially_read(stream, read, Role::Server, Some(config)).await;
    let (outbox, Inbox { mut outgoing, mut killed, admitted }) = Outbox::new();
    if events.send(Event::Connected(id, address, outbox)).await.is_err() {
        return;
    }
    let mut pings = Pings::default();
    let talk = async {
        match greet(id, &events, &mut socket, &mut outgoing, admitted, &mut pings).await {
            Some(end) => end,
            None => {
                socket.get_mut().trust();
                carry(id, &events, &mut socket, &mut outgoing, &mut pings).await
            }
        }
    };
    let end = tokio::select! {
        end = talk => end,
        Ok(()) = &mut killed => End::Lost,
    };
    // The driver is notified before the wait below, so that the worker's requests go to others at once. It is no error
    // if the driver has ended.
    let _ = events.send(Event::Disconnected(id)).await;
    // Closing with unread bytes resets the connection, and the peer would lose the ERROR with the reason.
    let _ = match end {
        End::Said => timeout(CLOSE_TIMEOUT, async { while let Some(Ok(_)) = socket.next().await {} }).await,
        End::Flooded => timeout(CLOSE_TIMEOUT, discard(socket.get_mut())).await,
        End::Lost => Ok(()),
    };
}

/// Reads to the end, whatever it is: thousands of pings are not worth being taken apart.
async fn discard(stream: &mut Stream) {
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).await.is_ok_and(|n_bytes| n_bytes > 0) {}
}

type Socket = WebSocketStream<Stream>;

/// How a connection ends.
enum End {
    /// A close frame was sent.
    Said,
    /// One was sent to a peer that sends more than it may.
    Flooded,
    /// The peer cannot be reached.
    Lost,
}

/// Reads one message of a peer that has not joined, and waits until the swarm accepts or refuses it. None if it has
/// joined.
async fn greet(
    id: ConnectionId,
    events: &mpsc::Sender<Event>,
    socket: &mut Socket,
    outgoing: &mut mpsc::Receiver<Outgoing>,
    mut admitted: oneshot::Receiver<()>,
    pings: &mut Pings,
) -> Option<End> {
    let permit = socket.get_ref().permit().clone();
    let (mut has_spoken, mut is_undecided) = (false, true);
    loop {
        tokio::select! {
            verdict = &mut admitted, if is_undecided => match verdict {
                Ok(()) => return None,
                // The swarm's answer is on its way.
                Err(_) => is_undecided = false,
            },
            () = permit.taken_away() => return Some(End::Lost),
            next = outgoing.recv() => if let Some(end) = send(socket, next).await {
                return Some(end);
            },
            message = socket.next(), if !has_spoken => match heard(id, message, pings) {
                Heard::Event(event) => {
                    has_spoken = true;
                    if events.send(event).await.is_err() {
                        return Some(End::Lost);
                    }
                }
                Heard::Nothing => {}
                Heard::TooMuch => return Some(close_flooded(socket, CloseCode::Policy).await),
                Heard::TooLong => return Some(close_flooded(socket, CloseCode::Size).await),
                Heard::End => return Some(End::Lost),
            },
        }
    }
}

/// Carries messages in both directions.
async fn carry(
    id: ConnectionId,
    events: &mpsc::Sender<Event>,
    socket: &mut Socket,
    outgoing: &mut mpsc::Receiver<Outgoing>,
    pings: &mut Pings,
) -> End {
    let (mut sink, mut stream) = socket.split();
    let asked = Asked::default();
    let read = async {
        loop {
            match heard(id, stream.next().await, pings) {
                Heard::Event(event) => {
                    let n_unasked = match &event {
                        Event::Message(_, message) => asked.unasked_bytes(message),
                        _ => 0,
                    };
                    if events.send(event).await.is_err() {
                        return None;
                    }
                    asked.rest(n_unasked).await;
                }
                Heard::Nothing => {}
                Heard::TooMuch => return Some(CloseCode::Policy),
                Heard::TooLong | Heard::End => return None,
            }
        }
    };
    let write = async {
        loop {
            let next = outgoing.recv().await;
            asked.has_sent();
            if let Some(end) = send(&mut sink, next).await {
                return end;
            }
        }
    };
    let code = tokio::select! {
        code = read => code,
        end = write => return end,
    };
    match code {
        Some(code) => close_flooded(&mut sink, code).await,
        None => End::Lost,
    }
}

/// Sends the driver's next message. Returns how the connection ends if it was the last, or could not be sent.
async fn send<S>(sink: &mut S, next: Option<Outgoing>) -> Option<End>
where
    S: Sink<Message> + Unpin,
{
    let (message, is_last) = match next {
        Some(Outgoing::Message(message)) => (Message::Binary(message), false),
        Some(Outgoing::Close(code)) => (close_frame(CloseCode::from(code)), true),
        None => (close_frame(CloseCode::Away), true),
    };
    match timeout(SEND_TIMEOUT, sink.send(message)).await {
        Ok(Ok(())) if !is_last => None,
        _ => Some(End::Said),
    }
}

/// Closes the connection of a peer that sends more than it may.
async fn close_flooded<S>(sink: &mut S, code: CloseCode) -> End
where
    S: Sink<Message> + Unpin,
{
    // A failure is ignored: a peer that does not read is gone too.
    let _ = timeout(CLOSE_TIMEOUT, sink.send(close_frame(code))).await;
    End::Flooded
}

/// What a peer sent.
enum Heard {
    Event(Event),
    /// A ping, which is answered automatically, or a pong.
    Nothing,
    /// Too many pings.
    TooMuch,
    /// More bytes than allowed.
    TooLong,
    End,
}

fn heard(id: ConnectionId, message: Option<Result<Message, tungstenite::Error>>, pings: &mut Pings) -> Heard {
    match message {
        Some(Ok(Message::Binary(message))) => Heard::Event(Event::Message(id, message)),
        Some(Ok(Message::Text(_))) => Heard::Event(Event::Text(id)),
        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) if pings.count() => Heard::Nothing,
        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Heard::TooMuch,
        Some(Err(tungstenite::Error::Io(error))) if error.kind() == io::ErrorKind::FileTooLarge => {
            Heard::TooLong
        }
        Some(Ok(Message::Close(_)) | Err(_)) | None => Heard::End,
    }
}

/// Counts pings and pongs, which only cost the swarm's thread time.
#[derive(Default)]
struct Pings {
    window: Option<Instant>,
    n: u32,
}

impl Pings {
    /// Counts one; returns false if it is too many.
    fn count(&mut self) -> bool {
        let now = Instant::now();
        if self.window.is_none_or(|begun| now.duration_since(begun) >= PING_WINDOW) {
            (self.window, self.n) = (Some(now), 0);
        }
        self.n += 1;
        self.n <= MAX_PINGS
    }
}

fn close_frame(code: CloseCode) -> Message {
    Message::Close(Some(CloseFrame { code, reason: "".into() }))
}
