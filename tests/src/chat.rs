//! A client of the hub's API: asks a case's conversation greedily, and receives the answer whole or streamed.

use anyhow::{Context, Result, bail, ensure};
use reqwest::Client;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::{Value, json};

use crate::hub::PATIENCE;

/// The key of hubs that other hosts can reach; other hubs need none.
pub const API_KEY: &str = "of-the-tests";

/// A client with the key.
pub fn client() -> Result<Client> {
    client_with(API_KEY)
}

/// A client with this key.
pub fn client_with(key: &str) -> Result<Client> {
    moex_worker::native::install_crypto();
    let key = HeaderValue::try_from(format!("Bearer {key}"))?;
    Ok(Client::builder().default_headers(HeaderMap::from_iter([(AUTHORIZATION, key)])).build()?)
}

/// The part of an answer that must not depend on who computed it. Its id and date may differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The reply.
    pub content: String,
    /// The thinking before it.
    pub reasoning: String,
    /// Names and arguments of the tools called.
    pub calls: Vec<(String, String)>,
}

/// Requests the answer in one piece.
pub async fn ask(http: &Client, url: &str, case: &Value) -> Result<Reply> {
    let answer: Value = post(http, url, &body(case)).await?.json().await?;
    let mut reply = Reply::default();
    reply.add(&answer["choices"][0]["message"]);
    Ok(reply)
}

/// Requests the answer as a stream; calls `on_piece` for each piece of text or call when it arrives.
pub async fn stream(http: &Client, url: &str, case: &Value, mut on_piece: impl FnMut()) -> Result<Reply> {
    let mut body = body(case);
    body["stream"] = true.into();
    let mut response = post(http, url, &body).await?;
    let mut reply = Reply::default();
    let mut unread = Vec::new();
    while let Some(bytes) = response.chunk().await? {
        unread.extend_from_slice(&bytes);
        while let Some(end) = unread.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = unread.drain(..end + 2).collect();
            let event = String::from_utf8(event).context("a stream of text")?;
            match event.trim_end().strip_prefix("data: ") {
                None => {}
                Some("[DONE]") => return Ok(reply),
                Some(chunk) => {
                    let chunk: Value = serde_json::from_str(chunk)?;
                    ensure!(chunk["error"].is_null(), "the stream ended with {chunk}");
                    if reply.add(&chunk["choices"][0]["delta"]) {
                        on_piece();
                    }
                }
            }
        }
    }
    bail!("the stream ended without [DONE]")
}

fn body(case: &Value) -> Value {
    json!({
        "messages": case["messages"],
        "tools": case["tools"],
        "chat_template_kwargs": {"enable_thinking": case["enable_thinking"]},
        "temperature": 0,
        "max_tokens": case["max_tokens"].as_u64().unwrap_or(200),
    })
}

async fn post(http: &Client, url: &str, body: &Value) -> Result<reqwest::Response> {
    let request = http.post(format!("{url}/v1/chat/completions")).json(body).timeout(PATIENCE);
    let response = request.send().await?;
    let status = response.status();
    if !status.is_success() {
        bail!("the hub answered {status}: {}", response.text().await.unwrap_or_default());
    }
    Ok(response)
}

impl Reply {
    /// Adds a message, or a delta of one; returns whether it had content.
    fn add(&mut self, message: &Value) -> bool {
        let text = |key: &str| message[key].as_str().unwrap_or_default();
        self.content.push_str(text("content"));
        self.reasoning.push_str(text("reasoning_content"));
        let calls = message["tool_calls"].as_array();
        for call in calls.into_iter().flatten() {
            let part = |key: &str| call["function"][key].as_str().unwrap_or_default().to_owned();
            self.calls.push((part("name"), part("arguments")));
        }
        !text("content").is_empty() || !text("reasoning_content").is_empty() || calls.is_some()
    }
}
