//! A WebSocket to a hub: turns its callbacks into events, and removes them when dropped.

use js_sys::Function;
use moex_protocol::{SUBPROTOCOL, limits};
use wasm_bindgen::prelude::*;

use super::js;
use crate::core::{Connection, ConnectionError};
use crate::driver::Event;
use crate::inbox::Inbox;

/// A socket that is opening or open; closed when dropped.
pub(super) struct Socket {
    socket: js::WebSocket,
    _callbacks: [Closure<dyn FnMut(JsValue)>; 3],
}

impl Socket {
    /// Starts to connect. The events carry `connection`, so that those of an earlier socket can be told apart.
    pub(super) fn open(url: &str, connection: Connection, inbox: &Inbox<Event>) -> Result<Self, String> {
        let socket = js::WebSocket::new(url, SUBPROTOCOL).map_err(|error| js::words(&error))?;
        socket.set_binary_type("arraybuffer");
        let on_open = callback(inbox, connection, move |_| Event::Opened(connection));
        let on_message = callback(inbox, connection, move |event| message(connection, event.unchecked_ref()));
        let on_close = callback(inbox, connection, move |_| closed(connection));
        socket.set_onopen(Some(function(&on_open)));
        socket.set_onmessage(Some(function(&on_message)));
        socket.set_onclose(Some(function(&on_close)));
        Ok(Self { socket, _callbacks: [on_open, on_message, on_close] })
    }

    /// Sends one message; an error if the socket is not open or the hub has stopped reading.
    pub(super) fn send(&self, message: &[u8]) -> Result<(), String> {
        if self.socket.buffered_amount() > limits::MAX_OUTBOX_BYTES as f64 {
            return Err("the hub takes no messages".into());
        }
        self.socket.send(message).map_err(|error| js::words(&error))
    }

    /// Closes with a code of the protocol.
    pub(super) fn close(&self, code: u16) {
        // Browsers let scripts close with 1000 and 3000 to 4999 only.
        let code = if code == 1000 { code } else { 4000 + code % 1000 };
        drop(self.socket.close(code));
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.socket.set_onopen(None);
        self.socket.set_onmessage(None);
        self.socket.set_onclose(None);
        drop(self.socket.close(1000));
    }
}

/// A message as an event. One that is too large ends the connection before it is copied.
fn message(connection: Connection, event: &js::MessageEvent) -> Event {
    match js::bytes(&event.data()) {
        None => Event::Text(connection),
        Some(bytes) if bytes.length() as usize > limits::MAX_MESSAGE_BYTES => closed(connection),
        Some(bytes) => Event::Message(connection, bytes.to_vec().into()),
    }
}

/// A callback that puts an event into the inbox. A full inbox means that a hub ignores the input slots: its connection ends.
fn callback(
    inbox: &Inbox<Event>,
    connection: Connection,
    mut event: impl FnMut(&JsValue) -> Event + 'static,
) -> Closure<dyn FnMut(JsValue)> {
    let inbox = inbox.clone();
    Closure::new(move |value: JsValue| {
        let belongs = |waiting: &Event| matches!(waiting, Event::Message(of, _) if *of == connection);
        inbox.offer_or_end(event(&value), belongs, closed(connection));
    })
}

/// The browser gives no other reason.
fn closed(connection: Connection) -> Event {
    Event::Closed(connection, ConnectionError::Disconnected(String::new()))
}

fn function(closure: &Closure<dyn FnMut(JsValue)>) -> &Function {
    closure.as_ref().unchecked_ref()
}
