//! Events that the driver handles.

use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use bytes::Bytes;
use moex_swarm::{ComputeId, ConnectionId, EncodedLayer, HubResult, JobError, LayerResult, Lie};
use moex_worker::core::answer::ComputeError;
use tokio::sync::oneshot;

use super::outbox::Outbox;

/// Channel for a layer's result.
pub(super) type Reply = std_mpsc::SyncSender<Result<LayerResult, JobError>>;

/// An event for the driver.
pub(super) enum Event {
    /// A WebSocket was opened from this address.
    Connected(ConnectionId, String, Outbox),
    /// A binary message arrived.
    Message(ConnectionId, Bytes),
    /// A text message arrived.
    Text(ConnectionId),
    /// A connection ended.
    Disconnected(ConnectionId),
    /// A layer to compute; the engine asked for it at this time.
    Layer(EncodedLayer, Duration, Reply),
    /// The hub's computation for the swarm is done.
    Computed(ComputeId, Result<HubResult, ComputeError>),
    /// Workers' answers were found to be wrong before they were used.
    Caught(Vec<Lie>),
    /// The invitation of this name was revoked.
    Revoked(String),
    /// Layers computed without the swarm need to be counted.
    LocalLayers,
    /// A caller asks for the current status.
    Publish,
    /// Shut down, and drop this once shutdown is complete.
    ShutDown(oneshot::Sender<()>),
    /// For tests: block until this sender is dropped.
    #[cfg(test)]
    Hold(std_mpsc::Receiver<()>),
}
