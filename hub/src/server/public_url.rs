//! The URL by which others reach a hub through a proxy.

use std::fmt;
use std::str::FromStr;

use axum::http::Uri;
use axum::http::uri::{Authority, Scheme};

/// `http` or `https`, a host and optionally a port: `https://moex.example`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl {
    scheme: Scheme,
    authority: Authority,
}

impl PublicUrl {
    /// As written in a Host header.
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// Whether the scheme is `https`.
    pub fn is_https(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// Whether this is the Host header of a browser: the scheme's default port may be omitted.
    pub(super) fn is_host(&self, host: &str) -> bool {
        self.split(host).is_some_and(|(name, port)| {
            name.eq_ignore_ascii_case(self.authority.host()) && port == self.port(&self.authority)
        })
    }

    /// Whether this is the Origin header of a browser.
    pub(super) fn is_origin(&self, origin: &str) -> bool {
        let authority =
            origin.split_once("://").filter(|(scheme, _)| scheme.eq_ignore_ascii_case(self.scheme.as_str()));
        authority.is_some_and(|(_, authority)| self.is_host(authority))
    }

    fn split(&self, host: &str) -> Option<(String, u16)> {
        let authority: Authority = host.parse().ok()?;
        Some((authority.host().to_owned(), self.port(&authority)))
    }

    fn port(&self, authority: &Authority) -> u16 {
        authority.port_u16().unwrap_or(if self.is_https() { 443 } else { 80 })
    }
}

/// Without a slash at the end.
impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)
    }
}

impl FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not the address of a hub: write it as https://HOST or https://HOST:PORT");
        let parts = text.parse::<Uri>().map_err(|_| wrong())?.into_parts();
        let is_bare = parts.path_and_query.is_none_or(|path| path == "/");
        let has_user = |authority: &Authority| authority.as_str().contains('@');
        match (parts.scheme, parts.authority) {
            (Some(scheme), Some(authority))
                if is_bare
                    && !has_user(&authority)
                    && (scheme == Scheme::HTTP || scheme == Scheme::HTTPS) =>
            {
                Ok(Self { scheme, authority })
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_url_is_an_origin() {
        for (text, shown) in [
            ("https://moex.example", "https://moex.example"),
            ("https://moex.example:8443/", "https://moex.example:8443"),
            ("http://[::1]:80", "http://[::1]:80"),
        ] {
            assert_eq!(text.parse::<PublicUrl>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "moex.example",
            "https://",
            "ftp://moex.example",
            "https://moex.example/hub",
            "https://a@b",
            "/",
        ] {
            let error = text.parse::<PublicUrl>().unwrap_err();
            assert!(error.contains("https://HOST"), "{error}");
        }
    }

    #[test]
    fn a_port_that_goes_without_saying_may_be_said() {
        let url: PublicUrl = "https://Moex.example".parse().unwrap();
        assert!(url.is_host("moex.example") && url.is_host("moex.example:443"));
        assert!(!url.is_host("moex.example:80") && !url.is_host("evil.example") && !url.is_host(""));
        assert!(url.is_origin("https://moex.example") && !url.is_origin("http://moex.example"));
        assert!(!url.is_origin("null") && !url.is_origin("https://moex.example.evil.example"));
    }
}
