//! The address a hub prints for its workers: `http://HOST:PORT/join#TOKEN`, or `https://HOST:PORT/join#TOKEN,ca=FINGERPRINT`.

use reqwest::Url;

use super::tls::Fingerprint;

/// A join URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinUrl {
    /// The hub's origin: blocks are fetched from it, and relative addresses are relative to it.
    pub hub: Url,
    /// The WebSocket's address.
    pub socket: Url,
    /// The join token. Never sent to another host.
    pub token: String,
    /// The fingerprint of the hub's certificate authority; without one, the system must trust the certificate.
    pub authority: Option<Fingerprint>,
}

impl JoinUrl {
    /// # Errors
    /// One sentence about what is wrong with `text`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut hub = Url::parse(text).map_err(|error| format!("`{text}` is not a URL: {error}."))?;
        let socket_scheme = match hub.scheme() {
            "http" => "ws",
            "https" => "wss",
            other => return Err(format!("A worker joins over http or https, not {other}: `{text}`.")),
        };
        let fragment = hub.fragment().unwrap_or_default();
        let (token, authority) = match fragment.split_once(",ca=") {
            Some((token, fingerprint)) => {
                (token, Some(fingerprint.parse().map_err(|error| format!("{error}."))?))
            }
            None => (fragment, None),
        };
        let token = token.to_owned();
        if token.is_empty() {
            return Err(format!(
                "`{text}` has no token: give the whole join URL that the hub prints, with its `#...`."
            ));
        }
        hub.set_fragment(None);
        hub.set_query(None);
        hub.set_path("/");
        let mut socket = hub.clone();
        let same_kind = socket.set_scheme(socket_scheme);
        debug_assert!(same_kind.is_ok(), "all four are special schemes");
        socket.set_path("/ws");
        Ok(Self { hub, socket, token, authority })
    }

    /// Whether others on the network can read what is sent, the token included.
    pub fn is_readable_on_the_way(&self) -> bool {
        let host = self.hub.host_str().unwrap_or_default();
        let ip = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        let is_this_machine = host == "localhost" || ip.is_ok_and(|ip| ip.to_canonical().is_loopback());
        self.hub.scheme() == "http" && !is_this_machine
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
        assert_eq!((url.token.as_str(), url.authority), ("s3cret", None));
    }

    #[test]
    fn takes_the_fingerprint_behind_the_token() {
        let hex = "ab".repeat(32);
        let url = JoinUrl::parse(&format!("https://desk.local:8443/join#s3cret,ca={hex}")).unwrap();
        assert_eq!(url.socket.as_str(), "wss://desk.local:8443/ws");
        assert_eq!(url.token, "s3cret");
        assert_eq!(url.authority, Some(hex.parse().unwrap()));
    }

    #[test]
    fn plain_http_is_readable_on_the_way_unless_it_stays_on_this_machine() {
        let readable = |url: &str| JoinUrl::parse(url).unwrap().is_readable_on_the_way();
        assert!(readable("http://192.168.1.2:8080/join#t") && readable("http://desk.local/join#t"));
        for safe in [
            "http://127.0.0.1:1/join#t",
            "http://[::1]:1/join#t",
            "http://localhost/join#t",
            "https://h/join#t",
        ] {
            assert!(!readable(safe), "{safe}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, word) in [
            ("nonsense", "not a URL"),
            ("http://h/join", "no token"),
            ("ftp://h/join#t", "ftp"),
            ("", "not a URL"),
            ("https://h/join#t,ca=12", "64 hexadecimal"),
            ("https://h/join#,ca=12", "64 hexadecimal"),
        ] {
            let error = JoinUrl::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
