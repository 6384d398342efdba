//! What the driver is told.

use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use bytes::Bytes;
use moex_swarm::{ComputeId, ConnectionId, EncodedLayer, HubResult, JobError, LayerResult, Lie};
use moex_worker::core::answer::ComputeError;
use tokio::sync::oneshot;

use super::outbox::Outbox;

/// Where a layer's result goes.
pub(super) type Reply = std_mpsc::SyncSender<Result<LayerResult, JobError>>;

/// What happens to the driver.
pub(super) enum Event {
    /// A WebSocket was opened from this address.
    Connected(ConnectionId, String, Outbox),
    /// A binary message came.
    Message(ConnectionId, Bytes),
    /// A text message came.
    Text(ConnectionId),
    /// A connection has ended.
    Disconnected(ConnectionId),
    /// A layer is to be computed; the engine asked for it at this time.
    Layer(EncodedLayer, Duration, Reply),
    /// The hub has computed what the swarm asked for.
    Computed(ComputeId, Result<HubResult, ComputeError>),
    /// What workers answered was found to be wrong before it was used.
    Caught(Vec<Lie>),
    /// Layers that were computed without the swarm wait to be counted.
    LocalLayers,
    /// Somebody wants to see a status of now.
    Publish,
    /// The driver is to end, and to drop this once that is complete.
    ShutDown(oneshot::Sender<()>),
    /// The driver is to wait until this sender is dropped, as if it were at work.
    #[cfg(test)]
    Hold(std_mpsc::Receiver<()>),
}
