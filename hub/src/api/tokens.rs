//! `/tokenize`, `/detokenize`, `/apply-template` in the format of llama.cpp's server.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use moex_model::text::Special;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, token_id, wrong};
use super::prompts::check_length;
use super::render;
use super::request::{ChatRequest, object};
use super::state::Api;

/// `POST /tokenize`: `{"content"}` to `{"tokens"}`, with their texts if `with_pieces` is true.
pub(super) async fn tokenize(State(api): State<Arc<Api>>, request: Request) -> Result<Json<Value>, ApiError> {
    beside(api, request, |api, body| {
        let fields = Fields(body);
        let content = fields
            .string("content")?
            .ok_or_else(|| ApiError::invalid("content", "\"content\" is missing: it must be a string."))?;
        let adds_special = fields.boolean("add_special")?.unwrap_or(false);
        if fields.boolean("parse_special")? == Some(false) {
            return Err(ApiError::unsupported(
                "parse_special",
                "\"parse_special\" must be true: special tokens in a text are always parsed here.",
            ));
        }
        let with_pieces = fields.boolean("with_pieces")?.unwrap_or(false);
        check_length(content.len(), api.context_tokens()).map_err(|error| error.about("content"))?;
        let tokenizer = &api.text.tokenizer;
        let ids = if adds_special { tokenizer.encode_plain(content) } else { tokenizer.encode(content) };
        let ids = ids.map_err(|error| ApiError::invalid("content", format!("{error}.")))?;
        let piece = |id: &u32| {
            let bytes = tokenizer.bytes(*id, Special::Keep);
            // Bytes that are not valid characters by themselves are listed.
            let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text));
            json!({ "id": id, "piece": piece })
        };
        Ok(match with_pieces {
            true => json!({ "tokens": ids.iter().map(piece).collect::<Value>() }),
            false => json!({ "tokens": ids }),
        })
    })
    .await
}

/// `POST /detokenize`: `{"tokens"}` to `{"content"}`.
pub(super) async fn detokenize(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    beside(api, request, |api, body| {
        const WHAT: &str = "a list of token ids";
        let fields = Fields(body);
        let list = fields.list("tokens")?.ok_or_else(|| {
            ApiError::invalid("tokens", format!("\"tokens\" is missing: it must be {WHAT}."))
        })?;
        let n_ids = api.text.tokenizer.n_ids();
        let id = |value: &Value| {
            token_id(value).filter(|id| (*id as usize) < n_ids).ok_or_else(|| wrong("tokens", WHAT, value))
        };
        let ids: Vec<u32> = list.iter().map(id).collect::<Result<_, _>>()?;
        Ok(json!({ "content": api.text.tokenizer.decode(&ids, Special::Keep) }))
    })
    .await
}

/// `POST /apply-template`: a chat completion's body to `{"prompt"}`.
pub(super) async fn apply_template(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    beside(api, request, |api, body| {
        let chat = ChatRequest::of(body)?;
        api.check_model(chat.model.as_deref())?;
        let (prompt, _) = render::text(api, &chat)?;
        Ok(json!({ "prompt": prompt }))
    })
    .await
}

/// Reads a body and runs `work` once it is this request's turn.
async fn beside(
    api: Arc<Api>,
    request: Request,
    work: impl FnOnce(&Api, &serde_json::Map<String, Value>) -> Result<Value, ApiError> + Send + 'static,
) -> Result<Json<Value>, ApiError> {
    let (body, room) = api.prompts.read(request, object).await?;
    let own = api.clone();
    api.prompts.work(&room, move || work(&own, &body)).await.map(Json)
}
