//! The worker in a browser: runs in a dedicated worker, which owns the WebSocket, the GPU and the stored blocks.
//!
//! The page loads the module, calls [`start`] and shows the JSON that arrives as messages ([`report::Report`]). Nothing here
//! touches a document.

mod clock;
mod end;
mod fetch;
mod js;
#[cfg(feature = "gpu")]
mod nudge;
mod report;
mod socket;
mod store;
mod thread;
mod threads;

use moex_protocol::{Visibility, WorkerKey, WorkerKind};
use serde::Deserialize;
use wasm_bindgen::prelude::*;

use self::end::BrowserEnd;
use self::fetch::Fetcher;
use self::report::{Phase, Report};
use self::store::Store;
pub use self::threads::{Engine, Threads};
use crate::core::{CoreConfig, Ending, HubConfig};
use crate::device::{Device, DeviceChoice, Identity};
use crate::driver::{Driver, Event, Shared};
use crate::inbox::Inbox;

/// Input slots a tab announces: one computing, the rest arriving meanwhile.
pub const INPUT_SLOTS: u8 = 4;

/// The page's options for a worker, as JSON.
#[derive(Deserialize)]
struct Options {
    /// The hub's origin: `http://HOST:PORT`.
    hub: String,
    /// The secret of the join URL.
    token: String,
    /// Drawn and stored by the page, a different one for each open tab.
    key: WorkerKey,
    /// The name that its owner gives it, for people.
    name: String,
    device: DeviceChoice,
    memory_budget_bytes: u64,
}

/// A worker that runs until its page ends it.
#[wasm_bindgen]
pub struct TabWorker {
    inbox: Inbox<Event>,
}

/// Opens the device and joins the hub. `options` is the JSON of the page; the worker reports by `postMessage`.
#[wasm_bindgen]
pub fn start(options: &str) -> Result<TabWorker, JsError> {
    std::panic::set_hook(Box::new(|panic| Report::crashed(&panic.to_string()).post()));
    // From bytes, as frames are read: bundles contain the reader once.
    let options: Options = serde_json::from_slice(options.as_bytes())?;
    let inbox = Inbox::new();
    let worker = TabWorker { inbox: inbox.clone() };
    wasm_bindgen_futures::spawn_local(async move {
        run(options, inbox).await.unwrap_or_else(Report::stopped).post();
    });
    Ok(worker)
}

#[wasm_bindgen]
impl TabWorker {
    /// The page was hidden, frozen, shown again, or is about to go: `visible`, `hidden`, `frozen` or `leaving`.
    pub fn set_visibility(&self, visibility: &str) {
        let visibility = match visibility {
            "hidden" => Visibility::Hidden,
            "frozen" => Visibility::Frozen,
            "leaving" => Visibility::Leaving,
            _ => Visibility::Visible,
        };
        // A page that floods its own worker with events loses some.
        drop(self.inbox.offer(Event::Visibility(visibility)));
    }
}

/// Serves until it must end; returns the last report, or an error if there was nothing to report.
async fn run(options: Options, inbox: Inbox<Event>) -> Result<Report, String> {
    Report::new(Phase::Starting).post();
    let worker = options.key.id().to_string();
    let threads = match options.device {
        DeviceChoice::Gpu => Threads::default(),
        DeviceChoice::Auto | DeviceChoice::Cpu => Threads::start(&options.hub, &options.token, &worker).await,
    };
    let device = Device::open(options.device, threads, clock::now).await?;
    let identity = Identity {
        token: options.token.clone(),
        key: options.key,
        name: options.name,
        kind: WorkerKind::Browser,
        memory_budget_bytes: options.memory_budget_bytes,
        input_slots: INPUT_SLOTS,
    };
    let mut join = device.present(identity, clock::now).await?;
    if let (true, Some(name)) = (device.is_gpu(), js::gpu_name()) {
        join.adapter = name;
    }
    let store = Store::open();
    let (is_gpu, device) = (device.is_gpu(), Shared::new(device));
    let (hubs, is_stored) = ([options.hub.clone()], store.is_some());
    let end = BrowserEnd::new(inbox, &hubs, &device, is_stored);
    let fetcher = Fetcher { hub: options.hub, token: options.token, worker, store };
    let config = HubConfig { core: CoreConfig { join }, patience: None };
    let endings = Driver::new(end, device, vec![(config, fetcher)]).run().await;
    Ok(match endings.into_iter().next() {
        Some(Ending::DeviceFailed(reason)) if is_gpu => Report::crashed(&reason),
        Some(Ending::Stopped(reason) | Ending::DeviceFailed(reason) | Ending::Unreachable(reason)) => {
            Report::stopped(reason)
        }
        Some(Ending::Left) | None => Report::new(Phase::Stopped),
    })
}
