//! HTTP requests to a Hugging Face hub: a model's file list, a file's metadata, and its bytes.
//!
//! The token is sent only to the hub's own origin: this file follows redirects itself, since the client would decide
//! otherwise. Requests can fail temporarily; this file retries them, except for a file's bytes, which the caller
//! retries.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use reqwest::{Client, Method, Response, StatusCode, Url, header, redirect};
use serde::Deserialize;

use super::{
    cache::{Commit, Etag},
    error::PullError,
    name::ModelName,
    refusal::{RefusedRequest, refusal},
    repo_file::RepoFile,
    retry::{Failure, RetryBudget},
    settings::Settings,
};

/// How long a host may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Total time limit of one request, however slowly its answer arrives.
const ASK_DEADLINE: Duration = Duration::from_secs(120);
/// Maximum redirects of one request.
const MAX_REDIRECTS: usize = 10;
/// Maximum bytes of a file list.
const MAX_LIST_BYTES: usize = 32 << 20;

/// A hub and one model on it.
#[derive(Debug)]
pub(super) struct Endpoint {
    http: Client,
    name: ModelName,
    settings: Settings,
}

/// A model at its revision.
#[derive(Debug)]
pub(super) struct ModelFiles {
    pub(super) commit: Commit,
    /// Names as the hub gives them: not safe as paths.
    pub(super) names: Vec<String>,
}

/// Metadata of a file.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    pub(super) file: RepoFile,
    pub(super) etag: Etag,
    pub(super) size_bytes: u64,
}

/// Which redirects to follow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follow {
    /// All.
    Anywhere,
    /// None once the hub has described the file: other hosts know less about it.
    UntilDescribed,
}

impl Endpoint {
    pub(super) fn new(name: &ModelName, settings: &Settings) -> Result<Self, PullError> {
        let client = || {
            Client::builder()
                .user_agent(concat!("moex/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIMEOUT)
                .redirect(redirect::Policy::none())
        };
        let http = match client().build() {
            // Over plain http, a system without certificate authorities is no problem.
            Err(_) if settings.endpoint.scheme() == "http" => client().tls_certs_only([]).build(),
            built => built,
        };
        let http = http.map_err(|error| PullError::NoAnswer {
            reason: format!("https does not work on this machine ({})", root_cause(&error)),
        })?;
        Ok(Self { http, name: name.clone(), settings: settings.clone() })
    }

    /// The host, for messages.
    pub(super) fn host(&self) -> &str {
        self.settings.host()
    }

    /// Fetches the list of the model's files.
    pub(super) async fn files(&self) -> Result<ModelFiles, PullError> {
        self.ask(async || self.files_once().await).await
    }

    /// Fetches a file's metadata.
    pub(super) async fn describe(&self, commit: &Commit, file: &RepoFile) -> Result<RemoteFile, PullError> {
        self.ask(async || self.describe_once(commit, file).await).await
    }

    /// Requests a file's bytes from `start` on; the answer is 206 if the server supports that.
    pub(super) async fn bytes(
        &self,
        commit: &Commit,
        file: &RepoFile,
        start: u64,
    ) -> Result<Response, Failure> {
        let range = (start > 0).then_some(start);
        let url = self.file_url(commit, file);
        let response =
            self.send(Method::GET, url, range, Follow::Anywhere, self.settings.stall_timeout).await?;
        if response.status().is_success() || response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            return Ok(response);
        }
        Err(self.refused(Some(file), &response))
    }

    /// The next piece of a response's body; none at its end.
    pub(super) async fn piece(&self, response: &mut Response) -> Result<Option<Bytes>, Failure> {
        let piece = tokio::time::timeout(self.settings.stall_timeout, response.chunk()).await;
        let host = response.url().host_str().unwrap_or_default();
        match piece {
            Ok(Ok(piece)) => Ok(piece),
            Ok(Err(error)) => {
                let why = format!("the connection to {host} was lost ({})", root_cause(&error));
                Err(Failure::again(why))
            }
            Err(_) => {
                let seconds = self.settings.stall_timeout.as_secs();
                Err(Failure::again(format!("{host} sent nothing for {seconds} s")))
            }
        }
    }

    async fn ask<T>(&self, question: impl AsyncFn() -> Result<T, Failure>) -> Result<T, PullError> {
        let mut tries = RetryBudget::new(&self.settings.ask_pauses);
        loop {
            let late = || Err(Failure::again(format!("{} answers too slowly", self.host())));
            match tokio::time::timeout(ASK_DEADLINE, question()).await.unwrap_or_else(|_| late()) {
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Again { why, after }) => match tries.next_pause(after) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Err(PullError::NoAnswer { reason: why }),
                },
            }
        }
    }

    async fn files_once(&self) -> Result<ModelFiles, Failure> {
        #[derive(Deserialize)]
        struct Model {
            sha: String,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }

        let (owner, repo) = (self.name.owner(), self.name.repo());
        let url = self.url(&["api", "models", owner, repo, "revision", self.name.revision()]);
        let mut response =
            self.send(Method::GET, url, None, Follow::Anywhere, self.settings.ask_timeout).await?;
        if !response.status().is_success() {
            return Err(self.refused(None, &response));
        }
        let mut body = Vec::new();
        while let Some(piece) = self.piece(&mut response).await? {
            if body.len() + piece.len() > MAX_LIST_BYTES {
                return Err(self.not_a_hub("its list of files is too long").into());
            }
            body.extend_from_slice(&piece);
        }
        let model: Option<Model> = serde_json::from_slice(&body).ok();
        let model = model.ok_or_else(|| self.not_a_hub("its list of files is invalid"))?;
        let commit = Commit::new(&model.sha).ok_or_else(|| self.not_a_hub("it names no commit"))?;
        Ok(ModelFiles {
            commit,
            names: model.siblings.into_iter().map(|sibling| sibling.rfilename).collect(),
        })
    }

    async fn describe_once(&self, commit: &Commit, file: &RepoFile) -> Result<RemoteFile, Failure> {
        let url = self.file_url(commit, file);
        let response =
            self.send(Method::HEAD, url, None, Follow::UntilDescribed, self.settings.ask_timeout).await?;
        if !response.status().is_success() && !response.status().is_redirection() {
            return Err(self.refused(Some(file), &response));
        }
        let lacks = |what: &str| self.not_a_hub(&format!("it does not say {what} of {file}"));
        if text(&response, "x-repo-commit").is_some_and(|other| other != commit.as_str()) {
            return Err(self.not_a_hub(&format!("it answered with {file} of a different commit")).into());
        }
        // Of a large file stored elsewhere, the plain headers describe the redirect itself.
        let etag = text(&response, "x-linked-etag").or_else(|| text(&response, "etag"));
        let own_size = || text(&response, "content-length").filter(|_| response.status().is_success());
        let size_bytes = text(&response, "x-linked-size").or_else(own_size);
        Ok(RemoteFile {
            file: file.clone(),
            etag: etag.and_then(Etag::new).ok_or_else(|| lacks("the hash"))?,
            size_bytes: size_bytes
                .and_then(|size| size.trim().parse().ok())
                .ok_or_else(|| lacks("the size"))?,
        })
    }

    /// Sends a request and follows redirects.
    async fn send(
        &self,
        method: Method,
        mut url: Url,
        start: Option<u64>,
        follow: Follow,
        timeout: Duration,
    ) -> Result<Response, Failure> {
        for _ in 0..=MAX_REDIRECTS {
            let mut request =
                self.http.request(method.clone(), url.clone()).header(header::ACCEPT_ENCODING, "identity");
            if let Some(token) = self.settings.token.as_ref().filter(|_| self.is_hub(&url)) {
                request = request.header(header::AUTHORIZATION, token.header.clone());
            }
            if let Some(start) = start {
                request = request.header(header::RANGE, format!("bytes={start}-"));
            }
            let host = url.host_str().unwrap_or_default();
            let response = match tokio::time::timeout(timeout, request.send()).await {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => {
                    let why = format!("{host} cannot be reached ({})", root_cause(&error));
                    return Err(Failure::again(why));
                }
                Err(_) => {
                    return Err(Failure::again(format!("{host} did not answer for {} s", timeout.as_secs())));
                }
            };
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let next = text(&response, "location").and_then(|location| url.join(location).ok());
            let next = next.filter(|next| ["http", "https"].contains(&next.scheme()));
            let next = next.ok_or_else(|| self.not_a_hub("it redirects without a valid URL"))?;
            if url.scheme() == "https" && next.scheme() == "http" {
                return Err(self.not_a_hub("it redirects from https to http").into());
            }
            let is_described = text(&response, "x-linked-etag").is_some();
            if follow == Follow::UntilDescribed && is_described && !self.is_hub(&next) {
                return Ok(response);
            }
            url = next;
        }
        Err(self.not_a_hub(&format!("it redirects more than {MAX_REDIRECTS} times")).into())
    }

    /// Whether the URL has the hub's own origin, which may receive the token.
    fn is_hub(&self, url: &Url) -> bool {
        url.origin() == self.settings.endpoint.origin()
    }

    fn refused(&self, file: Option<&RepoFile>, response: &Response) -> Failure {
        let by_hub = self.is_hub(response.url());
        refusal(&RefusedRequest { name: &self.name, file, settings: &self.settings, by_hub }, response)
    }

    fn not_a_hub(&self, reason: &str) -> PullError {
        PullError::NotAHub { host: self.host().to_owned(), reason: reason.to_owned() }
    }

    fn file_url(&self, commit: &Commit, file: &RepoFile) -> Url {
        let mut parts = vec![self.name.owner(), self.name.repo(), "resolve", commit.as_str()];
        parts.extend(file.as_str().split('/'));
        self.url(&parts)
    }

    /// Appends each part as one path segment, whatever it contains.
    fn url(&self, parts: &[&str]) -> Url {
        let mut url = self.settings.endpoint.clone();
        // Every URL with a host can be extended.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }
}

/// A header that is text.
fn text<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// The innermost cause of an error: the outer ones add nothing and contain URLs with secrets.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    match cause.downcast_ref::<reqwest::Error>() {
        Some(_) => "it does not speak HTTP".to_owned(),
        None => cause.to_string(),
    }
}
