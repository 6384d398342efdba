//! One file from the hub into the cache: locked, resumed, bounded by what was announced, and checked.

use reqwest::{Response, StatusCode, header};

use super::{
    cache::{Commit, RepoCache, io_error},
    endpoint::{Endpoint, RemoteFile},
    error::PullError,
    lock::lock,
    part::Part,
    progress::Progress,
    retry::{Failure, Tries},
    settings::Settings,
};

/// What has to come before earlier failures are forgotten, so that no hub keeps a download up for ever.
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
    /// Brings it into the cache, unless another process does meanwhile.
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
            // What an earlier run or another tool left may not have reached the disk whole.
            self.restart(&mut part)?;
        }
        part.place(&blob)?;
        self.cache.link(self.commit, file, etag)
    }

    /// Receives all that is missing, with pauses between tries.
    async fn receive(&self, part: &mut Part) -> Result<(), PullError> {
        let file = self.remote.file.as_str();
        let mut tries = Tries::new(&self.settings.download_pauses);
        let mut furthest = part.n_written();
        while part.n_missing() > 0 {
            let (why, after) = match self.transfer(part).await {
                Ok(()) if part.n_missing() == 0 => break,
                Ok(()) => (format!("{} ended the file early", self.endpoint.host()), None),
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

    /// Receives as much as one answer brings.
    async fn transfer(&self, part: &mut Part) -> Result<(), Failure> {
        let RemoteFile { file, size_bytes, .. } = self.remote;
        let start = part.n_written();
        let mut response = self.endpoint.bytes(self.commit, file, start).await?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => self.check_range(&response, start)?,
            StatusCode::OK => {
                let announced = response.content_length();
                if announced.is_some_and(|announced| announced != *size_bytes) {
                    return Err(self.differs("it is announced with another length").into());
                }
                // Whoever answers knows no ranges.
                self.restart(part)?;
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                self.restart(part)?;
                return Err(Failure::again("the rest of the file is refused".to_owned()));
            }
            status => return Err(self.differs(&format!("it comes with status {}", status.as_u16())).into()),
        }
        while part.n_missing() > 0
            && let Some(piece) = self.endpoint.piece(&mut response).await?
        {
            if piece.len() as u64 > part.n_missing() {
                return Err(self.differs("more bytes come").into());
            }
            part.write(&piece)?;
            self.progress.add_received(piece.len() as u64);
            self.progress.clear_trouble(file.as_str());
        }
        Ok(())
    }

    /// `bytes START-END/SIZE`, with the start that was asked for.
    fn check_range(&self, response: &Response, start: u64) -> Result<(), PullError> {
        let range = response.headers().get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
        let parsed = range.and_then(|range| {
            let (range, size) = range.strip_prefix("bytes ")?.split_once('/')?;
            Some((range.split_once('-')?.0.parse::<u64>().ok()?, size))
        });
        let size = self.remote.size_bytes.to_string();
        match parsed {
            Some((from, of)) if from == start && (of == size || of == "*") => Ok(()),
            _ => Err(self.differs("another part of it comes than was asked for")),
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

/// Whether the cache has all of a file's bytes.
pub(super) fn is_whole(cache: &RepoCache, remote: &RemoteFile) -> bool {
    std::fs::metadata(cache.blob(&remote.etag)).is_ok_and(|blob| blob.len() == remote.size_bytes)
}
