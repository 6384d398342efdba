//! Downloads models from a Hugging Face hub into the cache on disk that its other tools share.
//!
//! [`find`] looks only in the cache. [`pull`] asks the hub for a model's current files and downloads missing ones: it
//! resumes partial downloads, and verifies a file's hash before the file counts as present. The commands parse
//! arguments and show progress.

mod name;
mod settings;

mod fetch;
mod listing;
mod weights;

mod download;
mod lock;
mod part;
mod retry;

mod endpoint;
mod refusal;

mod cache;
mod repo_file;
mod space;

mod error;
mod progress;

#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use self::{cache::RepoCache, fetch::Fetch, repo_file::RepoFile};
pub use self::{
    error::PullError,
    name::{ModelName, NameError},
    progress::Progress,
    settings::Settings,
};
use moex_model::gguf;

/// Files that are downloaded at a time.
const PARALLEL_FILES: usize = 4;
/// How often whoever waits is told how far it is.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Where the model lies in the cache: its folder, or its GGUF's first file. None unless all that is needed is there.
pub fn find(name: &ModelName, settings: &Settings) -> Option<PathBuf> {
    let cache = RepoCache::new(&settings.cache, name);
    let commit = cache.commit(name.revision())?;
    let is_there = |file: &RepoFile| cache.pointer(&commit, file).exists();
    if let Some(file) = name.file() {
        let parts = gguf_parts(file)?;
        return parts.iter().all(is_there).then(|| cache.pointer(&commit, &parts[0]));
    }
    let folder = cache.snapshot(&commit);
    let shards = weights::in_folder(&folder).ok()?;
    let is_complete = is_there(&RepoFile::config()) && shards.iter().all(is_there);
    // A repository may have no tokenizer: the hub is asked once more, unless it must not be.
    let has_text = folder.join("tokenizer.json").exists();
    (is_complete && (has_text || settings.offline)).then_some(folder)
}

/// Downloads what is not there yet, and returns where the model lies. Blocks until it is there; `report` is called about
/// ten times a second.
///
/// A process that is ended on the way leaves what the next one goes on with.
///
/// # Errors
/// Why the model cannot be had, as one sentence.
pub fn pull(
    name: &ModelName,
    settings: &Settings,
    report: &mut dyn FnMut(&Progress),
) -> Result<PathBuf, PullError> {
    if settings.offline {
        let missing = || PullError::Offline { name: name.clone(), cache: settings.cache.clone() };
        return find(name, settings).ok_or_else(missing);
    }
    // Writing to a disk blocks: each file may block a thread, and one is left for sockets and timers.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(PARALLEL_FILES + 1)
        .enable_all()
        .build()
        .map_err(|source| PullError::Io { path: settings.cache.clone(), source })?;
    let progress = Arc::new(Progress::default());
    let fetch = Fetch::new(name, settings, progress.clone())?;
    let pulled = runtime.block_on(async {
        let mut ticks = tokio::time::interval(REPORT_INTERVAL);
        let mut work = std::pin::pin!(fetch.model());
        loop {
            tokio::select! {
                pulled = &mut work => return pulled,
                _ = ticks.tick() => report(&progress),
            }
        }
    });
    // A file that is being hashed is left alone.
    runtime.shutdown_background();
    report(&progress);
    pulled
}

/// All files of the GGUF that `file` is one of, in order.
fn gguf_parts(file: &RepoFile) -> Option<Vec<RepoFile>> {
    let parts = gguf::shards(file.as_str().as_ref());
    let name = |part: &Path| RepoFile::new(&part.to_str()?.replace(std::path::MAIN_SEPARATOR, "/"));
    parts.iter().map(|part| name(part)).collect()
}
