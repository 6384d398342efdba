//! The compute thread: computes experts on the hub as the last replica. Neither sockets nor the engine wait for it.

use std::sync::{Arc, mpsc as std_mpsc};
use std::thread;

use moex_protocol::Dispatch;
use tokio::sync::mpsc;

use super::event::Event;
use crate::shards::ShardStore;
use moex_swarm::{ComputeId, HubResult, MAX_JOBS};

/// Starts the thread. It ends when the returned sender or the driver is dropped.
pub(super) fn start(
    store: Arc<ShardStore>,
    events: mpsc::Sender<Event>,
) -> std::io::Result<std_mpsc::SyncSender<(ComputeId, Dispatch)>> {
    // The swarm requests one computation per job at a time, so only ended jobs can fill this queue.
    let (sender, receiver) = std_mpsc::sync_channel::<(ComputeId, Dispatch)>(2 * MAX_JOBS);
    thread::Builder::new().name("moex-hub-compute".to_owned()).spawn(move || {
        for (id, dispatch) in receiver {
            let answer = store.answer(&dispatch).map(HubResult::new);
            if events.blocking_send(Event::Computed(id, answer)).is_err() {
                return;
            }
        }
    })?;
    Ok(sender)
}
