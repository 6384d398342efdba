//! Blocks by range over HTTP, from the hub or from whatever store it names.

use std::time::Duration;

use moex_protocol::{BlockSource, WorkerId};
use reqwest::{StatusCode, header};

use super::join_url::JoinUrl;
use super::store::BlockStore;
use crate::core::Loaded;
use crate::download::{Download, Next, file_name};

/// A download that brings nothing for this long is given up and resumed.
const STALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Fetches blocks, through the store if there is one.
#[derive(Clone, Debug)]
pub(super) struct Fetcher {
    client: reqwest::Client,
    join: JoinUrl,
    worker: WorkerId,
    store: Option<BlockStore>,
}

impl Fetcher {
    pub(super) fn new(join: JoinUrl, worker: WorkerId, store: Option<BlockStore>) -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .connect_timeout(STALL_TIMEOUT)
            .read_timeout(STALL_TIMEOUT)
            .build()
            .map_err(|error| format!("No HTTP client: {error}."))?;
        Ok(Self { client, join, worker, store })
    }

    /// The bytes of the block, with the hash the hub named.
    pub(super) async fn fetch(&self, source: &BlockSource) -> Result<(Vec<u8>, Loaded), String> {
        let stored = self.stored(source).await.unwrap_or_default();
        let mut download = Download::resume(source.clone(), stored);
        loop {
            let attempt = self.attempt(&mut download).await;
            match download.attempted(attempt) {
                Next::Done => break,
                Next::Retry(delay) => tokio::time::sleep(delay).await,
                Next::Failed(reason) => return Err(reason),
            }
        }
        let (bytes, loaded) = download.into_bytes();
        if loaded.downloaded > 0 {
            self.keep(source, &bytes).await;
        }
        Ok((bytes, loaded))
    }

    /// Asks for what is missing and appends what the server gives of it.
    async fn attempt(&self, download: &mut Download) -> Result<(), String> {
        let Some((url, range)) = download.request() else { return Ok(()) };
        let url = self.join.hub.join(url).map_err(|error| format!("`{url}`: {error}"))?;
        let mut request = self.client.get(url.clone()).header(header::RANGE, range);
        // The token goes to the hub that gave it, and to nobody else.
        if url.origin() == self.join.hub.origin() {
            request = request.bearer_auth(&self.join.token).header("X-Moex-Worker", self.worker.to_string());
        }
        let mut response = request.send().await.map_err(|error| error.to_string())?;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            return Err(format!("the server answered {}", response.status()));
        }
        while let Some(chunk) = response.chunk().await.map_err(|error| error.to_string())? {
            download.append(&chunk)?;
        }
        Ok(())
    }

    async fn stored(&self, source: &BlockSource) -> Option<Vec<u8>> {
        let store = self.store.clone()?;
        let name = file_name(&source.blake3)?;
        tokio::task::spawn_blocking(move || store.read(&name)).await.ok().flatten()
    }

    /// A store that cannot keep the bytes costs a download next time, nothing now.
    async fn keep(&self, source: &BlockSource, bytes: &[u8]) {
        let (Some(store), Some(name)) = (self.store.clone(), file_name(&source.blake3)) else { return };
        let bytes = bytes.to_vec();
        let write = move || store.write(&name, &bytes);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
            tracing::warn!(%error, "a block could not be kept in the store");
        }
    }
}
