//! Client of a running hub's API, for the commands that talk to one.

use std::error::Error;
use std::io;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use futures_util::StreamExt;
use moex_worker::native::{Trust, client_tls};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};

/// Longest line of an event stream; a longer one does not come from a hub.
const MAX_LINE_BYTES: usize = 1 << 20;

/// How long a hub may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Talks to one hub.
pub(super) struct HubClient {
    url: String,
    http: reqwest::Client,
    has_key: bool,
}

/// The hub needs an API key, or a different one.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyError {
    #[error("the hub at {0} asks for its API key: give it with --api-key or in MOEX_API_KEY")]
    Missing(String),
    #[error("the hub at {0} has another API key: give it with --api-key or in MOEX_API_KEY")]
    Wrong(String),
}

/// A piece of an answer as it arrives.
pub(super) enum Delta<'a> {
    Reasoning(&'a str),
    Content(&'a str),
    /// The tool's name and its arguments as JSON.
    Call(&'a str, &'a str),
}

/// How an answer ended.
#[derive(Debug, Default, Clone)]
pub(super) struct Ending {
    pub(super) finish_reason: String,
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    /// As the engine measured it; none for a single token.
    pub(super) tokens_per_second: Option<f64>,
}

impl HubClient {
    /// Creates a client of the hub at `url`, such as `http://127.0.0.1:8080`, with or without `/v1` at its end. An
    /// https hub must be trusted by `trust`.
    pub(super) fn new(url: &str, api_key: Option<&str>, trust: &Trust) -> anyhow::Result<Self> {
        let mut headers = HeaderMap::new();
        if let Some(key) = api_key {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .context("the API key holds characters that no HTTP header can carry")?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let url = base(url);
        // A hub is on this machine or this network, so the system's web proxy is not used.
        let http = reqwest::Client::builder().default_headers(headers).no_proxy();
        let http = http.connect_timeout(CONNECT_TIMEOUT);
        let http = if url.starts_with("https://") {
            http.tls_backend_preconfigured(client_tls(trust).map_err(anyhow::Error::msg)?)
        } else {
            // Over plain http, a system without certificate authorities is no problem.
            http.tls_certs_only([])
        };
        Ok(Self { url, http: http.build()?, has_key: api_key.is_some() })
    }

    /// GETs JSON.
    pub(super) async fn json(&self, path: &str) -> anyhow::Result<Value> {
        let response = self.http.get(self.at(path)).send().await.map_err(|error| self.unreachable(&error))?;
        let accepted = self.accepted(response).await?;
        accepted.json().await.with_context(|| format!("{} does not answer like a moex hub", self.url))
    }

    /// POSTs JSON, and returns the JSON that comes back.
    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let sent = self.http.post(self.at(path)).json(body).send().await;
        let accepted = self.accepted(sent.map_err(|error| self.unreachable(&error))?).await?;
        accepted.json().await.with_context(|| format!("{} does not answer like a moex hub", self.url))
    }

    /// The hub's URL, without a path.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Name of the model that the hub serves.
    pub(super) async fn model(&self) -> anyhow::Result<String> {
        let models = self.json("/v1/models").await?;
        let name = models["data"][0]["id"].as_str().map(str::to_owned);
        name.with_context(|| format!("{} does not answer like a moex hub: it names no model", self.url))
    }

    /// Requests a chat completion and passes on its pieces as they arrive. `request` is the body without `stream`.
    pub(super) async fn chat(
        &self,
        mut request: Value,
        mut each: impl FnMut(Delta<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Ending> {
        request["stream"] = json!(true);
        request["stream_options"] = json!({ "include_usage": true });
        let sent = self.http.post(self.at("/v1/chat/completions")).json(&request).send().await;
        let response = self.accepted(sent.map_err(|error| self.unreachable(&error))?).await?;
        let mut ending = Ending::default();
        let mut lines = Lines::default();
        let mut bytes = response.bytes_stream();
        while let Some(part) = bytes.next().await {
            lines
                .pending
                .extend_from_slice(&part.context("the hub closed the connection during the answer")?);
            while let Some(line) = lines.next()? {
                let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
                if data == "[DONE]" {
                    return Ok(ending);
                }
                let chunk: Value =
                    serde_json::from_str(data).context("the hub sent an event that is not JSON")?;
                ending.read(&chunk, &mut each)?;
            }
        }
        bail!("the hub closed the connection before the answer ended")
    }

    /// Returns the response, or the error with which the hub refuses.
    async fn accepted(&self, response: Response) -> anyhow::Result<Response> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status == StatusCode::UNAUTHORIZED {
            let error = if self.has_key { KeyError::Wrong } else { KeyError::Missing };
            return Err(error(self.url.clone()).into());
        }
        let body: Value = response.json().await.unwrap_or_default();
        match body["error"]["message"].as_str() {
            Some(message) => bail!("{message}"),
            None => bail!("{} answered {status}, which a moex hub does not", self.url),
        }
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn unreachable(&self, error: &reqwest::Error) -> anyhow::Error {
        if error.is_builder() {
            return anyhow!(
                "{:?} is not the address of a hub: write it like http://127.0.0.1:8080",
                self.url
            );
        }
        if let Some(tls) = tls_error(error) {
            return anyhow!(
                "{} is not trusted: {tls} (--ca names a file with its certificate authority, --fingerprint that one's SHA-256)",
                self.url
            );
        }
        if error.is_connect() {
            return anyhow!(
                "no hub answers at {}: start one with `moex serve`, or name another with --url",
                self.url
            );
        }
        anyhow!("the hub at {} did not answer: {error}", self.url)
    }
}

/// Normalises the hub's URL; paths are appended to it.
fn base(url: &str) -> String {
    let url = url.trim().trim_end_matches('/');
    let url = url.strip_suffix("/v1").unwrap_or(url).trim_end_matches('/');
    if url.contains("://") { url.to_owned() } else { format!("http://{url}") }
}

/// The TLS error behind a failed connection, if there is one.
fn tls_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        if let Some(tls) = error.downcast_ref() {
            return Some(tls);
        }
        // An I/O error's `source` skips the error that it wraps.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = wrapped.map_or_else(|| error.source(), |wrapped| Some(wrapped));
    }
    None
}

impl Ending {
    /// Tokens and rate for the user: "12 tokens, 81.5 tokens/s".
    pub(super) fn speed(&self) -> String {
        let tokens = self.completion_tokens;
        let unit = if tokens == 1 { "token" } else { "tokens" };
        match self.tokens_per_second {
            Some(rate) => format!("{tokens} {unit}, {rate:.1} tokens/s"),
            None => format!("{tokens} {unit}"),
        }
    }

    fn read(
        &mut self,
        chunk: &Value,
        each: &mut impl FnMut(Delta<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if let Some(message) = chunk["error"]["message"].as_str() {
            bail!("{message}");
        }
        if let Some(usage) = chunk["usage"].as_object() {
            let tokens = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or(0);
            self.prompt_tokens = tokens("prompt_tokens");
            self.completion_tokens = tokens("completion_tokens");
        }
        if let Some(rate) = chunk["timings"]["predicted_per_second"].as_f64() {
            self.tokens_per_second = Some(rate);
        }
        let choice = &chunk["choices"][0];
        if let Some(reason) = choice["finish_reason"].as_str() {
            reason.clone_into(&mut self.finish_reason);
        }
        let delta = &choice["delta"];
        if let Some(text) = delta["reasoning_content"].as_str() {
            each(Delta::Reasoning(text))?;
        }
        if let Some(text) = delta["content"].as_str() {
            each(Delta::Content(text))?;
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let field = |name: &str| call["function"][name].as_str().unwrap_or_default();
            each(Delta::Call(field("name"), field("arguments")))?;
        }
        Ok(())
    }
}

/// Cuts a byte stream into lines.
#[derive(Default)]
struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Returns the next complete line, without its end.
    fn next(&mut self) -> anyhow::Result<Option<String>> {
        let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') else {
            if self.pending.len() > MAX_LINE_BYTES {
                bail!("the hub sent a line longer than {MAX_LINE_BYTES} bytes");
            }
            return Ok(None);
        };
        let line: Vec<u8> = self.pending.drain(..=end).collect();
        Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_end_as_other_clients_write_it() {
        for url in [
            "http://h:8080",
            "http://h:8080/",
            "http://h:8080/v1",
            "http://h:8080/v1/",
            "h:8080",
            "h:8080/v1",
        ] {
            assert_eq!(base(url), "http://h:8080", "{url}");
        }
        assert_eq!(base("https://h/moex/v1/"), "https://h/moex");
    }

    #[test]
    fn lines_may_come_in_any_pieces() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        for part in ["da", "ta: é\n", "\ndata", ": b\n"] {
            lines.pending.extend_from_slice(part.as_bytes());
            while let Some(line) = lines.next().unwrap() {
                seen.push(line);
            }
        }
        assert_eq!(seen, ["data: é", "", "data: b"]);
    }

    #[test]
    fn the_speed_is_the_engines() {
        let mut ending = Ending::default();
        let last = json!({
            "choices": [], "usage": { "prompt_tokens": 9, "completion_tokens": 12 },
            "timings": { "predicted_n": 12, "predicted_per_second": 81.52 },
        });
        ending.read(&last, &mut |_| Ok(())).unwrap();
        assert_eq!(ending.speed(), "12 tokens, 81.5 tokens/s");
        assert_eq!(Ending { completion_tokens: 1, ..Ending::default() }.speed(), "1 token");
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut lines = Lines { pending: vec![b'x'; MAX_LINE_BYTES + 1] };
        assert!(lines.next().is_err());
    }
}
