//! Blocks by range over `fetch`, through the store.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use moex_protocol::BlockSource;
use wasm_bindgen::prelude::*;

use super::store::{Place, Store};
use super::{clock, js};
use crate::core::Loaded;
use crate::download::{Download, Next, file_name};

/// A download that brings nothing for this long is given up and resumed.
const STALL_TIMEOUT: Duration = Duration::from_secs(15);
/// The answer to a range.
const PARTIAL_CONTENT: u16 = 206;

/// Fetches blocks, through the store if there is one.
pub(super) struct Fetcher {
    /// The hub's origin, `http://HOST:PORT`.
    pub(super) hub: String,
    pub(super) token: String,
    pub(super) worker: String,
    pub(super) store: Option<Store>,
}

impl Fetcher {
    /// The bytes of the block, with the hash the hub named.
    pub(super) async fn fetch(&self, source: &BlockSource) -> Result<(Vec<u8>, Loaded), String> {
        let mut place = self.place(source).await;
        if let Some(bytes) = match &place {
            Some(place) => place.read().await,
            None => None,
        } {
            let loaded = Loaded { bytes: bytes.len() as u64, downloaded: 0 };
            return Ok((bytes, loaded));
        }
        let wanted = usize::try_from(source.end.saturating_sub(source.start)).unwrap_or(0);
        let kept = match &mut place {
            Some(place) => place.open_part(wanted).await,
            None => Vec::new(),
        };
        let mut download = Download::resume(source.clone(), kept);
        loop {
            let attempt = self.attempt(&mut download, place.as_mut()).await;
            match download.attempted(attempt) {
                Next::Done => break,
                Next::Retry(delay) => clock::sleep(delay).await,
                Next::Failed(reason) => return Err(reason),
            }
        }
        if let Some(place) = &mut place {
            place.finish().await;
        }
        Ok(download.into_bytes())
    }

    async fn place(&self, source: &BlockSource) -> Option<Place> {
        self.store.as_ref()?.place(&file_name(&source.blake3)?).await
    }

    /// Asks for what is missing; appends what the server gives of it, here and in the store.
    async fn attempt(&self, download: &mut Download, mut place: Option<&mut Place>) -> Result<(), String> {
        let Some((url, range)) = download.request() else { return Ok(()) };
        let (url, init) = self.request(url, &range);
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
            if let Some(place) = &mut place {
                place.write(offset, &chunk);
            }
        }
    }

    /// The address and the options for `fetch`. The token goes to the hub that gave it, and to nobody else.
    fn request(&self, url: &str, range: &str) -> (String, js_sys::Object) {
        let on_hub = url.starts_with('/') && !url.starts_with("//");
        let mut headers = vec![("Range", range.to_owned())];
        if on_hub {
            headers.push(("Authorization", format!("Bearer {}", self.token)));
            headers.push(("X-Moex-Worker", self.worker.clone()));
        }
        let object = js_sys::Object::new();
        for (name, value) in headers {
            // Setting a field of a fresh plain object cannot fail.
            drop(js_sys::Reflect::set(&object, &name.into(), &value.into()));
        }
        let init = js::object([("headers", object.into()), ("cache", "no-store".into())]);
        (if on_hub { format!("{}{url}", self.hub) } else { url.to_owned() }, init)
    }
}

/// The outcome, or an error if it takes longer than [`STALL_TIMEOUT`].
async fn in_time(outcome: impl Future<Output = Result<JsValue, JsValue>>) -> Result<JsValue, String> {
    match select(pin!(outcome), pin!(clock::sleep(STALL_TIMEOUT))).await {
        Either::Left((outcome, _)) => outcome.map_err(|error| js::words(&error)),
        Either::Right(_) => Err("the download stalls".into()),
    }
}
