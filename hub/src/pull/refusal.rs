//! Maps a hub's refusal to an error, by its status and error code.

use std::time::Duration;

use reqwest::{Response, StatusCode, header};

use super::{error::PullError, name::ModelName, repo_file::RepoFile, retry::Failure, settings::Settings};

/// The refused request.
pub(super) struct RefusedRequest<'a> {
    pub(super) name: &'a ModelName,
    /// None for the list of all files.
    pub(super) file: Option<&'a RepoFile>,
    pub(super) settings: &'a Settings,
    /// Whether the hub itself answered, not a server it redirected to.
    pub(super) by_hub: bool,
}

/// The error for an unsuccessful `response`.
pub(super) fn refusal(asked: &RefusedRequest<'_>, response: &Response) -> Failure {
    let status = response.status();
    let host = response.url().host_str().unwrap_or_default().to_owned();
    if is_passing(status) || !asked.by_hub {
        // On a redirected server, a permission may have expired: the hub grants a new one.
        return Failure::Again {
            why: format!("{host} answers {}", words(status)),
            after: retry_after(response),
        };
    }
    let repo = asked.name.full_repo();
    let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok()).unwrap_or_default();
    let token = asked.settings.token.as_ref();
    let has_token = token.is_some();
    let url = page(asked.settings, &repo);
    Failure::Final(match (status, code) {
        (_, "GatedRepo") | (StatusCode::FORBIDDEN, _) => PullError::Gated { repo, url, has_token },
        (_, "RevisionNotFound") => {
            PullError::UnknownRevision { repo, revision: asked.name.revision().to_owned(), url }
        }
        (_, "RepoNotFound") => PullError::UnknownModel { host, repo, has_token },
        (StatusCode::UNAUTHORIZED, _) => match token {
            Some(token) => PullError::TokenRefused { host, token: token.source.clone() },
            None => PullError::UnknownModel { host, repo, has_token },
        },
        (StatusCode::NOT_FOUND, _) => match asked.file {
            Some(file) => PullError::unknown_file(repo, file, Vec::new()),
            None => PullError::UnknownModel { host, repo, has_token },
        },
        _ => PullError::NotAHub { host, reason: format!("it answers {}", words(status)) },
    })
}

/// URL of a model's page, for messages.
fn page(settings: &Settings, repo: &str) -> String {
    format!("{}/{repo}", settings.endpoint.as_str().trim_end_matches('/'))
}

/// Whether the failure may be temporary.
fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status)
}

fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// `429 (Too Many Requests)`
fn words(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} ({reason})", status.as_u16()),
        None => status.as_u16().to_string(),
    }
}
