//! The swarm's own thread, with a runtime for the driver and its sockets alone: a layer's messages wait for nothing else
//! that the hub serves, and cross no thread between a socket and the swarm.

use std::future::Future;
use std::io;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::driver::Event;
use super::socket;
use crate::swarm::ConnectionId;

/// Sockets that wait to be taken over.
const MAX_WAITING_SOCKETS: usize = 64;
/// How long sockets may take to say goodbye once the driver has ended.
const GOODBYE: Duration = Duration::from_secs(2);

/// A connection whose WebSocket handshake is done, taken off the runtime that accepted it.
pub(super) struct Opened {
    pub stream: TcpStream,
    /// What came after the handshake and was read with it.
    pub already_read: Bytes,
    pub address: String,
}

/// Starts the thread: `drive` on it until it ends or the sender this gives is dropped, and a task for each socket sent.
/// Then sockets send what they have left, and whoever told the driver to end learns of it.
pub(super) fn start<D>(drive: D, events: mpsc::WeakSender<Event>) -> io::Result<mpsc::Sender<Opened>>
where
    D: Future<Output = Option<oneshot::Sender<()>>> + Send + 'static,
{
    let (sender, opened) = mpsc::channel(MAX_WAITING_SOCKETS);
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new()
        .name("moex-swarm".to_owned())
        .spawn(move || runtime.block_on(live(drive, events, opened)))?;
    Ok(sender)
}

async fn live(
    drive: impl Future<Output = Option<oneshot::Sender<()>>>,
    events: mpsc::WeakSender<Event>,
    mut opened: mpsc::Receiver<Opened>,
) {
    let mut sockets = JoinSet::new();
    let take_over = async {
        let mut n = 0;
        loop {
            tokio::select! {
                socket = opened.recv() => {
                    let (Some(socket), Some(events)) = (socket, events.upgrade()) else { return };
                    n += 1;
                    sockets.spawn(socket::serve(ConnectionId(n), events, socket));
                }
                // A task that panicked told nobody: its session ends when it has been silent for too long.
                Some(_) = sockets.join_next() => {}
            }
        }
    };
    // Whatever ends it, the driver is dropped here, and with it every outbox.
    let told = tokio::select! {
        told = drive => told,
        () = take_over => None,
    };
    // Those that do not end in time are cut off with the set.
    let _ = timeout(GOODBYE, async { while sockets.join_next().await.is_some() {} }).await;
    if let Some(told) = told {
        // Whoever asked may have gone away meanwhile.
        let _ = told.send(());
    }
}
