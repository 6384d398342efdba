//! `/ws`: one task a worker, between its WebSocket and the driver.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::upgrade::downcast;
use moex_protocol::{SUBPROTOCOL, limits};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::create_response;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role, WebSocketConfig};

use super::Hub;
use super::driver::Event;
use super::thread::Opened;
use crate::swarm::ConnectionId;

/// Messages that wait for a worker to read them. One that lets more gather is closed.
const MAX_WAITING_MESSAGES: usize = 128;
/// A connection's read buffer: half of a decode step's answer. It is zeroed before each look at the socket.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// How long one message may take to leave.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a closed connection is still read, so that what was sent before the close arrives.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// WebSocket code for a hub that goes away.
const GOING_AWAY: u16 = 1001;

/// The driver's end of what a worker is sent.
pub(super) struct Outbox {
    messages: mpsc::Sender<Outgoing>,
    kill: oneshot::Sender<()>,
}

enum Outgoing {
    Message(Bytes),
    Close(u16),
}

/// The worker does not read fast enough.
pub(super) struct Full;

impl Outbox {
    /// Queues a message.
    pub(super) fn send(&self, message: Bytes) -> Result<(), Full> {
        match self.messages.try_send(Outgoing::Message(message)) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(Full),
            // A closed one is about to be reported as disconnected.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
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

pub(super) fn router(hub: &Hub) -> Router {
    Router::new().route("/ws", any(upgrade)).with_state(hub.clone())
}

/// The handshake. What follows is on the swarm's thread.
async fn upgrade(State(hub): State<Hub>, mut request: Request) -> Response {
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
        if let Err(error) = hand_over(&hub, upgraded, address).await {
            tracing::warn!(%error, "a worker's socket could not be taken over");
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

/// Takes the socket out of HTTP and off this runtime.
async fn hand_over(hub: &Hub, upgraded: OnUpgrade, address: String) -> io::Result<()> {
    let no_tcp = |_| io::Error::other("it is no TCP stream");
    let parts = downcast::<TokioIo<TcpStream>>(upgraded.await.map_err(io::Error::other)?).map_err(no_tcp)?;
    let stream = parts.io.into_inner().into_std()?;
    let opened = Opened { stream, already_read: parts.read_buf, address };
    // A swarm that has ended closes the socket by dropping it.
    let _ = hub.sockets.send(opened).await;
    Ok(())
}

/// Between one worker and the driver, until either goes.
pub(super) async fn serve(id: ConnectionId, events: mpsc::Sender<Event>, opened: Opened) {
    let Opened { stream, already_read, address } = opened;
    let stream = match TcpStream::from_std(stream) {
        Ok(stream) => stream,
        Err(error) => return tracing::warn!(%error, address, "a worker's socket could not be taken over"),
    };
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_message_size(Some(limits::MAX_MESSAGE_BYTES))
        .max_frame_size(Some(limits::MAX_MESSAGE_BYTES));
    let read = already_read.to_vec();
    let socket = WebSocketStream::from_partially_read(stream, read, Role::Server, Some(config)).await;
    let (messages, mut outgoing) = mpsc::channel(MAX_WAITING_MESSAGES);
    let (kill, mut killed) = oneshot::channel();
    if events.send(Event::Connected(id, address, Outbox { messages, kill })).await.is_err() {
        return;
    }
    let (mut sink, mut stream) = socket.split();
    let read = async {
        while let Some(Ok(message)) = stream.next().await {
            let event = match message {
                Message::Binary(message) => Event::Message(id, message),
                Message::Text(_) => Event::Text(id),
                Message::Close(_) => break,
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
            };
            if events.send(event).await.is_err() {
                break;
            }
        }
    };
    let write = async {
        loop {
            let (message, is_last) = match outgoing.recv().await {
                Some(Outgoing::Message(message)) => (Message::Binary(message), false),
                Some(Outgoing::Close(code)) => (close_frame(code), true),
                None => (close_frame(GOING_AWAY), true),
            };
            match timeout(SEND_TIMEOUT, sink.send(message)).await {
                Ok(Ok(())) if !is_last => {}
                _ => break,
            }
        }
    };
    let must_linger = tokio::select! {
        () = read => false,
        () = write => true,
        Ok(()) = &mut killed => false,
    };
    // The driver learns it now and not after the wait below: what the worker was asked goes to others at once.
    // A driver that has ended needs to learn nothing.
    let _ = events.send(Event::Disconnected(id)).await;
    if must_linger {
        // Closing with unread bytes resets the connection, and the peer loses the ERROR that says why.
        let _ = timeout(CLOSE_TIMEOUT, async { while let Some(Ok(_)) = stream.next().await {} }).await;
    }
}

fn close_frame(code: u16) -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::from(code), reason: "".into() }))
}
