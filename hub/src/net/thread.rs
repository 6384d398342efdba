//! The swarm's own thread, with a runtime for the driver and the sockets only. A layer's messages wait for nothing else
//! that the hub serves, and cross no thread between a socket and the swarm.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::thread;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::event::Event;
use super::socket;
use super::stream::Opened;
use moex_swarm::ConnectionId;

/// Maximum sockets waiting to be taken over.
const MAX_WAITING_SOCKETS: usize = 64;
/// How long sockets may take to close once the driver has ended.
const GOODBYE: Duration = Duration::from_secs(2);

/// Starts the thread. It runs `drive` and a task per socket, until `drive` ends or the returned sender is dropped. Then
/// the sockets send their remaining messages, and the sender that `drive` returned is notified.
pub(super) fn start<D>(drive: D, events: mpsc::WeakSender<Event>) -> io::Result<mpsc::Sender<Opened>>
where
    D: Future<Output = Option<oneshot::Sender<()>>> + Send + 'static,
{
    let (sender, opened) = mpsc::channel(MAX_WAITING_SOCKETS);
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("moex-swarm".to_owned()).spawn(move || {
        let shared = socket::Shared::default();
        let serve = move |id, events, opened| socket::serve(id, events, opened, shared.clone());
        runtime.block_on(live(drive, serve, events, opened));
    })?;
    Ok(sender)
}

async fn live<S: Future<Output = ()> + Send + 'static>(
    drive: impl Future<Output = Option<oneshot::Sender<()>>>,
    serve: impl Fn(ConnectionId, mpsc::Sender<Event>, Opened) -> S,
    events: mpsc::WeakSender<Event>,
    mut opened: mpsc::Receiver<Opened>,
) {
    let mut sockets = JoinSet::new();
    let take_over = async {
        let mut n = 0;
        let mut connections = HashMap::new();
        loop {
            tokio::select! {
                socket = opened.recv() => {
                    let (Some(socket), Some(events)) = (socket, events.upgrade()) else { return };
                    n += 1;
                    let task = sockets.spawn(serve(ConnectionId(n), events, socket));
                    connections.insert(task.id(), ConnectionId(n));
                }
                Some(ended) = sockets.join_next_with_id() => {
                    let task = ended.as_ref().map_or_else(tokio::task::JoinError::id, |(task, ())| *task);
                    let connection = connections.remove(&task);
                    // A task that returned has notified the driver; one that panicked has not.
                    if let (Err(error), Some(id), Some(events)) = (ended, connection, events.upgrade()) {
                        tracing::error!(connection = id.0, %error, "a worker's socket failed");
                        let _ = events.send(Event::Disconnected(id)).await;
                    }
                }
            }
        }
    };
    // The driver, and with it every outbox, is dropped here.
    let told = tokio::select! {
        told = drive => told,
        () = take_over => None,
    };
    // Tasks that do not end in time are aborted with the set.
    let _ = timeout(GOODBYE, async { while sockets.join_next().await.is_some() {} }).await;
    if let Some(told) = told {
        // Fails if the caller no longer waits.
        let _ = told.send(());
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use bytes::Bytes;
    use tokio::net::{TcpListener, TcpStream};

    use super::super::connection_limit::ConnectionLimit;
    use super::super::stream::Stream;
    use super::*;

    #[tokio::test]
    async fn the_driver_learns_at_once_of_a_socket_task_that_panicked() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let permit = ConnectionLimit::new(1).take(Ipv4Addr::LOCALHOST.into()).unwrap();
        let stream = Stream::open(stream, None, permit).await.unwrap().detach().unwrap();
        let (events, mut received) = mpsc::channel(4);
        let (sockets, opened) = mpsc::channel(4);
        let socket = Opened { stream, already_read: Bytes::new(), address: "here".to_owned() };
        sockets.send(socket).await.ok().unwrap();
        let drive = async {
            while let Some(event) = received.recv().await {
                if matches!(event, Event::Disconnected(ConnectionId(1))) {
                    return None;
                }
            }
            panic!("nobody said so");
        };
        let serve = |_, _, _| async { panic!("as if by mistake") };
        let lived = live(drive, serve, events.downgrade(), opened);
        timeout(Duration::from_secs(5), lived).await.expect("the driver is told");
    }
}
