//! Errors of downloading a model; each is one sentence that says what to do.

use std::{io, path::PathBuf};

use indicatif::HumanBytes;

use super::{name::ModelName, repo_file::RepoFile};

/// Maximum files listed in a sentence.
const MAX_LISTED: usize = 24;

/// Why a model could not be pulled.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// An environment variable, or the file it names, is invalid.
    #[error("{variable} cannot be used: {reason}")]
    Setting {
        /// The variable or file.
        variable: String,
        /// What it must be.
        reason: String,
    },
    /// The model is not in the cache, and the hub must not be asked.
    #[error("{name} is not in {}, or not all of it, and HF_HUB_OFFLINE is set: unset it to download", cache.display())]
    Offline {
        /// The model.
        name: ModelName,
        /// The cache's folder.
        cache: PathBuf,
    },
    /// The hub has no such model, or does not show it to this account.
    #[error("{host} has no model {repo}: check the name{}", private_hint(*has_token))]
    UnknownModel {
        /// The hub.
        host: String,
        /// `OWNER/REPO`.
        repo: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The model has no such branch, tag or commit.
    #[error("{repo} has no revision {revision}: leave it out for main, or see {url}")]
    UnknownRevision {
        /// `OWNER/REPO`.
        repo: String,
        /// The branch, tag or commit.
        revision: String,
        /// The model's page.
        url: String,
    },
    /// The model is gated.
    #[error("{repo} is gated: accept its terms at {url}, {}", gated_hint(*has_token))]
    Gated {
        /// `OWNER/REPO`.
        repo: String,
        /// Where its terms are.
        url: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The hub does not accept the token.
    #[error(
        "{host} refuses the token in {token}: replace it with one of your account's, or remove it for public models"
    )]
    TokenRefused {
        /// The hub.
        host: String,
        /// Where the token comes from.
        token: String,
    },
    /// The model has no such file.
    #[error("{repo} has no file {file}{}", listed(others, "; its GGUF files are"))]
    UnknownFile {
        /// `OWNER/REPO`.
        repo: String,
        /// The file.
        file: String,
        /// The GGUF files in the repository.
        others: Vec<String>,
    },
    /// The repository has several GGUF files, and the name picks none.
    #[error("{repo} holds GGUF files: name one of them, such as {repo}/{}{}", files[0], listed(files, "; there are"))]
    OnlyGguf {
        /// `OWNER/REPO`.
        repo: String,
        /// The GGUF files in the repository; at least one.
        files: Vec<String>,
    },
    /// The repository has no model that can be read here.
    #[error("{repo} is not a model that moex can run: {reason}")]
    NoModel {
        /// `OWNER/REPO`.
        repo: String,
        /// What is missing.
        reason: String,
    },
    /// A file would be written outside the model's folder.
    #[error(
        "{host} names a file {file:?} of {repo}, which would lie outside the model's folder: nothing of it is written"
    )]
    UnsafeFile {
        /// The hub.
        host: String,
        /// `OWNER/REPO`.
        repo: String,
        /// The file, as the hub names it.
        file: String,
    },
    /// The server is not a Hugging Face hub.
    #[error("{host} does not answer like a Hugging Face hub: {reason} (set HF_ENDPOINT to use another)")]
    NotAHub {
        /// The host.
        host: String,
        /// What is wrong.
        reason: String,
    },
    /// A request failed several times.
    #[error("{reason}: check the network and HF_ENDPOINT, or try again later")]
    NoAnswer {
        /// The last failure.
        reason: String,
    },
    /// A download failed several times.
    #[error("{file} could not be downloaded: {reason}; {} of {} are here, and the same command resumes", HumanBytes(*done_bytes), HumanBytes(*size_bytes))]
    BrokeOff {
        /// The file.
        file: String,
        /// The last failure.
        reason: String,
        /// Bytes downloaded.
        done_bytes: u64,
        /// Bytes of the file.
        size_bytes: u64,
    },
    /// A file differs from what the hub announced.
    #[error("{file} is not what {host} announced: {reason}; the download was removed, try again later")]
    Differs {
        /// The file.
        file: String,
        /// The hub.
        host: String,
        /// What differs.
        reason: String,
    },
    /// The disk is too full.
    #[error("{} more are needed and {} has {} free: make room, or name another folder with HF_HUB_CACHE", HumanBytes(*needed_bytes), folder.display(), HumanBytes(*free_bytes))]
    NoSpace {
        /// The cache's folder.
        folder: PathBuf,
        /// Bytes still to download.
        needed_bytes: u64,
        /// Bytes free on the disk.
        free_bytes: u64,
    },
    /// Another process has locked a file and does not write to it.
    #[error("another process holds {} and has written nothing to {file} for {minutes} minutes: end it, then try again", lock.display())]
    Locked {
        /// The file to be downloaded.
        file: String,
        /// The lock file.
        lock: PathBuf,
        /// How long nothing was written.
        minutes: u64,
    },
    /// A file or folder of the cache cannot be used.
    #[error("{} cannot be used: {source} (HF_HUB_CACHE names another folder)", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl PullError {
    pub(super) fn unknown_file(repo: String, file: &RepoFile, others: Vec<String>) -> Self {
        Self::UnknownFile { repo, file: file.to_string(), others }
    }
}

fn private_hint(has_token: bool) -> &'static str {
    if has_token {
        ", and whether the account of your token may see it"
    } else {
        ", and if it is private, set HF_TOKEN to a token that may read it"
    }
}

fn gated_hint(has_token: bool) -> &'static str {
    if has_token { "with the account of your token" } else { "then set HF_TOKEN to a token of your account" }
}

/// `: a, b, c` after `words`; empty if there are no files.
fn listed(files: &[String], words: &str) -> String {
    if files.is_empty() {
        return String::new();
    }
    let more = files.len().saturating_sub(MAX_LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{words} {}{more}", files.iter().take(MAX_LISTED).cloned().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_ends() {
        let files: Vec<String> = (0..100).map(|i| format!("{i}.gguf")).collect();
        let said = PullError::OnlyGguf { repo: "a/b".to_owned(), files }.to_string();
        assert!(said.contains("such as a/b/0.gguf") && said.ends_with("23.gguf and 76 more"), "{said}");
        let said = PullError::UnknownFile { repo: "a/b".into(), file: "c.gguf".into(), others: vec![] };
        assert_eq!(said.to_string(), "a/b has no file c.gguf");
    }
}
