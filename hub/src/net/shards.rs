//! `GET /shards/{file}`: serves packed experts by range to anyone with the join token.

use std::ops::Range;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;

use super::served_bytes::WorkerBytes;
use super::shared::Shared;

/// Bytes passed to a connection at a time: pages of the mapped file, read as they are sent.
const CHUNK_BYTES: usize = 256 << 10;
/// Header with a worker's id, used only for counting.
const WORKER_HEADER: &str = "x-moex-worker";

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new().route("/shards/{file}", get(serve)).with_state(shared)
}

async fn serve(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    if !shared.is_admitted(&headers) {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, "weights are for workers with the join token")
            .into_response();
    }
    let Some(file) = shared.store.file(&name) else {
        return (StatusCode::NOT_FOUND, format!("there is no shard {name}")).into_response();
    };
    let asked_version = query.as_deref().and_then(|query| query.strip_prefix("v="));
    if asked_version.is_some_and(|version| version != file.version) {
        let message = format!("the shard {name} has changed: join again");
        return (StatusCode::NOT_FOUND, message).into_response();
    }
    let etag = format!("\"{}\"", file.version);
    // Content under a URL with a version never changes.
    let caching =
        if asked_version.is_some() { "private, max-age=31536000, immutable" } else { "private, no-cache" };
    let common = [
        (header::ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (header::CACHE_CONTROL, HeaderValue::from_static(caching)),
        (header::ETAG, HeaderValue::from_str(&etag).unwrap_or(HeaderValue::from_static("\"\""))),
    ];
    if text(&headers, header::IF_NONE_MATCH).is_some_and(|known| known == etag) {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    let length = file.bytes.len();
    let is_same = text(&headers, header::IF_RANGE).is_none_or(|known| known == etag);
    let range = text(&headers, header::RANGE).filter(|_| is_same);
    let (status, range) = match range.map_or(RangeRequest::Whole, |range| parse_range(range, length)) {
        RangeRequest::Whole => (StatusCode::OK, 0..length),
        RangeRequest::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        RangeRequest::Unsatisfiable => {
            let content_range = [(header::CONTENT_RANGE, format!("bytes */{length}"))];
            return (StatusCode::RANGE_NOT_SATISFIABLE, common, content_range).into_response();
        }
    };
    let worker = text(&headers, WORKER_HEADER).and_then(|id| id.parse().ok());
    let counter = worker.and_then(|worker| shared.served.of_worker(worker));
    let body = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, range.len().to_string()),
    ];
    let content_range = (status == StatusCode::PARTIAL_CONTENT)
        .then(|| [(header::CONTENT_RANGE, format!("bytes {}-{}/{length}", range.start, range.end - 1))]);
    let chunks = chunks(shared.clone(), file.bytes.slice(range), counter);
    let mut response = (status, common, body, Body::from_stream(chunks)).into_response();
    for (name, value) in content_range.into_iter().flatten() {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// The bytes in chunks, counted as each is taken for sending.
fn chunks(
    shared: Arc<Shared>,
    mut bytes: Bytes,
    worker: Option<WorkerBytes>,
) -> impl futures_util::Stream<Item = Result<Bytes, std::convert::Infallible>> {
    futures_util::stream::iter(std::iter::from_fn(move || {
        let chunk = bytes.split_to(bytes.len().min(CHUNK_BYTES));
        shared.served.count(chunk.len() as u64, worker.as_ref());
        (!chunk.is_empty()).then_some(Ok(chunk))
    }))
}

/// The part of a file that a Range header asks for.
#[derive(Debug, PartialEq, Eq)]
enum RangeRequest {
    Whole,
    Part(Range<usize>),
    Unsatisfiable,
}

/// Parses one range of bytes (RFC 9110, section 14): `bytes=FIRST-LAST`, `bytes=FIRST-` or `bytes=-LAST_N`. Anything
/// else is ignored, including lists of ranges.
fn parse_range(value: &str, length: usize) -> RangeRequest {
    let Some((first, last)) = value.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return RangeRequest::Whole;
    };
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        // A number too large to represent is beyond the end of every file.
        is_number.then(|| digits.parse().unwrap_or(usize::MAX))
    };
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(length),
        (Some(first), None) if last.is_empty() => first..length,
        (None, Some(last_n)) if first.is_empty() => length - last_n.min(length)..length,
        _ => return RangeRequest::Whole,
    };
    if range.start >= range.end { RangeRequest::Unsatisfiable } else { RangeRequest::Part(range) }
}

fn text(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_the_rfc() {
        for (value, expected) in [
            ("bytes=0-0", RangeRequest::Part(0..1)),
            ("bytes=2-4", RangeRequest::Part(2..5)),
            ("bytes=2-", RangeRequest::Part(2..10)),
            ("bytes=-3", RangeRequest::Part(7..10)),
            ("bytes=-99", RangeRequest::Part(0..10)),
            ("bytes=4-99", RangeRequest::Part(4..10)),
            ("bytes=4-99999999999999999999999", RangeRequest::Part(4..10)),
            ("bytes=10-", RangeRequest::Unsatisfiable),
            ("bytes=99999999999999999999999-", RangeRequest::Unsatisfiable),
            ("bytes=-0", RangeRequest::Unsatisfiable),
            ("bytes=4-2", RangeRequest::Whole),
            ("bytes=0-1,3-4", RangeRequest::Whole),
            ("bytes=-", RangeRequest::Whole),
            ("bytes=+1-2", RangeRequest::Whole),
            ("items=0-1", RangeRequest::Whole),
        ] {
            assert_eq!(parse_range(value, 10), expected, "{value}");
        }
    }
}
