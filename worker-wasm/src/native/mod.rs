//! The native driver: tokio, a WebSocket and an HTTP client around [`Core`](crate::core::Core).
//!
//! [`run`] is all there is to call. Computing and hashing run on blocking threads, so that the socket always answers.

mod busy;
mod connection;
mod crypto;
mod fetch;
mod join_url;
mod route;
mod store;
mod tls;

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use moex_protocol::{WorkerId, WorkerKind};
use tokio::sync::watch;

pub use self::busy::{BusyPoll, poll_again};
use self::connection::Driver;
pub use self::crypto::install_crypto;
use self::fetch::Fetcher;
pub use self::join_url::JoinUrl;
use self::route::Route;
use self::store::BlockStore;
pub use self::tls::{Fingerprint, Trust, client_tls};
use crate::core::Status;
use crate::device::{Device, DeviceChoice, Identity};

/// Input slots a native worker announces: one computing, the rest arriving meanwhile.
pub const INPUT_SLOTS: u8 = 4;

/// What a native worker is started with.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// What the hub prints: `http://HOST:PORT/join#TOKEN`, or `https` with the authority's fingerprint behind the token.
    pub join_url: String,
    /// A PEM file with the authority that the hub's certificate leads back to, where the URL names none.
    pub ca: Option<PathBuf>,
    /// Bytes of expert weights it may hold.
    pub memory_budget_bytes: u64,
    /// What it computes on.
    pub device: DeviceChoice,
    /// A folder that keeps blocks and the worker's id between runs.
    pub store: Option<PathBuf>,
    /// What its owner calls it, for people; empty if nothing.
    pub name: String,
    /// Its id, if it is not to come from the store or from chance.
    pub worker: Option<WorkerId>,
    /// How long to go on trying to reach a hub that does not answer.
    pub patience: Duration,
    /// Where to publish what there is to show.
    pub status: Option<watch::Sender<Status>>,
    /// How long to go on looking for the next message after one has come, before sleeping.
    pub busy_poll: BusyPoll,
}

/// Why a worker ended other than by being told to. Each is one sentence for its user.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The join URL is not one.
    #[error("{0}")]
    JoinUrl(String),
    /// What the hub's certificate is to be checked against cannot be used.
    #[error("{0}")]
    Tls(String),
    /// The store's folder cannot be used.
    #[error("The store {} cannot be used: {source}.", folder.display())]
    Store {
        /// As given.
        folder: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The device is not there, does not compute right, or cannot compute what the hub serves.
    #[error("{0}")]
    Device(String),
    /// No hub answered for as long as the options allow.
    #[error("No hub at {url}: {reason}.")]
    NoHub {
        /// The WebSocket's address.
        url: String,
        /// Why the last try failed.
        reason: String,
    },
    /// The hub turned the worker away for good, or the worker cannot serve its model.
    #[error("{0}")]
    Stopped(String),
}

/// Joins the hub and serves until `shutdown` resolves; connects again whenever the hub goes away.
///
/// # Errors
/// [`WorkerError`]: what trying again would not mend.
pub async fn run(options: WorkerOptions, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
    install_crypto();
    let join = JoinUrl::parse(&options.join_url).map_err(WorkerError::JoinUrl)?;
    let trust = match (join.authority, options.ca) {
        (Some(fingerprint), _) => Trust::Authority(fingerprint),
        (None, Some(path)) => Trust::File(path),
        (None, None) => Trust::System,
    };
    let tls =
        (join.hub.scheme() == "https").then(|| client_tls(&trust)).transpose().map_err(WorkerError::Tls)?;
    let store = match &options.store {
        Some(folder) => Some(BlockStore::open(folder).map_err(|source| store_error(folder, source))?),
        None => None,
    };
    let worker = match (options.worker, &options.store, &store) {
        (Some(worker), ..) => worker,
        (None, Some(folder), Some(store)) => {
            store.worker_id(fresh_id()).map_err(|source| store_error(folder, source))?
        }
        _ => fresh_id(),
    };
    let mut shutdown = pin!(shutdown);
    let clock = connection::Clock::start();
    let fetcher = Fetcher::new(join.clone(), worker, store, tls.clone()).map_err(WorkerError::Device)?;
    // Before the device is tested, which takes its time.
    tokio::select! {
        admitted = fetcher.check_token() => admitted.map_err(WorkerError::Stopped)?,
        () = &mut shutdown => return Ok(()),
    }
    let route = Route::new(&join, &trust, tls).map_err(WorkerError::JoinUrl)?;
    let mut choice = options.device;
    loop {
        let device = Device::open(choice).await.map_err(WorkerError::Device)?;
        if let Some(note) = device.note() {
            tracing::info!("{note}");
        }
        let may_fall_back = choice == DeviceChoice::Auto && device.is_gpu();
        let identity = Identity {
            token: join.token.clone(),
            worker,
            name: options.name.clone(),
            kind: WorkerKind::Native,
            memory_budget_bytes: options.memory_budget_bytes,
            input_slots: INPUT_SLOTS,
        };
        let presented = device.present(identity, || clock.now()).await;
        let ended = match presented {
            Ok(presented) => {
                let (fetcher, status) = (fetcher.clone(), options.status.clone());
                let driver = Driver::new(clock, device, presented, fetcher, status, options.busy_poll);
                driver.run(&route, options.patience, shutdown.as_mut()).await
            }
            Err(reason) => Err(WorkerError::Device(reason)),
        };
        match ended {
            Err(WorkerError::Device(reason)) if may_fall_back => {
                tracing::warn!("{reason} This worker goes on with the CPU instead of the GPU.");
                choice = DeviceChoice::Cpu;
            }
            ended => return ended,
        }
    }
}

fn store_error(folder: &std::path::Path, source: std::io::Error) -> WorkerError {
    WorkerError::Store { folder: folder.to_owned(), source }
}

/// An id from the system's randomness, by way of the keys that std seeds its maps with.
fn fresh_id() -> WorkerId {
    let half = || u128::from(RandomState::new().hash_one(std::process::id()));
    WorkerId(half() << 64 | half())
}
