//! Bounds the cost of prompts before the engine has them: bytes of request bodies, and use of the tokenizer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request};
use axum::http::header;
use futures_util::StreamExt;
use moex_engine::Client;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::MAX_BODY_BYTES;
use super::error::ApiError;
use super::work::{Size, Work};
use crate::pace::Pace;

/// Total bytes of request bodies being read or waiting for the tokenizer.
const MAX_BODIES_BYTES: usize = 16 * MAX_BODY_BYTES;
/// Most bytes of an oversized body that are read before it is refused.
const MAX_DISCARDED_BYTES: usize = 4 * MAX_BODY_BYTES;
/// A body of at most so many bytes is read without waiting for room, so that bodies which never come to an end keep out none
/// but large ones. The header of every connection may take four times as much.
const UNCOUNTED_BODY_BYTES: usize = 16 << 10;
/// A longer body waits among its like to be parsed and tokenised: this is a long conversation, of some ten thousand tokens.
const SMALL_BODY_BYTES: usize = 64 << 10;
/// Bytes a second at which all large bodies together are read, after the first of the largest size: reading and parsing them takes
/// processor time from the engine.
const BODY_BYTES_PER_SECOND: f64 = 8e6;
/// Values in the JSON of a body, more than a prompt of token ids has: a value takes up to a hundred times the bytes that it is
/// written with.
const MAX_JSON_VALUES: usize = 1 << 18;
/// How long a request waits for room for its body.
const ROOM_WAIT: Duration = Duration::from_secs(20);
/// Maximum prompt bytes per position of the context: several times what any language takes. A tokenizer uses about a
/// hundred times the bytes that it reads.
const MAX_BYTES_PER_TOKEN: usize = 16;

/// Unit in which bodies are counted.
const KIB: usize = 1024;

/// Limits on prompts.
pub(super) struct Prompts {
    bodies: Arc<Semaphore>,
    pace: Pace,
    work: Work,
}

/// Whose request it is, and its body's size and share of the byte limit; dropping it frees the share.
pub(super) struct Room {
    pub(super) client: Client,
    size: Size,
    #[expect(dead_code, reason = "held until it is dropped")]
    share: Option<OwnedSemaphorePermit>,
}

impl Default for Prompts {
    fn default() -> Self {
        let bodies = Arc::new(Semaphore::new(MAX_BODIES_BYTES / KIB));
        Self { bodies, pace: Pace::new(BODY_BYTES_PER_SECOND, MAX_BODY_BYTES), work: Work::default() }
    }
}

impl Prompts {
    /// Reads a request's body once there is room for it, and parses it: a large one once it is its turn, since megabytes of
    /// JSON take milliseconds.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        request: Request,
        parse: fn(&[u8]) -> Result<T, ApiError>,
    ) -> Result<(T, Room), ApiError> {
        let client = client_of(&request);
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let n_bytes =
            announced.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(MAX_BODY_BYTES);
        if n_bytes > MAX_BODY_BYTES {
            self.discard(request.into_body()).await;
            return Err(ApiError::body_too_large(MAX_BODY_BYTES));
        }
        let share = match n_bytes <= UNCOUNTED_BODY_BYTES {
            true => None,
            false => Some(self.room(n_bytes).await?),
        };
        let body = self.body(request.into_body(), n_bytes).await?;
        let size = if body.len() <= SMALL_BODY_BYTES { Size::Small } else { Size::Large };
        let room = Room { client, size, share };
        let parse = move |body: Bytes| check_values(&body).and_then(|()| parse(&body));
        let parsed = match size {
            Size::Small => parse(body),
            Size::Large => self.work(&room, move || parse(body)).await,
        };
        Ok((parsed?, room))
    }

    /// Reads a body of `n_bytes`, if it is as announced: the first part of it at once, the rest at the pace of all large bodies.
    async fn body(&self, body: Body, n_bytes: usize) -> Result<Bytes, ApiError> {
        let mut parts = body.into_data_stream();
        // Memory that is not written takes none, and what grows is copied.
        let mut bytes = Vec::with_capacity(n_bytes);
        while let Some(part) = parts.next().await {
            let part = part.map_err(|_| ApiError::malformed("The request body is incomplete."))?;
            bytes.extend_from_slice(&part);
            if bytes.len() > MAX_BODY_BYTES {
                return Err(ApiError::body_too_large(MAX_BODY_BYTES));
            }
            if bytes.len() > SMALL_BODY_BYTES {
                self.pace.has_read(part.len()).await;
            }
        }
        Ok(bytes.into())
    }

    /// Reads and discards the rest of the body, since a client cut off in the middle does not receive the error.
    async fn discard(&self, body: Body) {
        let mut parts = body.into_data_stream();
        let mut n_bytes = 0;
        while let Some(Ok(part)) = parts.next().await {
            n_bytes += part.len();
            if n_bytes > MAX_DISCARDED_BYTES {
                return;
            }
            self.pace.has_read(part.len()).await;
        }
    }

    /// Waits for room for so many bytes. Nothing is read meanwhile, so a waiting client costs only a connection. A client
    /// refused in the middle of a body rarely receives the error.
    async fn room(&self, n_bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let n_kib = u32::try_from(n_bytes.div_ceil(KIB)).unwrap_or(u32::MAX);
        let room = timeout(ROOM_WAIT, self.bodies.clone().acquire_many_owned(n_kib)).await;
        room.ok().and_then(Result::ok).ok_or_else(ApiError::queue_full)
    }

    /// Renders or tokenises a prompt once it is this request's turn; fails if too many wait already.
    pub(super) async fn work<T: Send + 'static>(
        &self,
        room: &Room,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.work.run(room.client, room.size, work).await
    }

    /// Does something for a request that may take as long as a large one, at the turn of large ones.
    pub(super) async fn work_as_large<T: Send + 'static>(
        &self,
        room: &Room,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.work.run(room.client, Size::Large, work).await
    }
}

/// Clients are told apart by their addresses: those behind one proxy are one.
fn client_of(request: &Request) -> Client {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let bits = |address: IpAddr| match address.to_canonical() {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    Client(peer.map_or(0, |peer| bits(peer.0.ip())))
}

/// Refuses to tokenise a prompt with more bytes than the context can hold.
pub(super) fn check_length(n_bytes: usize, context_tokens: usize) -> Result<(), ApiError> {
    match n_bytes <= context_tokens.saturating_mul(MAX_BYTES_PER_TOKEN) {
        true => Ok(()),
        false => Err(ApiError::too_long_to_count(n_bytes, context_tokens)),
    }
}

/// Whether a body has few enough values to be read.
pub(super) fn check_values(body: &[u8]) -> Result<(), ApiError> {
    match n_values(body, MAX_JSON_VALUES) <= MAX_JSON_VALUES {
        true => Ok(()),
        false => Err(ApiError::malformed(format!(
            "The request body has more than {MAX_JSON_VALUES} JSON values: send fewer or longer parts."
        ))),
    }
}

/// Counts what opens or separates values of JSON, outside of its strings, until it is more than `most`.
fn n_values(body: &[u8], most: usize) -> usize {
    let (mut n, mut in_string, mut is_escaped) = (0, false, false);
    for byte in body {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' => n += usize::from(!in_string),
            _ => {}
        }
        if n > most {
            break;
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn announcing(n_bytes: usize, body: &'static str) -> Request {
        Request::post("/").header(header::CONTENT_LENGTH, n_bytes).body(body.into()).unwrap()
    }

    async fn read(prompts: &Prompts, n_bytes: usize) -> Result<Room, ApiError> {
        let read = prompts.read(announcing(n_bytes, "x"), |body| Ok(body.len())).await;
        read.map(|(n_read, room)| {
            assert_eq!(n_read, 1);
            room
        })
    }

    #[tokio::test]
    async fn bodies_have_so_much_room_together() {
        let prompts = Prompts::default();
        let mut held = Vec::new();
        for _ in 0..MAX_BODIES_BYTES / MAX_BODY_BYTES {
            held.push(read(&prompts, MAX_BODY_BYTES).await.ok().unwrap());
        }
        let larger = UNCOUNTED_BODY_BYTES + 1;
        assert!(read(&prompts, larger).now_or_never().is_none(), "it waits");
        let small = read(&prompts, UNCOUNTED_BODY_BYTES).now_or_never();
        assert!(small.is_some_and(|read| read.is_ok()), "it waits for nobody");
        drop(held.pop());
        assert!(read(&prompts, larger).await.is_ok());
        let refused = read(&prompts, MAX_BODY_BYTES + 1).await.err().unwrap();
        assert_eq!(refused.status(), 413);
    }

    #[test]
    fn values_are_counted_outside_of_strings() {
        let body = br#"{"a":[1,2,{}],"b":"[{,\",,\\","c":[]}"#;
        assert_eq!(n_values(body, 100), 8);
        assert_eq!(n_values(body, 4), 5);
        let zeros = format!("[{}0]", "0,".repeat(MAX_JSON_VALUES));
        assert!(check_values(zeros.as_bytes()).is_err() && check_values(&zeros.as_bytes()[2..]).is_ok());
    }

    #[test]
    fn a_prompt_is_bounded_in_bytes() {
        assert!(check_length(2048 * MAX_BYTES_PER_TOKEN, 2048).is_ok());
        let refused = check_length(2048 * MAX_BYTES_PER_TOKEN + 1, 2048).err().unwrap();
        assert_eq!(refused.body()["error"]["code"], "context_length_exceeded");
    }
}
