//! `/ws`: one task a worker, between its WebSocket and the driver.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use moex_protocol::{SUBPROTOCOL, limits};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::Hub;
use super::driver::Event;
use crate::swarm::ConnectionId;

/// Messages that wait for a worker to read them. One that lets more gather is closed.
const MAX_WAITING_MESSAGES: usize = 128;
/// A connection's read buffer: a layer's rows in one read.
const READ_BUFFER_BYTES: usize = 64 << 10;
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

async fn upgrade(State(hub): State<Hub>, socket: WebSocketUpgrade, request: Request) -> Response {
    let socket = socket
        .protocols([SUBPROTOCOL])
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_message_size(limits::MAX_MESSAGE_BYTES)
        .max_frame_size(limits::MAX_MESSAGE_BYTES);
    if socket.selected_protocol().is_none() {
        let message = format!("this WebSocket speaks {SUBPROTOCOL}: ask for that subprotocol");
        return (StatusCode::BAD_REQUEST, message).into_response();
    }
    let address = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.to_string());
    socket.on_upgrade(move |socket| serve(hub, socket, address.unwrap_or_else(|| "unknown".to_owned())))
}

async fn serve(hub: Hub, socket: WebSocket, address: String) {
    let id = ConnectionId(hub.connections.fetch_add(1, Ordering::Relaxed));
    let (messages, mut outgoing) = mpsc::channel(MAX_WAITING_MESSAGES);
    let (kill, mut killed) = oneshot::channel();
    if hub.events.send(Event::Connected(id, address, Outbox { messages, kill })).await.is_err() {
        return;
    }
    let (mut sink, mut stream) = socket.split();
    let read = async {
        while let Some(Ok(message)) = stream.next().await {
            let event = match message {
                Message::Binary(message) => Event::Message(id, message),
                Message::Text(_) => Event::Text(id),
                Message::Close(_) => break,
                Message::Ping(_) | Message::Pong(_) => continue,
            };
            if hub.events.send(event).await.is_err() {
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
    let _ = hub.events.send(Event::Disconnected(id)).await;
    if must_linger {
        // Closing with unread bytes resets the connection, and the peer loses the ERROR that says why.
        let _ = timeout(CLOSE_TIMEOUT, async { while let Some(Ok(_)) = stream.next().await {} }).await;
    }
}

fn close_frame(code: u16) -> Message {
    Message::Close(Some(CloseFrame { code, reason: "".into() }))
}
