//! The address a hub prints for its workers: `http://HOST:PORT/join#TOKEN`.

use reqwest::Url;

/// A join URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinUrl {
    /// Where blocks are fetched from, and what relative addresses are relative to.
    pub hub: Url,
    /// The WebSocket's address.
    pub socket: Url,
    /// What the hub admits workers by. Never sent to another host.
    pub token: String,
}

impl JoinUrl {
    /// # Errors
    /// One sentence about what is wrong with `text`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut hub = Url::parse(text).map_err(|error| format!("`{text}` is no URL: {error}."))?;
        if hub.scheme() != "http" {
            return Err(format!("A worker joins over http, not {}: `{text}`.", hub.scheme()));
        }
        let token = hub.fragment().unwrap_or_default().to_owned();
        if token.is_empty() {
            return Err(format!(
                "`{text}` has no token: give the whole join URL that the hub prints, with its `#...`."
            ));
        }
        hub.set_fragment(None);
        hub.set_query(None);
        hub.set_path("/");
        let mut socket = hub.clone();
        let plain = socket.set_scheme("ws");
        debug_assert!(plain.is_ok(), "http and ws are both special schemes");
        socket.set_path("/ws");
        Ok(Self { hub, socket, token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_url_that_a_hub_prints() {
        let url = JoinUrl::parse("http://127.0.0.1:8080/join#s3cret").unwrap();
        assert_eq!(url.hub.as_str(), "http://127.0.0.1:8080/");
        assert_eq!(url.socket.as_str(), "ws://127.0.0.1:8080/ws");
        assert_eq!(url.token, "s3cret");
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, word) in
            [("nonsense", "no URL"), ("http://h/join", "no token"), ("ftp://h/join#t", "ftp"), ("", "no URL")]
        {
            let error = JoinUrl::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
