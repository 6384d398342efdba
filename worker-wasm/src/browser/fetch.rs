//! Blocks by range over `fetch`, through the store.

use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::future::{Either, select};
use moex_kernels::ExpertFormat;
use moex_protocol::BlockSource;
use wasm_bindgen::prelude::*;

use super::store::{Place, Store};
use super::threads::Engine;
use super::{clock, js};
use crate::core::Loaded;
use crate::download::{Download, complete, file_name};
use crate::driver::Fetch;

/// A download that receives nothing for this long is aborted and resumed.
const STALL_TIMEOUT: Duration = Duration::from_secs(15);
/// The status of an answer to a range request.
const PARTIAL_CONTENT: u16 = 206;

/// A block, and how many of its bytes were downloaded.
type Fetched = (Vec<u8>, Loaded);

/// Fetches blocks, through the store if there is one.
pub(super) struct Fetcher {
    /// The hub's origin, `http://HOST:PORT`.
    pub(super) hub: String,
    pub(super) token: String,
    pub(super) worker: String,
    pub(super) store: Option<Store>,
}

impl Fetcher {
    async fn place(&self, source: &BlockSource) -> Option<Place> {
        self.store.as_ref()?.place(&file_name(&source.blake3)?).await
    }

    /// Requests the missing bytes; appends what arrives to the download and to the store.
    async fn attempt(&self, download: &mut Download, place: Option<&Place>) -> Result<(), String> {
        let Some((url, range)) = download.request() else { return Ok(()) };
        if !url.starts_with('/') {
            return Err("the hub names another server for its weights; only the hub itself is asked".into());
        }
        let (url, init) = (format!("{}{url}", self.hub), self.init(&range));
        let response = in_time(js::fetch(&url, &init)).await?;
        let response: js::Response = response.unchecked_into();
        if response.status() != PARTIAL_CONTENT {
            return Err(format!("the server answered {}", response.status()));
        }
        let stream = response.body().ok_or("the server answered without a body")?;
        let reader = stream.reader().map_err(|error| js::words(&error))?;
        loop {
            let chunk: js::Chunk = in_time(reader.read()).await?.unchecked_into();
            let Some(chunk) = chunk.value() else { return Ok(()) };
            let (offset, chunk) = (download.len(), chunk.to_vec());
            if let Err(reason) = download.append(&chunk) {
                drop(reader.cancel().await);
                return Err(reason);
            }
            if let Some(place) = place {
                place.write(offset, &chunk);
            }
        }
    }

    /// The options for `fetch`. A redirect is an error: it would send the token to another server.
    fn init(&self, range: &str) -> js_sys::Object {
        let headers = js::object([
            ("Range", range.into()),
            ("Authorization", format!("Bearer {}", self.token).into()),
            ("X-Moex-Worker", self.worker.as_str().into()),
        ]);
        js::object([("headers", headers.into()), ("cache", "no-store".into()), ("redirect", "error".into())])
    }
}

impl Fetch for Fetcher {
    async fn load(
        &self,
        engine: &Engine,
        slot: u32,
        format: ExpertFormat,
        source: &BlockSource,
    ) -> Result<Loaded, String> {
        engine.fetch(slot, format, source, self.fetch(source)).await
    }

    async fn fetch(&self, source: &BlockSource) -> Result<Fetched, String> {
        // Boxed, so that bundles contain the code once.
        let fetched: Pin<Box<dyn Future<Output = _> + '_>> = Box::pin(self.fetch_through_store(source));
        fetched.await
    }
}

impl Fetcher {
    async fn fetch_through_store(&self, source: &BlockSource) -> Result<Fetched, String> {
        let place = self.place(source).await;
        if let Some(bytes) = match &place {
            Some(place) => place.read().await,
            None => None,
        } {
            let loaded = Loaded { bytes: bytes.len() as u64, downloaded: 0 };
            return Ok((bytes, loaded));
        }
        let wanted = usize::try_from(source.end.saturating_sub(source.start)).unwrap_or(0);
        let kept = match &place {
            Some(place) => place.open_part(wanted).await,
            None => Vec::new(),
        };
        let download = Download::resume(source.clone(), kept);
        let attempt = async |download: &mut Download| self.attempt(download, place.as_ref()).await;
        let complete = complete(download, attempt, clock::sleep).await?;
        if let Some(place) = &place {
            place.finish().await;
        }
        Ok(complete)
    }
}

/// The outcome, or an error if it takes longer than [`STALL_TIMEOUT`].
async fn in_time(outcome: impl Future<Output = Result<JsValue, JsValue>>) -> Result<JsValue, String> {
    match select(pin!(outcome), pin!(clock::sleep(STALL_TIMEOUT))).await {
        Either::Left((outcome, _)) => outcome.map_err(|error| js::words(&error)),
        Either::Right(_) => Err("the download stalls".into()),
    }
}
