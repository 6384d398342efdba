//! `GET /api/join`: the links by which machines join the swarm, each with its QR code; with a name, those of an invitation for
//! one of them.
//!
//! A link contains the join token, so only this response contains it, never a path or query that a server or proxy
//! logs; in the link it is the fragment, which browsers do not send.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::uri::Authority;
use axum::http::{Uri, header};
use axum::response::IntoResponse;
use qrcode::QrCode;
use qrcode::render::svg;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::invitations;
use super::state::Api;

/// Longest origin: a host name has at most 253 bytes.
const MAX_ORIGIN_BYTES: usize = 300;

/// Query parameters of the visitor.
#[derive(Deserialize)]
pub(super) struct JoinQuery {
    /// Origin of the visitor's page; only the visitor knows whether a proxy before the hub speaks TLS.
    origin: Option<String>,
    /// Name of an invitation, whose links are wanted instead of everyone's.
    name: Option<String>,
}

/// A link to join by.
#[derive(Serialize)]
struct Link {
    url: String,
    /// Whether other machines can open it: `localhost` and loopback addresses are for this one alone.
    reachable: bool,
    /// The link as an SVG, for phones; none for a link that they cannot open.
    qr_svg: Option<String>,
}

/// Handler: returns the link under the visitor's origin first, then those under the hub's other addresses.
pub(super) async fn join(
    State(api): State<Arc<Api>>,
    Query(asked): Query<JoinQuery>,
) -> Result<impl IntoResponse, ApiError> {
    if asked.origin.as_deref().is_some_and(|origin| !is_origin(origin)) {
        return Err(ApiError::invalid("origin", "origin must be like http://host:port."));
    }
    let mut origins: Vec<&str> = asked.origin.as_deref().into_iter().collect();
    for origin in api.origins() {
        if !origins.contains(&origin.as_str()) {
            origins.push(origin);
        }
    }
    let invitation = asked.name.map(|name| invitations::token(&api, &name)).transpose()?;
    let token = invitation.as_deref().unwrap_or_else(|| api.join_token());
    let links: Vec<Link> = origins.into_iter().map(|origin| Link::new(origin, token)).collect();
    let body = Json(serde_json::json!({ "token": token, "links": links }));
    Ok(([(header::CACHE_CONTROL, "no-store")], body))
}

impl Link {
    fn new(origin: &str, token: &str) -> Self {
        let url = format!("{origin}/join#{token}");
        let reachable = !is_loopback(origin);
        let qr_svg = reachable.then(|| picture(&url)).flatten();
        Self { url, reachable, qr_svg }
    }
}

/// None if the link is too long for a QR code, which origins and tokens within their limits never are.
fn picture(url: &str) -> Option<String> {
    let code = QrCode::new(url).ok()?;
    let drawn = code.render::<svg::Color<'_>>().module_dimensions(1, 1).build();
    // An XML declaration is not allowed within a page.
    drawn.split_once("?>").map(|(_, svg)| svg.to_owned())
}

/// `http://host` or `https://host:port`, and nothing after it.
fn is_origin(text: &str) -> bool {
    let parsed: Option<Uri> = (text.len() <= MAX_ORIGIN_BYTES).then(|| text.parse().ok()).flatten();
    parsed.is_some_and(|uri| {
        let authority = uri.authority().map(Authority::as_str).unwrap_or_default();
        let scheme = uri.scheme_str().unwrap_or_default();
        matches!(scheme, "http" | "https")
            && !authority.contains('@')
            && text.len() == scheme.len() + "://".len() + authority.len()
    })
}

fn is_loopback(origin: &str) -> bool {
    let uri: Uri = origin.parse().unwrap_or_default();
    is_loopback_host(uri.host().unwrap_or_default())
}

/// Whether a host names this machine itself.
pub(super) fn is_loopback_host(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_and_an_authority() {
        for good in ["http://10.0.0.7:8080", "https://hub.local", "http://[fe80::1]:8080", "http://LOCALHOST"]
        {
            assert!(is_origin(good), "{good}");
        }
        let long = format!("http://{}", "a".repeat(MAX_ORIGIN_BYTES));
        for bad in [
            "",
            "null",
            "10.0.0.7:80",
            "ftp://a",
            "http://",
            "http://a/",
            "http://a/b#c",
            "http://u@a",
            "http://a b",
            &long,
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
    }

    #[test]
    fn a_link_that_phones_can_open_has_a_picture() {
        let link = Link::new("http://10.0.0.7:8080", "t0ken");
        assert_eq!(link.url, "http://10.0.0.7:8080/join#t0ken");
        assert!(link.qr_svg.is_some_and(|svg| svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>")));
        for own in ["http://localhost:8080", "http://127.0.0.1", "https://[::1]:8443"] {
            let link = Link::new(own, "t0ken");
            assert!(!link.reachable && link.qr_svg.is_none(), "{own}");
        }
    }
}
