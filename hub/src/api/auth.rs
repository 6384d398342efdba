//! The API key: `Authorization: Bearer KEY`, or `x-api-key: KEY` as Anthropic's clients send it.

use std::fmt;

use axum::http::{HeaderMap, header};

use super::error::ApiError;

/// An API key, kept as its hash: it is compared in constant time and never printed.
#[derive(Clone, Copy)]
pub struct ApiKey(blake3::Hash);

impl ApiKey {
    /// Creates a key from its text.
    pub fn new(text: &str) -> Self {
        Self(blake3::hash(text.as_bytes()))
    }

    /// Checks that the request carries this key.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
        let given = given.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()));
        // The crate documents that equality of BLAKE3 hashes is constant-time.
        if given.is_some_and(|given| blake3::hash(given.as_bytes()) == self.0) {
            return Ok(());
        }
        Err(ApiError::unauthorized())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// The credentials of the scheme `Bearer`, whose name is case-insensitive.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, credentials) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| credentials.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_itself_passes() {
        let key = ApiKey::new("secret");
        let passes = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            key.check(&headers).is_ok()
        };
        let own = |value: &str| {
            let headers = [("x-api-key".parse().unwrap(), value.parse().unwrap())].into_iter().collect();
            key.check(&headers).is_ok()
        };
        assert!(own("secret") && !own("secre"));
        assert!(passes("Bearer secret"));
        assert!(passes("bearer  secret"));
        assert!(!passes("Bearer secre"));
        assert!(!passes("Bearer"));
        assert!(!passes("Basic secret"));
        assert!(key.check(&HeaderMap::new()).is_err());
        assert!(!format!("{key:?}").contains("secret"));
    }
}
