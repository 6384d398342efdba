//! Bounds the cost of prompts before the engine has them: bytes of request bodies, and use of the tokenizer.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::MAX_BODY_BYTES;
use super::error::ApiError;

/// Total bytes of request bodies being read or waiting for the tokenizer.
const MAX_BODIES_BYTES: usize = 16 * MAX_BODY_BYTES;
/// Most bytes of an oversized body that are read before it is refused.
const MAX_DISCARDED_BYTES: usize = 4 * MAX_BODY_BYTES;
/// How long a request waits for room for its body.
const ROOM_WAIT: Duration = Duration::from_secs(20);
/// Most requests that wait for the tokenizer.
const MAX_WAITING_PROMPTS: usize = 256;
/// Prompts tokenised at the same time.
const TOKENIZED_AT_ONCE: usize = 2;
/// Maximum prompt bytes per position of the context: several times what any language takes. A tokenizer uses about a
/// hundred times the bytes that it reads.
const MAX_BYTES_PER_TOKEN: usize = 16;

/// Unit in which bodies are counted.
const KIB: usize = 1024;

/// Limits on prompts.
pub(super) struct Prompts {
    bodies: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    turns: Arc<Semaphore>,
}

/// A body's share of the byte limit; dropping it frees the share.
pub(super) struct Room(#[expect(dead_code, reason = "held until it is dropped")] OwnedSemaphorePermit);

/// A turn at the tokenizer; dropping it ends the turn.
pub(super) struct Turn(#[expect(dead_code, reason = "held until it is dropped")] OwnedSemaphorePermit);

impl Default for Prompts {
    fn default() -> Self {
        let of = |n| Arc::new(Semaphore::new(n));
        Self {
            bodies: of(MAX_BODIES_BYTES / KIB),
            waiting: of(MAX_WAITING_PROMPTS),
            turns: of(TOKENIZED_AT_ONCE),
        }
    }
}

impl Prompts {
    /// Reads a request's body once there is room for it.
    pub(super) async fn read(&self, request: Request) -> Result<(Bytes, Room), ApiError> {
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let n_bytes =
            announced.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(MAX_BODY_BYTES);
        if n_bytes > MAX_BODY_BYTES {
            discard(request.into_body()).await;
            return Err(ApiError::body_too_large(MAX_BODY_BYTES));
        }
        let n_kib = u32::try_from(n_bytes.div_ceil(KIB)).unwrap_or(u32::MAX);
        // Nothing is read while it waits, so a waiting client costs only a connection. A client refused in the middle
        // of a body rarely receives the error.
        let room = timeout(ROOM_WAIT, self.bodies.clone().acquire_many_owned(n_kib)).await;
        let Ok(Ok(room)) = room else { return Err(ApiError::queue_full()) };
        let body = Bytes::from_request(request, &()).await.map_err(|rejection| refused_body(&rejection))?;
        Ok((body, Room(room)))
    }

    /// Waits for a turn at the tokenizer; fails if too many wait already.
    pub(super) async fn turn(&self) -> Result<Turn, ApiError> {
        let _waits = self.waiting.try_acquire().map_err(|_| ApiError::queue_full())?;
        let turn = self.turns.clone().acquire_owned().await;
        turn.map(Turn).map_err(|_| ApiError::queue_full())
    }
}

/// Refuses to tokenise a prompt with more bytes than the context can hold.
pub(super) fn check_length(n_bytes: usize, context_tokens: usize) -> Result<(), ApiError> {
    match n_bytes <= context_tokens.saturating_mul(MAX_BYTES_PER_TOKEN) {
        true => Ok(()),
        false => Err(ApiError::too_long_to_count(n_bytes, context_tokens)),
    }
}

/// Reads and discards the rest of the body, since a client cut off in the middle does not receive the error.
async fn discard(body: Body) {
    let mut data = body.into_data_stream();
    let mut n_bytes = 0;
    while let Some(Ok(part)) = data.next().await {
        n_bytes += part.len();
        if n_bytes > MAX_DISCARDED_BYTES {
            return;
        }
    }
}

/// The error for a body that was not read.
fn refused_body(rejection: &BytesRejection) -> ApiError {
    if rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE {
        return ApiError::body_too_large(MAX_BODY_BYTES);
    }
    ApiError::malformed("The request body is incomplete.")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn announcing(n_bytes: usize, body: &'static str) -> Request {
        Request::post("/").header(header::CONTENT_LENGTH, n_bytes).body(body.into()).unwrap()
    }

    #[tokio::test]
    async fn bodies_have_so_much_room_together() {
        let prompts = Prompts::default();
        let mut held = Vec::new();
        while let Some(Ok((_, room))) = prompts.read(announcing(MAX_BODY_BYTES, "x")).now_or_never() {
            held.push(room);
        }
        assert_eq!(held.len(), MAX_BODIES_BYTES / MAX_BODY_BYTES);
        assert!(prompts.read(announcing(1, "x")).now_or_never().is_none(), "it waits");
        drop(held.pop());
        assert!(prompts.read(announcing(1, "x")).await.is_ok());
        let refused = prompts.read(announcing(MAX_BODY_BYTES + 1, "x")).await.err().unwrap();
        assert_eq!(refused.status(), 413);
    }

    #[tokio::test]
    async fn a_turn_at_the_tokenizer_is_waited_for_by_so_many() {
        let prompts = Prompts::default();
        let turns = [prompts.turn().await.ok().unwrap(), prompts.turn().await.ok().unwrap()];
        let mut waiting: Vec<_> = (0..MAX_WAITING_PROMPTS).map(|_| Box::pin(prompts.turn())).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        assert!(prompts.turn().await.is_err());
        drop(turns);
        assert!(waiting.remove(0).await.is_ok());
    }

    #[test]
    fn a_prompt_is_bounded_in_bytes() {
        assert!(check_length(2048 * MAX_BYTES_PER_TOKEN, 2048).is_ok());
        let refused = check_length(2048 * MAX_BYTES_PER_TOKEN + 1, 2048).err().unwrap();
        assert_eq!(refused.body()["error"]["code"], "context_length_exceeded");
    }
}
