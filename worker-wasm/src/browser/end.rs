//! The browser's end of the driver: sockets and jobs whose callbacks fill an inbox, one alarm, and reports to the page.

use std::time::Duration;

use bytes::Bytes;

use super::clock::{self, Alarm};
use super::fetch::Fetcher;
use super::js;
use super::report::{Phase, Report};
use super::socket::Socket;
use crate::core::{Connection, ConnectionError, Ending, HubId, Status};
use crate::device::Device;
use crate::driver::{End, Event, Job};
use crate::inbox::Inbox;

/// See the [module's description](self).
pub(super) struct BrowserEnd {
    inbox: Inbox<Event>,
    alarm: Alarm,
    /// The URLs of the hubs' WebSockets.
    urls: Vec<String>,
    /// At most one to each hub.
    sockets: Vec<(Connection, Socket)>,
    /// A sentence about what the device cannot use.
    note: Option<String>,
    keeps_blocks: bool,
    n_threads: usize,
    shown: Option<Report>,
}

impl BrowserEnd {
    /// The end for hubs at these origins. The page is told of the first.
    pub(super) fn new(inbox: Inbox<Event>, hubs: &[String], device: &Device, keeps_blocks: bool) -> Self {
        let ringing = inbox.clone();
        Self {
            inbox,
            // A full inbox is drained soon, and the driver checks the time after draining it.
            alarm: Alarm::new(move || drop(ringing.offer(Event::Timer))),
            urls: hubs.iter().map(|hub| socket_url(hub)).collect(),
            sockets: Vec::new(),
            note: device.note().map(str::to_owned),
            keeps_blocks,
            n_threads: device.n_threads(),
            shown: None,
        }
    }

    fn forget(&mut self, connection: Connection) {
        self.sockets.retain(|(of, _)| *of != connection);
    }
}

impl End for BrowserEnd {
    type Fetcher = Fetcher;

    const SHOW_INTERVAL: Duration = Duration::from_millis(200);

    fn now(&self) -> Duration {
        clock::now()
    }

    fn connect(&mut self, connection: Connection) {
        self.sockets.retain(|(of, _)| of.hub != connection.hub);
        match Socket::open(&self.urls[connection.hub.0], connection, &self.inbox) {
            Ok(socket) => self.sockets.push((connection, socket)),
            Err(reason) => self.inbox.push(Event::Closed(connection, ConnectionError::Disconnected(reason))),
        }
    }

    fn send(&mut self, connection: Connection, message: Bytes) -> Result<(), String> {
        let socket = self.sockets.iter().find(|(of, _)| *of == connection);
        socket.map_or(Ok(()), |(_, socket)| socket.send(&message))
    }

    fn close(&mut self, connection: Connection, code: u16) {
        if let Some((_, socket)) = self.sockets.iter().find(|(of, _)| *of == connection) {
            socket.close(code);
        }
        self.forget(connection);
    }

    fn start(&mut self, job: Job<Fetcher>) {
        let inbox = self.inbox.clone();
        wasm_bindgen_futures::spawn_local(async move { inbox.push(Event::Done(job.run().await)) });
    }

    fn retrying(&mut self, _: HubId, _: &ConnectionError) {}

    fn ended(&mut self, _: HubId, _: &Ending, _: bool) {}

    fn show(&mut self, statuses: Vec<(Status, bool)>) -> bool {
        let Some((status, is_connected)) = statuses.into_iter().next() else { return false };
        let phase = if is_connected { Phase::Connected } else { Phase::Connecting };
        let report = Report {
            note: self.note.clone(),
            keeps_blocks: self.keeps_blocks,
            n_threads: self.n_threads,
            gpu_buffers: js::gpu_buffers_created(),
            status: Some(status),
            ..Report::new(phase)
        };
        let is_new = self.shown.as_ref() != Some(&report);
        if is_new {
            report.post();
            self.shown = Some(report);
        }
        is_new
    }

    async fn next(&mut self, deadline: Option<Duration>) -> Event {
        if let Some(deadline) = deadline {
            self.alarm.set(deadline);
        }
        let event = self.inbox.next().await;
        match &event {
            Event::Timer => self.alarm.rang(),
            Event::Closed(connection, _) => self.forget(*connection),
            _ => {}
        }
        event
    }

    /// Browsers send the rest of closed sockets by themselves.
    async fn finish(&mut self) {}
}

/// `ws://host/ws` for `http://host`, and `wss` for `https`.
fn socket_url(origin: &str) -> String {
    let host = origin.strip_prefix("http").unwrap_or(origin);
    format!("ws{host}/ws")
}
