//! Questions to a hub over HTTP: which files a model has, what a file is, and its bytes.
//!
//! The token goes to the hub's own origin and nowhere else: redirects are followed here, and not by the client, which
//! would decide that for itself. What is asked once may fail in passing; asking again is whoever asks' matter for a file's
//! bytes, and this file's for all else.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use reqwest::{Client, Method, Response, StatusCode, Url, header, redirect};
use serde::Deserialize;

use super::{
    cache::{Commit, Etag},
    error::PullError,
    name::ModelName,
    refusal::{Asked, refusal},
    repo_file::RepoFile,
    retry::{Failure, Tries},
    settings::Settings,
};

/// How long a host may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long one question may take in all, however steadily its answer drips.
const ASK_DEADLINE: Duration = Duration::from_secs(120);
/// The most hosts or paths that one question is sent on to.
const MAX_REDIRECTS: usize = 10;
/// The longest list of files that is read.
const MAX_LIST_BYTES: usize = 32 << 20;

/// A hub, asked about one model.
#[derive(Debug)]
pub(super) struct Endpoint {
    http: Client,
    name: ModelName,
    settings: Settings,
}

/// What a model is at its revision.
#[derive(Debug)]
pub(super) struct ModelFiles {
    pub(super) commit: Commit,
    /// As the hub names them: not to be used as paths.
    pub(super) names: Vec<String>,
}

/// What a file is.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    pub(super) file: RepoFile,
    pub(super) etag: Etag,
    pub(super) size_bytes: u64,
}

/// Who is asked, when the hub sends on to somebody else.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follow {
    /// Whoever it is.
    Anywhere,
    /// Nobody, if the hub has said what a file is: they know less of it.
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
            // Where nothing is encrypted, a system without certificate authorities is none the worse.
            Err(_) if settings.endpoint.scheme() == "http" => client().tls_certs_only([]).build(),
            built => built,
        };
        let http = http.map_err(|error| PullError::NoAnswer {
            reason: format!("no https can be spoken on this machine ({})", root_cause(&error)),
        })?;
        Ok(Self { http, name: name.clone(), settings: settings.clone() })
    }

    /// The host, for people.
    pub(super) fn host(&self) -> &str {
        self.settings.host()
    }

    /// Which files the model has.
    pub(super) async fn files(&self) -> Result<ModelFiles, PullError> {
        self.ask(async || self.files_once().await).await
    }

    /// What a file is, without its bytes.
    pub(super) async fn describe(&self, commit: &Commit, file: &RepoFile) -> Result<RemoteFile, PullError> {
        self.ask(async || self.describe_once(commit, file).await).await
    }

    /// A file's bytes from byte `start` on, as far as whoever answers cares for that: 206 if so.
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

    /// The next piece of an answer's body; none at its end.
    pub(super) async fn piece(&self, response: &mut Response) -> Result<Option<Bytes>, Failure> {
        let piece = tokio::time::timeout(self.settings.stall_timeout, response.chunk()).await;
        let host = response.url().host_str().unwrap_or_default();
        match piece {
            Ok(Ok(piece)) => Ok(piece),
            Ok(Err(error)) => {
                let why = format!("the connection to {host} broke off ({})", root_cause(&error));
                Err(Failure::again(why))
            }
            Err(_) => {
                let seconds = self.settings.stall_timeout.as_secs();
                Err(Failure::again(format!("{host} sent nothing for {seconds} s")))
            }
        }
    }

    async fn ask<T>(&self, question: impl AsyncFn() -> Result<T, Failure>) -> Result<T, PullError> {
        let mut tries = Tries::new(&self.settings.ask_pauses);
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
                return Err(self.not_a_hub("its list of files does not end").into());
            }
            body.extend_from_slice(&piece);
        }
        let model: Option<Model> = serde_json::from_slice(&body).ok();
        let model = model.ok_or_else(|| self.not_a_hub("its list of files cannot be read"))?;
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
            return Err(self.not_a_hub(&format!("it gives {file} of another commit than asked")).into());
        }
        // Of a large file that lies elsewhere, the plain headers are the redirect's own.
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

    /// Asks, and follows where the hub sends on to.
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
            let next = next.ok_or_else(|| self.not_a_hub("it sends on to nowhere"))?;
            if url.scheme() == "https" && next.scheme() == "http" {
                return Err(self.not_a_hub("it sends on from https to http").into());
            }
            let is_described = text(&response, "x-linked-etag").is_some();
            if follow == Follow::UntilDescribed && is_described && !self.is_hub(&next) {
                return Ok(response);
            }
            url = next;
        }
        Err(self.not_a_hub(&format!("it sends on more than {MAX_REDIRECTS} times")).into())
    }

    /// Whether it is the hub's own origin, which may see the token.
    fn is_hub(&self, url: &Url) -> bool {
        url.origin() == self.settings.endpoint.origin()
    }

    fn refused(&self, file: Option<&RepoFile>, response: &Response) -> Failure {
        let by_hub = self.is_hub(response.url());
        refusal(&Asked { name: &self.name, file, settings: &self.settings, by_hub }, response)
    }

    fn not_a_hub(&self, reason: &str) -> PullError {
        PullError::NotAHub { host: self.host().to_owned(), reason: reason.to_owned() }
    }

    fn file_url(&self, commit: &Commit, file: &RepoFile) -> Url {
        let mut parts = vec![self.name.owner(), self.name.repo(), "resolve", commit.as_str()];
        parts.extend(file.as_str().split('/'));
        self.url(&parts)
    }

    /// Each part is one between two slashes, whatever it holds.
    fn url(&self, parts: &[&str]) -> Url {
        let mut url = self.settings.endpoint.clone();
        // Every URL with a host has a path that can be added to.
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

/// What lies at the bottom of an error: the layers above it say that there was one, and name URLs with secrets in them.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    match cause.downcast_ref::<reqwest::Error>() {
        Some(_) => "it speaks no HTTP".to_owned(),
        None => cause.to_string(),
    }
}
