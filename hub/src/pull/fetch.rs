//! Downloads a whole model into the cache: chooses the files, their order, and how many at a time.

use std::{fs, path::PathBuf, sync::Arc};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::task::JoinSet;

use super::{
    PARALLEL_FILES,
    cache::{Commit, RepoCache, io_error},
    download::{Download, is_whole},
    endpoint::{Endpoint, RemoteFile},
    error::PullError,
    gguf_parts,
    listing::Listing,
    name::ModelName,
    progress::Progress,
    repo_file::RepoFile,
    settings::Settings,
    space,
    weights::{self, IndexError},
};

/// Everything needed to download a model.
#[derive(Clone)]
pub(super) struct Fetch {
    name: ModelName,
    settings: Settings,
    endpoint: Arc<Endpoint>,
    cache: RepoCache,
    progress: Arc<Progress>,
}

impl Fetch {
    pub(super) fn new(
        name: &ModelName,
        settings: &Settings,
        progress: Arc<Progress>,
    ) -> Result<Self, PullError> {
        Ok(Self {
            endpoint: Arc::new(Endpoint::new(name, settings)?),
            cache: RepoCache::new(&settings.cache, name),
            name: name.clone(),
            settings: settings.clone(),
            progress,
        })
    }

    /// Downloads all needed files and returns the model's path.
    pub(super) async fn model(&self) -> Result<PathBuf, PullError> {
        let model = self.endpoint.files().await?;
        let commit = &model.commit;
        let listing = Listing::new(&self.name, self.endpoint.host(), &model.names)?;
        let path = match self.name.file() {
            Some(file) => {
                let parts = gguf_parts(file).unwrap_or_else(|| vec![file.clone()]);
                let path = self.cache.pointer(commit, &parts[0]);
                self.files(commit, listing.all_of(parts)?).await?;
                path
            }
            None => {
                let folder = self.cache.snapshot(commit);
                self.files(commit, listing.of_folder()?).await?;
                let shards = weights::in_folder(&folder).map_err(|error| self.bad_index(&listing, error))?;
                self.files(commit, listing.all_of(shards)?).await?;
                folder
            }
        };
        // Only once all files are present: until then the revision stays the last complete one.
        self.cache.set_commit(self.name.revision(), commit)?;
        Ok(path)
    }

    /// Downloads these files into the cache.
    async fn files(&self, commit: &Commit, files: Vec<RepoFile>) -> Result<(), PullError> {
        self.cache.make_folders()?;
        let missing = files.into_iter().filter(|file| !self.cache.pointer(commit, file).exists());
        let described = stream::iter(missing)
            .map(async |file| self.endpoint.describe(commit, &file).await)
            .buffered(PARALLEL_FILES)
            .try_collect::<Vec<RemoteFile>>()
            .await?;
        let mut wanted = Vec::new();
        for remote in described {
            if is_whole(&self.cache, &remote) {
                self.cache.link(commit, &remote.file, &remote.etag)?;
            } else {
                self.progress.add_total(remote.size_bytes);
                wanted.push(remote);
            }
        }
        self.check_space(&wanted)?;
        let mut wanted = wanted.into_iter();
        let mut under_way = JoinSet::new();
        loop {
            while under_way.len() < PARALLEL_FILES
                && let Some(remote) = wanted.next()
            {
                under_way.spawn(self.clone().file(commit.clone(), remote));
            }
            match under_way.join_next().await {
                // The remaining downloads end with their set and keep their partial files.
                Some(done) => done.map_err(|error| io_error(&self.settings.cache)(error.into()))??,
                None => return Ok(()),
            }
        }
    }

    async fn file(self, commit: Commit, remote: RemoteFile) -> Result<(), PullError> {
        let download = Download {
            endpoint: &self.endpoint,
            cache: &self.cache,
            settings: &self.settings,
            progress: &self.progress,
            commit: &commit,
            remote: &remote,
        };
        download.run().await
    }

    /// Checks that the missing bytes of these files fit on the disk.
    fn check_space(&self, wanted: &[RemoteFile]) -> Result<(), PullError> {
        let missing = |remote: &RemoteFile| {
            let there = fs::metadata(self.cache.incomplete(&remote.etag)).map_or(0, |part| part.len());
            remote.size_bytes.saturating_sub(there)
        };
        let needed_bytes = wanted.iter().map(missing).fold(0, u64::saturating_add);
        match space::free_bytes(&self.settings.cache) {
            Some(free_bytes) if free_bytes < needed_bytes => {
                Err(PullError::NoSpace { folder: self.settings.cache.clone(), needed_bytes, free_bytes })
            }
            _ => Ok(()),
        }
    }

    fn bad_index(&self, listing: &Listing, error: IndexError) -> PullError {
        match error {
            IndexError::Unreadable => listing.no_model("its safetensors index is invalid"),
            IndexError::BadName(file) => PullError::UnsafeFile {
                host: self.endpoint.host().to_owned(),
                repo: self.name.full_repo(),
                file,
            },
        }
    }
}
