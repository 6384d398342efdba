//! HTTP requests to the hub: fetches blocks by range, and checks the join token.

use std::time::Duration;

use moex_protocol::{BlockSource, WorkerId};
use reqwest::{StatusCode, header};

use super::join_url::JoinUrl;
use super::store::BlockStore;
use crate::core::Loaded;
use crate::download::{Download, complete, file_name};
use crate::driver::Fetch;

/// A download that receives nothing for this long is aborted and resumed.
const STALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Where a hub describes what it serves, for requests with its token.
const TERMS_PATH: &str = "/api/terms";

/// Fetches blocks, through the store if there is one.
#[derive(Clone, Debug)]
pub(super) struct Fetcher {
    client: reqwest::Client,
    join: JoinUrl,
    worker: WorkerId,
    store: Option<BlockStore>,
}

impl Fetcher {
    pub(super) fn new(
        join: JoinUrl,
        worker: WorkerId,
        store: Option<BlockStore>,
        tls: Option<rustls::ClientConfig>,
    ) -> Result<Self, String> {
        let mut client = reqwest::Client::builder()
            .connect_timeout(STALL_TIMEOUT)
            .read_timeout(STALL_TIMEOUT)
            // A hub is on this network, so proxies for the web are ignored, and redirects are errors.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        if let Some(tls) = tls {
            client = client.tls_backend_preconfigured(tls);
        }
        let client = client.build().map_err(|error| format!("No HTTP client: {error}."))?;
        Ok(Self { client, join, worker, store })
    }

    /// Checks that the hub accepts the token. A hub that cannot be reached counts as accepting it.
    ///
    /// # Errors
    /// One sentence, if the token is not the hub's.
    pub(super) async fn check_token(&self) -> Result<(), String> {
        let url = self.join.hub.join(TERMS_PATH).map_err(|error| error.to_string())?;
        match self.client.get(url).bearer_auth(&self.join.token).send().await {
            Ok(response) if response.status() == StatusCode::UNAUTHORIZED => {
                Err("The hub refused this worker: the token in its join link is wrong or outdated.".into())
            }
            _ => Ok(()),
        }
    }

    /// Requests the missing bytes and appends what arrives.
    async fn attempt(&self, download: &mut Download) -> Result<(), String> {
        let Some((url, range)) = download.request() else { return Ok(()) };
        let url = self.join.hub.join(url).map_err(|error| format!("`{url}`: {error}"))?;
        if url.origin() != self.join.hub.origin() {
            return Err("the hub names another server for its weights, which is not allowed".into());
        }
        let request = self.client.get(url).header(header::RANGE, range).bearer_auth(&self.join.token);
        let request = request.header("X-Moex-Worker", self.worker.to_string());
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

    /// Stores the bytes. If that fails, the block is downloaded again next time.
    async fn keep(&self, source: &BlockSource, bytes: &[u8]) {
        let (Some(store), Some(name)) = (self.store.clone(), file_name(&source.blake3)) else { return };
        let bytes = bytes.to_vec();
        let write = move || store.write(&name, &bytes);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
            tracing::warn!(%error, "storing a block failed");
        }
    }
}

impl Fetch for Fetcher {
    async fn fetch(&self, source: &BlockSource) -> Result<(Vec<u8>, Loaded), String> {
        let stored = self.stored(source).await.unwrap_or_default();
        let download = Download::resume(source.clone(), stored);
        let attempt = async |download: &mut Download| self.attempt(download).await;
        let (bytes, loaded) = complete(download, attempt, tokio::time::sleep).await?;
        if loaded.downloaded > 0 {
            self.keep(source, &bytes).await;
        }
        Ok((bytes, loaded))
    }
}

#[cfg(test)]
mod tests {
    use moex_protocol::{Block, ExpertId, LayerId};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn source(url: &str) -> BlockSource {
        let block = Block { layer: LayerId(0), expert: ExpertId(0) };
        BlockSource {
            block,
            url: url.into(),
            start: 0,
            end: 3,
            blake3: blake3::hash(b"abc").to_hex().to_string(),
        }
    }

    /// Answers everything with `answer`.
    async fn server(answer: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 2048];
                drop(stream.read(&mut request).await);
                drop(stream.write_all(answer.as_bytes()).await);
            }
        });
        format!("http://{address}")
    }

    #[tokio::test]
    async fn weights_come_from_the_hub_alone_and_by_no_detour() {
        crate::native::install_crypto();
        let weights = "HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
        let other = server(weights.to_owned()).await;
        let detour = format!(
            "HTTP/1.1 302 Found\r\nLocation: {other}/a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let hub = server(detour).await;
        let fetcher = |hub: &str| {
            let join = JoinUrl::parse(&format!("{hub}/join#token")).unwrap();
            Fetcher::new(join, WorkerId(1), None, None).unwrap()
        };
        assert!(fetcher(&other).fetch(&source("/a")).await.is_ok(), "the weights are good");
        let elsewhere = fetcher(&hub).fetch(&source(&format!("{other}/a"))).await.unwrap_err();
        assert!(elsewhere.contains("another server"), "{elsewhere}");
        let redirected = fetcher(&hub).fetch(&source("/a")).await.unwrap_err();
        assert!(redirected.contains("302"), "{redirected}");
    }
}
