//! The page on the plain http port: which certificate to trust, how to trust it on each system, and how to join without
//! it.
//!
//! Anyone can load it, so it contains no secret. The QR code's URL carries the token after `#`, which no browser sends;
//! the page's script passes it on. The page is readable without scripts.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// The page; a value takes the place of each `{{NAME}}`.
const TEMPLATE: &str = include_str!("page/setup.html");
/// The usual policy, plus permission for the script to check whether the https port is trusted.
const POLICY: &str = "default-src 'self'; script-src 'self' 'sha256-LF4JLzp6/Wd6vMHFAM2StMdq0/0lQDpm0meCfGPNlzA='; \
                      connect-src 'self' https:; object-src 'none'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Systems with instructions on the page: section name, display name, and substrings of the user agent, in search
/// order.
const SYSTEMS: [(&str, &str, &[&str]); 6] = [
    ("firefox", "Firefox on a computer", &["Firefox/"]),
    ("ios", "iPhone or iPad", &["iPhone", "iPad", "iPod"]),
    ("android", "Android", &["Android"]),
    ("windows", "Windows", &["Windows"]),
    ("macos", "Mac", &["Macintosh", "Mac OS X"]),
    ("linux", "Linux or ChromeOS", &["Linux", "CrOS", "X11"]),
];

/// Values for the page.
#[derive(Clone, Debug)]
pub struct PageValues {
    /// Port of the https listener.
    pub https_port: u16,
    /// The authority's certificate in DER.
    pub certificate: Vec<u8>,
    /// The certificate in PEM.
    pub pem: String,
    /// Fingerprint in pairs of digits.
    pub fingerprint: String,
    /// Name under which systems list the authority.
    pub name: String,
    /// Host name of this machine, for requests without a Host header.
    pub host: String,
}

/// Routes of the page and its files.
pub fn router(told: PageValues) -> Router {
    let told = Arc::new(told);
    let file = |kind: &'static str, text: &'static str| {
        get(
            move || async move { ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], text) },
        )
    };
    Router::new()
        .route("/", get(page))
        .route("/ca.crt", get(der))
        .route("/ca.pem", get(pem))
        // Without an icon browsers request `/favicon.ico`, which would redirect them to a port they do not trust yet.
        .route("/setup/favicon.svg", file("image/svg+xml", include_str!("../web/assets/favicon.svg")))
        .route("/setup/base.css", file("text/css; charset=utf-8", include_str!("../web/assets/base.css")))
        .route("/setup/setup.css", file("text/css; charset=utf-8", include_str!("page/setup.css")))
        .route("/setup/setup.js", file("text/javascript; charset=utf-8", include_str!("page/setup.js")))
        .with_state(told)
}

async fn page(State(told): State<Arc<PageValues>>, headers: HeaderMap) -> Response {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let text = told.page(agent, host);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        // Its files have its own origin; the check of the https port is cross-origin.
        (HeaderName::from_static("cross-origin-embedder-policy"), HeaderValue::from_static("unsafe-none")),
    ];
    (headers, text).into_response()
}

async fn der(State(told): State<Arc<PageValues>>) -> Response {
    download("application/x-x509-ca-cert", "moex-ca.crt", told.certificate.clone())
}

async fn pem(State(told): State<Arc<PageValues>>) -> Response {
    download("application/x-pem-file", "moex-ca.pem", told.pem.clone().into_bytes())
}

fn download(kind: &'static str, name: &'static str, bytes: Vec<u8>) -> Response {
    let as_file = format!("attachment; filename=\"{name}\"");
    ([(header::CONTENT_TYPE, kind.to_owned()), (header::CONTENT_DISPOSITION, as_file)], bytes).into_response()
}

impl PageValues {
    /// The page for a browser with this user agent and Host.
    fn page(&self, agent: &str, host: &str) -> String {
        let host =
            host.parse::<Authority>().map_or(self.host.clone(), |authority| authority.host().to_owned());
        let system = system_of(agent);
        let mut text = TEMPLATE
            .replace("{{HTTPS}}", &escaped(&format!("https://{host}:{}", self.https_port)))
            .replace("{{FINGERPRINT}}", &escaped(&self.fingerprint))
            .replace("{{NAME}}", &escaped(&self.name));
        for (id, label, _) in SYSTEMS {
            let is_theirs = Some(id) == system;
            let section =
                format!("<details id=\"{id}\"{}>", if is_theirs { " open class=\"yours\"" } else { "" });
            let yours = if is_theirs { " <span class=\"tag\">this device</span>" } else { "" };
            text = text.replace(&format!("<details id=\"{id}\">"), &section);
            text = text.replace(&format!("{{{{LABEL {id}}}}}"), &format!("{label}{yours}"));
        }
        text
    }
}

/// The system that a user agent names.
fn system_of(agent: &str) -> Option<&'static str> {
    let is_phone = agent.contains("Android") || agent.contains("iPhone") || agent.contains("iPad");
    let known = |(id, _, words): &&(&str, &str, &[&str])| {
        (*id != "firefox" || !is_phone) && words.iter().any(|word| agent.contains(word))
    };
    SYSTEMS.iter().find(known).map(|(id, ..)| *id)
}

/// Escapes text for HTML, also within quotes.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const IPHONE: &str = "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Version/17.5 Mobile Safari/604.1";
    const ANDROID: &str =
        "Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 Chrome/126.0 Mobile Safari/537.36";
    const ANDROID_FIREFOX: &str = "Mozilla/5.0 (Android 14; Mobile; rv:127.0) Gecko/127.0 Firefox/127.0";
    const WINDOWS: &str =
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/126.0 Safari/537.36 Edg/126.0";
    const MAC: &str =
        "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 Version/17.5 Safari/605.1.15";
    const CHROME_OS: &str =
        "Mozilla/5.0 (X11; CrOS x86_64 14541.0.0) AppleWebKit/537.36 Chrome/126.0 Safari/537.36";
    const FIREFOX: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:127.0) Gecko/20100101 Firefox/127.0";

    fn told() -> PageValues {
        PageValues {
            https_port: 8443,
            certificate: Vec::new(),
            pem: String::new(),
            fingerprint: "AB CD".into(),
            name: "moex on <desk>".into(),
            host: "192.0.2.7".into(),
        }
    }

    #[test]
    fn a_browser_is_shown_the_steps_of_its_system_first() {
        let cases = [
            (IPHONE, Some("ios")),
            (ANDROID, Some("android")),
            (ANDROID_FIREFOX, Some("android")),
            (WINDOWS, Some("windows")),
            (MAC, Some("macos")),
            (CHROME_OS, Some("linux")),
            (FIREFOX, Some("firefox")),
            ("curl/8.0", None),
        ];
        for (agent, system) in cases {
            assert_eq!(system_of(agent), system, "{agent}");
            let page = told().page(agent, "h");
            assert_eq!(
                page.matches(" open class=\"yours\"").count(),
                usize::from(system.is_some()),
                "{agent}"
            );
            assert!(
                SYSTEMS.iter().all(|(id, ..)| page.contains(&format!("<details id=\"{id}\""))),
                "{agent}"
            );
            assert!(!page.contains("{{"), "all is filled in");
        }
    }

    #[test]
    fn the_visitors_own_words_stay_text() {
        let page = |host: &str| told().page("", host);
        assert!(page("192.168.1.5:8080").contains("\"https://192.168.1.5:8443/\""));
        assert!(page("[fd00::1]:8080").contains("\"https://[fd00::1]:8443/\""));
        assert!(page("").contains("\"https://192.0.2.7:8443/\""));
        for hostile in ["\"><script>", "a b", "x/y?<b>"] {
            assert_eq!(page(hostile), page(""), "{hostile}: nothing of it is on the page");
        }
        assert!(page("h").contains("moex on &lt;desk&gt;"));
    }
}
