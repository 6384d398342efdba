//! Builds the URLs by which a hub is opened, shared and joined.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::addresses;

/// Origins of one listener: a scheme and a port with each host that names this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origins {
    scheme: &'static str,
    port: u16,
    local: String,
    shared: Vec<String>,
    /// The proxy's origin, if there is one; others get only this.
    public: Option<String>,
}

impl Origins {
    /// Origins of a listener bound to `bound` with this scheme, on the current network. `names` are host names that
    /// others can resolve; a listener on loopback has none.
    pub fn new(scheme: &'static str, bound: SocketAddr, names: &[String]) -> Self {
        let others = addresses::reachable(bound.ip());
        let named = if others.is_empty() { &[] } else { names };
        let shared = others.iter().map(|ip| host(*ip)).chain(named.iter().cloned()).collect();
        Self { scheme, port: bound.port(), local: host(local(bound.ip())), shared, public: None }
    }

    /// Replaces the origins for others with a proxy's URL.
    #[must_use]
    pub fn published(self, url: String) -> Self {
        Self { public: Some(url), ..self }
    }

    /// Origin for this machine itself: `http://127.0.0.1:8080`.
    pub fn local(&self) -> String {
        self.at(&self.local)
    }

    /// Origins for others, the best first; if there are none, the one for this machine.
    pub fn shared(&self) -> Vec<String> {
        match (&self.public, self.shared.is_empty()) {
            (Some(url), _) => vec![url.clone()],
            (None, true) => vec![self.local()],
            (None, false) => self.shared.iter().map(|host| self.at(host)).collect(),
        }
    }

    /// Whether other machines can reach it.
    pub fn is_shared(&self) -> bool {
        !self.shared.is_empty() || self.public.is_some()
    }

    /// Whether the shared origins are https.
    pub fn is_https(&self) -> bool {
        self.public.as_ref().map_or(self.scheme == "https", |url| url.starts_with("https:"))
    }

    /// Host of the best origin, as written in a URL.
    pub fn first_host(&self) -> &str {
        self.shared.first().unwrap_or(&self.local)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn at(&self, host: &str) -> String {
        format!("{}://{host}:{}", self.scheme, self.port)
    }
}

/// Fragment of a join URL: the token, and the fingerprint by which a native worker verifies the hub. Browsers never
/// send it, and the pages read only up to the comma, which no token contains.
pub fn fragment(token: &str, ca_fingerprint: Option<&str>) -> String {
    match ca_fingerprint {
        Some(fingerprint) => format!("{token},ca={fingerprint}"),
        None => token.to_owned(),
    }
}

/// The address as written in a URL.
fn host(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// An unspecified address cannot be opened; loopback can.
fn local(bound: IpAddr) -> IpAddr {
    match bound {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins(bound: &str) -> Origins {
        Origins::new("http", bound.parse().unwrap(), &["desk.local".to_owned()])
    }

    #[test]
    fn loopback_is_shared_with_nobody() {
        let loopback = origins("127.0.0.1:80");
        assert!(!loopback.is_shared());
        assert_eq!(
            (loopback.local(), loopback.shared()),
            ("http://127.0.0.1:80".into(), vec!["http://127.0.0.1:80".into()])
        );
    }

    #[test]
    fn an_address_is_shared_with_the_names_of_its_machine() {
        assert_eq!(origins("192.0.2.7:80").shared(), ["http://192.0.2.7:80", "http://desk.local:80"]);
        assert_eq!(origins("[2001:db8::7]:80").shared(), ["http://[2001:db8::7]:80", "http://desk.local:80"]);
    }

    #[test]
    fn behind_a_proxy_its_url_is_the_one_to_share() {
        let origins = origins("127.0.0.1:80").published("https://moex.example".into());
        assert!(origins.is_shared() && origins.is_https());
        assert_eq!(
            (origins.local().as_str(), origins.shared()),
            ("http://127.0.0.1:80", vec!["https://moex.example".into()])
        );
    }

    #[test]
    fn an_unspecified_address_is_opened_here_as_loopback_and_never_shared_so() {
        for (bound, local) in [("0.0.0.0:80", "http://127.0.0.1:80"), ("[::]:80", "http://[::1]:80")] {
            let origins = origins(bound);
            assert_eq!(origins.local(), local);
            assert!(!origins.is_shared() || !origins.shared().contains(&local.to_owned()), "{origins:?}");
        }
    }
}
