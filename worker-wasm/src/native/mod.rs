//! The worker as a process: tokio, WebSockets and an HTTP client around [`Worker`](crate::core::Worker).
//!
//! Call [`run`]. Computing and hashing run on blocking threads, so that the sockets always respond.

mod busy;
mod clock;
mod crypto;
mod end;
mod fetch;
mod hubs;
mod join_url;
mod links;
mod memory;
mod route;
mod store;
mod timing;
mod tls;

use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use moex_protocol::{WorkerKey, WorkerKind};
use tokio::sync::watch;

pub use self::busy::{BusyPoll, poll_again};
use self::clock::Clock;
pub use self::crypto::install_crypto;
use self::end::NativeEnd;
use self::hubs::Hub;
pub use self::join_url::JoinUrl;
use self::links::Links;
pub use self::memory::Memory;
use self::store::BlockStore;
use self::timing::{Point, Timing};
pub use self::tls::{Fingerprint, Trust, client_tls};
use crate::core::{CoreConfig, Ending, HubConfig, Status};
use crate::device::{Device, DeviceChoice, Identity, Threads};
use crate::driver::{Driver, Shared};

/// Input slots of a native worker: one computing, the rest being received.
pub const INPUT_SLOTS: u8 = 4;

/// A hub to join.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// The URL that the hub prints: `http://HOST:PORT/join#TOKEN`, or `https` with the authority's fingerprint after
    /// the token.
    pub join_url: String,
    /// What this hub's expert weights may take.
    pub memory: Memory,
}

/// Options of a native worker.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The hubs to join, at least one.
    pub hubs: Vec<HubOptions>,
    /// Bytes that the system has free; of these, a worker on no card with memory of its own offers a part. None if that is unknown.
    pub free_bytes: Option<u64>,
    /// A PEM file with the certificate authority, for hubs whose URL has no fingerprint.
    pub ca: Option<PathBuf>,
    /// The device to compute on.
    pub device: DeviceChoice,
    /// A folder that keeps blocks and the worker's key between runs.
    pub store: Option<PathBuf>,
    /// The worker's name, given by its owner; empty if none.
    pub name: String,
    /// The worker's secret; by default from the store, or random.
    pub key: Option<WorkerKey>,
    /// How long to retry a hub that does not answer.
    pub patience: Duration,
    /// Where to publish the status of each hub.
    pub status: Option<watch::Sender<Vec<Status>>>,
    /// Whether to poll for the next message before sleeping.
    pub busy_poll: BusyPoll,
}

/// Why a worker ended, other than by being told to. Each is one sentence for its user.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A join URL is invalid, or occurs twice.
    #[error("{0}")]
    JoinUrl(String),
    /// The trusted certificate authority cannot be loaded.
    #[error("{0}")]
    Tls(String),
    /// The store's folder cannot be used.
    #[error("The store {} cannot be used: {source}.", folder.display())]
    Store {
        /// The folder, as given.
        folder: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The device is missing, computes wrong results, or does not support the hub's model.
    #[error("{0}")]
    Device(String),
    /// No hub answered within the allowed time.
    #[error("No hub answers at {url}: {reason}.")]
    NoHub {
        /// The WebSocket's address.
        url: String,
        /// The last failure.
        reason: String,
    },
    /// The system gives no random bytes for a key.
    #[error("The system gives no random bytes: {0}.")]
    Random(String),
    /// The hub refused the worker permanently, or the worker cannot serve its model.
    #[error("{0}")]
    Stopped(String),
}

/// Joins the hubs and serves each until it refuses the worker or `shutdown` resolves; reconnects whenever a hub
/// disconnects. Hubs do not affect each other.
///
/// # Errors
/// [`WorkerError`]: a permanent error of one of the hubs, when none is left.
pub async fn run(options: WorkerOptions, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
    install_crypto();
    let urls = hubs::urls(&options)?;
    let store = match &options.store {
        Some(folder) => Some(BlockStore::open(folder).map_err(|source| store_error(folder, source))?),
        None => None,
    };
    let key = match (options.key, &options.store, &store) {
        (Some(key), ..) => key,
        (None, Some(folder), Some(store)) => {
            store.worker_key(fresh_key()?).map_err(|source| store_error(folder, source))?
        }
        _ => fresh_key()?,
    };
    let mut hubs = hubs::open(&options, urls, key.id(), store.as_ref())?;
    let mut shutdown = pin!(shutdown);
    let clock = Clock::start();
    // Before the device test, which takes time.
    tokio::select! {
        admitted = hubs::admitted(hubs) => hubs = admitted?,
        () = &mut shutdown => return Ok(()),
    }
    let mut choice = options.device;
    loop {
        let device = Device::open(choice, Threads, || clock.now()).await.map_err(WorkerError::Device)?;
        if let Some(note) = device.note() {
            tracing::info!("{note}");
        }
        let timing = Timing::new(clock);
        if timing.is_on() {
            let timing = timing.clone();
            device.observe(move |stage| timing.reach(Point::of(stage)));
        }
        let may_fall_back = choice == DeviceChoice::Auto && device.is_gpu();
        let identity = Identity {
            // Each hub gets its own token and share.
            token: String::new(),
            key,
            name: options.name.clone(),
            kind: WorkerKind::Native,
            // As the token.
            memory_budget_bytes: 0,
            input_slots: INPUT_SLOTS,
        };
        let endings = match device.present(identity, || clock.now()).await {
            Ok(join) => {
                let on_card = device.free_bytes();
                let config = |hub: &Hub| {
                    let token = hub.token.clone();
                    let memory_budget_bytes = hub.memory.bytes(on_card, options.free_bytes);
                    let core = CoreConfig {
                        join: moex_protocol::Join { token, memory_budget_bytes, ..join.clone() },
                    };
                    (HubConfig { core, patience: Some(options.patience) }, hub.fetcher.clone())
                };
                let configs = hubs.iter().map(config).collect();
                let links = Links::new(hubs.iter().map(|hub| hub.route.clone()).collect());
                let status = options.status.clone();
                let busy_poll = options.busy_poll;
                let keep_awake = if busy_poll.is_on() { device.keep_awake() } else { None };
                let busy_poll = if keep_awake.is_some() { busy_poll.beside_a_card() } else { busy_poll };
                let shutdown = shutdown.as_mut();
                let end = NativeEnd::new(clock, links, status, busy_poll, keep_awake, timing, shutdown);
                Driver::new(end, Shared::new(device), configs).run().await
            }
            Err(reason) => vec![Ending::DeviceFailed(reason); hubs.len()],
        };
        let reason = endings.iter().find_map(|ending| match ending {
            Ending::DeviceFailed(reason) => Some(reason.clone()),
            _ => None,
        });
        match reason {
            Some(reason) if may_fall_back => {
                tracing::warn!("{reason} This worker continues on the CPU instead of the GPU.");
                let mut endings = endings.iter();
                hubs.retain(|_| matches!(endings.next(), Some(Ending::DeviceFailed(_))));
                choice = DeviceChoice::Cpu;
            }
            _ => return hubs::outcome(&hubs, endings),
        }
    }
}

fn store_error(folder: &std::path::Path, source: std::io::Error) -> WorkerError {
    WorkerError::Store { folder: folder.to_owned(), source }
}

fn fresh_key() -> Result<WorkerKey, WorkerError> {
    let mut bytes = [0; size_of::<u128>()];
    getrandom::fill(&mut bytes).map_err(|error| WorkerError::Random(error.to_string()))?;
    Ok(WorkerKey(u128::from_be_bytes(bytes)))
}
