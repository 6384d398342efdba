//! Downloads one file into the cache: locked, resumed, limited to the announced size, and verified.

use reqwest::{Response, StatusCode, header};

use super::{
    cache::{Commit, RepoCache, io_error},
    endpoint::{Endpoint, RemoteFile},
    error::PullError,
    lock::lock,
    part::Part,
    progress::Progress,
    retry::{Failure, RetryBudget},
    settings::Settings,
};

/// Bytes that must arrive before earlier failures are forgotten, so that a download cannot take forever.
const GAIN_BYTES: u64 = 1 << 20;

/// A file to be downloaded.
pub(super) struct Download<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) cache: &'a RepoCache,
    pub(super) settings: &'a Settings,
    pub(super) progress: &'a Progress,
    pub(super) commit: &'a Commit,
    pub(super) remote: &'a RemoteFile,
}

impl Download<'_> {
    /// Downloads the file into the cache, unless another process does so first.
    pub(super) async fn run(&self) -> Result<(), PullError> {
        let RemoteFile { file, etag, .. } = self.remote;
        let (incomplete, blob) = (self.cache.incomplete(etag), self.cache.blob(etag));
        let waits =
            || self.progress.set_trouble(file.as_str(), "another process is downloading it".to_owned());
        let patience = self.settings.lock_patience;
        let _lock = lock(&self.cache.lock(etag), &incomplete, patience, file.as_str(), waits).await?;
        self.progress.clear_trouble(file.as_str());
        if is_whole(self.cache, self.remote) {
            self.progress.add_done(self.remote.size_bytes);
            return self.cache.link(self.commit, file, etag);
        }
        let remote = self.remote.clone();
        let opened = tokio::task::spawn_blocking(move || Part::open(&incomplete, &remote)).await;
        let mut part = opened.map_err(|error| io_error(&blob)(error.into()))??;
        self.progress.add_done(part.n_written());
        loop {
            match self.receive(&mut part).await {
                Ok(()) => {}
                Err(error @ PullError::Differs { .. }) => {
                    part.remove()?;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
            if part.is_right() {
                break;
            }
            if !part.is_resumed() {
                part.remove()?;
                return Err(self.differs("it has another hash"));
            }
            // What an earlier run or another tool wrote may not be completely on the disk.
            self.restart(&mut part)?;
        }
        part.place(&blob)?;
        self.cache.link(self.commit, file, etag)
    }

    /// Receives the missing bytes, with pauses between attempts.
    async fn receive(&self, part: &mut Part) -> Result<(), PullError> {
        let file = self.remote.file.as_str();
        let mut tries = RetryBudget::new(&self.settings.download_pauses);
        let mut furthest = part.n_written();
        while part.n_missing() > 0 {
            let (why, after) = match self.transfer(part).await {
                Ok(()) if part.n_missing() == 0 => break,
                Ok(()) => (format!("{} ended the response early", self.endpoint.host()), None),
                Err(Failure::Again { why, after }) => (why, after),
                Err(Failure::Final(error)) => return Err(error),
            };
            if part.n_written() >= furthest.saturating_add(GAIN_BYTES) {
                furthest = part.n_written();
                tries.reset();
            }
            let Some(pause) = tries.next_pause(after) else {
                return Err(PullError::BrokeOff {
                    file: file.to_owned(),
                    reason: why,
                    done_bytes: part.n_written(),
                    size_bytes: self.remote.size_bytes,
                });
            };
            self.progress.set_trouble(file, format!("{why}, trying again"));
            tokio::time::sleep(pause).await;
        }
        self.progress.clear_trouble(file);
        Ok(())
    }

    /// Receives the bytes of one response.
    async fn transfer(&self, part: &mut Part) -> Result<(), Failure> {
        let RemoteFile { file, size_bytes, .. } = self.remote;
        let start = part.n_written();
        let mut response = self.endpoint.bytes(self.commit, file, start).await?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => self.check_range(&response, start)?,
            StatusCode::OK => {
                let announced = response.content_length();
                if announced.is_some_and(|announced| announced != *size_bytes) {
                    return Err(self.differs("its announced length has changed").into());
                }
                // The server does not support ranges.
                self.restart(part)?;
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                self.restart(part)?;
                return Err(Failure::again("the server refused the rest of the file".to_owned()));
            }
            status => {
                return Err(self
                    .differs(&format!("the server answered with status {}", status.as_u16()))
                    .into());
            }
        }
        while part.n_missing() > 0
            && let Some(piece) = self.endpoint.piece(&mut response).await?
        {
            if piece.len() as u64 > part.n_missing() {
                return Err(self.differs("the server sent more bytes").into());
            }
            part.write(&piece)?;
            self.progress.add_received(piece.len() as u64);
            self.progress.clear_trouble(file.as_str());
        }
        Ok(())
    }

    /// Checks `bytes START-END/SIZE` against the requested start.
    fn check_range(&self, response: &Response, start: u64) -> Result<(), PullError> {
        let range = response.headers().get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
        let parsed = range.and_then(|range| {
            let (range, size) = range.strip_prefix("bytes ")?.split_once('/')?;
            Some((range.split_once('-')?.0.parse::<u64>().ok()?, size))
        });
        let size = self.remote.size_bytes.to_string();
        match parsed {
            Some((from, of)) if from == start && (of == size || of == "*") => Ok(()),
            _ => Err(self.differs("the server sent a different part than requested")),
        }
    }

    fn restart(&self, part: &mut Part) -> Result<(), PullError> {
        self.progress.take_done(part.n_written());
        part.restart()
    }

    fn differs(&self, reason: &str) -> PullError {
        PullError::Differs {
            file: self.remote.file.to_string(),
            host: self.endpoint.host().to_owned(),
            reason: reason.to_owned(),
        }
    }
}

/// Whether the cache has the complete file.
pub(super) fn is_whole(cache: &RepoCache, remote: &RemoteFile) -> bool {
    std::fs::metadata(cache.blob(&remote.etag)).is_ok_and(|blob| blob.len() == remote.size_bytes)
}
