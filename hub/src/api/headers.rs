//! Response headers of the API: the request's id and the ignored fields.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use super::generate::random;

/// Id of a request, to find it in the logs of both sides.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Unknown fields of the request's body.
pub(super) const IGNORED: HeaderName = HeaderName::from_static("x-moex-ignored");

/// Longest id that is sent back.
const MAX_ID_BYTES: usize = 128;
/// Most fields that are named, and the longest name.
const MAX_NAMED: usize = 16;
const MAX_NAME_BYTES: usize = 64;

/// Returns the client's own id in the response, or a generated one.
pub(super) async fn name_request(request: Request, next: Next) -> Response {
    let own = request.headers().get(&REQUEST_ID).filter(|id| {
        (1..=MAX_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    });
    let id = own.cloned().or_else(|| {
        let id = format!("req_{:016x}", random().ok()?);
        HeaderValue::try_from(id).ok()
    });
    let mut response = next.run(request).await;
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Names the ignored fields in a header, if there are any.
pub(super) fn with_ignored(mut response: Response, names: &[String]) -> Response {
    if let Some(value) = ignored(names) {
        response.headers_mut().insert(IGNORED, value);
    }
    response
}

/// The names as a list, reduced to characters that a header allows.
fn ignored(names: &[String]) -> Option<HeaderValue> {
    let shown = |name: &String| -> String {
        let plain = |c: char| if c.is_ascii_graphic() && c != ',' { c } else { '?' };
        name.chars().take(MAX_NAME_BYTES).map(plain).collect()
    };
    let mut list: Vec<String> = names.iter().take(MAX_NAMED).map(shown).collect();
    if names.len() > MAX_NAMED {
        list.push(format!("and {} more", names.len() - MAX_NAMED));
    }
    if list.is_empty() { None } else { HeaderValue::try_from(list.join(", ")).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_names_make_a_header() {
        let said = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            ignored(&names).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(said(&[]), None);
        assert_eq!(said(&["a", "b"]).as_deref(), Some("a, b"));
        assert_eq!(said(&["é\r\nx: y", ""]).as_deref(), Some("???x:?y, "));
        let many = vec!["x".repeat(1000); 100];
        let many = ignored(&many).unwrap();
        assert!(many.len() < 1200 && many.to_str().unwrap().ends_with("and 84 more"));
    }
}
