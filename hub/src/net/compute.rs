//! The compute thread: the hub as last replica. Neither sockets nor the engine wait for it.

use std::sync::{Arc, mpsc as std_mpsc};
use std::thread;

use moex_protocol::Dispatch;
use tokio::sync::mpsc;

use super::event::Event;
use crate::shards::ShardStore;
use moex_swarm::{ComputeId, HubResult, MAX_JOBS};

/// Starts the thread. It ends when the sender it gives is dropped, or the driver is gone.
pub(super) fn start(
    store: Arc<ShardStore>,
    events: mpsc::Sender<Event>,
) -> std::io::Result<std_mpsc::SyncSender<(ComputeId, Dispatch)>> {
    // The swarm asks for one computation a job at a time, so that this is never full but for jobs that have ended.
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
