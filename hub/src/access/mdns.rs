//! Announces and finds hubs on the local network by multicast DNS.
//!
//! The announcement holds the port, whether it uses TLS, and the authority's fingerprint, never the token. Found
//! records may come from anyone on the network: names are sanitised before they are shown, and only the fingerprint
//! identifies a hub.

use std::net::IpAddr;
use std::time::Duration;

use mdns_sd::{DaemonEvent, IfKind, ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo};
use moex_worker::native::Fingerprint;
use tokio::time::{Instant, timeout_at};

/// Service type of hubs.
const SERVICE: &str = "_moex._tcp.local.";
/// Maximum hubs shown; more would not be genuine.
const MAX_FOUND: usize = 16;
/// The longest name that is shown, in characters.
const MAX_NAME: usize = 60;
/// How long withdrawing the announcement may take.
const GOODBYE: Duration = Duration::from_millis(300);

/// The hub to announce.
#[derive(Clone, Debug)]
pub struct Hub {
    /// This machine's name, without a domain.
    pub host_name: String,
    /// Port that workers join on.
    pub port: u16,
    /// The address it is bound to, unless it is bound to all.
    pub address: Option<IpAddr>,
    /// Whether that port uses TLS.
    pub is_tls: bool,
    /// Fingerprint of the hub's own authority.
    pub authority: Option<Fingerprint>,
}

/// A hub that is announced until this is dropped.
pub struct Announced {
    daemon: ServiceDaemon,
    full_name: String,
}

/// A found hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundHub {
    /// Its name, as announced.
    pub name: String,
    /// Its announced addresses, the best first; never empty.
    pub addresses: Vec<IpAddr>,
    /// Port that workers join on.
    pub port: u16,
    /// Whether that port uses TLS.
    pub is_tls: bool,
    /// Fingerprint of the hub's own authority.
    pub authority: Option<Fingerprint>,
}

/// Announces the hub, and answers queries for `HOST_NAME.local`. Must be called within a tokio runtime.
///
/// # Errors
/// If the system cannot provide a socket; one sentence.
pub fn announce(hub: &Hub) -> Result<Announced, String> {
    let cannot = |error: mdns_sd::Error| format!("this hub is not announced on the network (mDNS): {error}");
    let daemon = ServiceDaemon::new().map_err(cannot)?;
    let start = || {
        daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
        let mut properties = vec![("tls", if hub.is_tls { "1".to_owned() } else { "0".to_owned() })];
        properties.extend(hub.authority.map(|authority| ("ca", authority.to_string())));
        let name = format!("moex on {} ({})", hub.host_name, hub.port);
        let host = format!("{}.local.", hub.host_name);
        let address = hub.address.map(|ip| ip.to_string()).unwrap_or_default();
        let info = ServiceInfo::new(SERVICE, &name, &host, address.as_str(), hub.port, &properties[..])?;
        let info = if hub.address.is_none() { info.enable_addr_auto() } else { info };
        let full_name = info.get_fullname().to_owned();
        daemon.register(info)?;
        let events = daemon.monitor()?;
        tokio::spawn(async move {
            while let Ok(event) = events.recv_async().await {
                if let DaemonEvent::Error(error) = event {
                    tracing::warn!("this hub may not be found on the network (mDNS): {error}");
                    return;
                }
            }
        });
        Ok(full_name)
    };
    match start() {
        Ok(full_name) => Ok(Announced { daemon, full_name }),
        Err(error) => {
            drop(daemon.shutdown());
            Err(cannot(error))
        }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // Withdraws the announcement, so that others forget it at once instead of in an hour; a failure is harmless.
        if let Ok(gone) = self.daemon.unregister(&self.full_name) {
            drop(gone.recv_timeout(GOODBYE));
        }
        drop(self.daemon.shutdown());
    }
}

/// Finds the hubs that answer within `wait`.
///
/// # Errors
/// If the system cannot provide a socket; one sentence.
pub async fn find(wait: Duration) -> Result<Vec<FoundHub>, String> {
    let cannot = |error: mdns_sd::Error| format!("searching this network for hubs failed (mDNS): {error}");
    let daemon = ServiceDaemon::new().map_err(cannot)?;
    let events = daemon.browse(SERVICE).map_err(cannot)?;
    let deadline = Instant::now() + wait;
    let mut found: Vec<FoundHub> = Vec::new();
    while let Ok(Ok(event)) = timeout_at(deadline, events.recv_async()).await {
        let ServiceEvent::ServiceResolved(service) = event else { continue };
        let Some(hub) = FoundHub::read(&service) else { continue };
        // A hub's latest announcement replaces earlier ones.
        found.retain(|known| known.name != hub.name || known.port != hub.port);
        if found.len() < MAX_FOUND {
            found.push(hub);
        }
    }
    drop(daemon.shutdown());
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

impl FoundHub {
    fn read(service: &ResolvedService) -> Option<Self> {
        let mut addresses: Vec<IpAddr> =
            service.get_addresses().iter().map(mdns_sd::ScopedIp::to_ip_addr).collect();
        addresses.retain(|ip| match ip {
            IpAddr::V4(ip) => !ip.is_link_local() && !ip.is_unspecified() && !ip.is_multicast(),
            IpAddr::V6(ip) => !ip.is_unicast_link_local() && !ip.is_unspecified() && !ip.is_multicast(),
        });
        addresses.sort_by_key(|ip| (ip.is_ipv6(), *ip));
        let name = service.get_fullname().strip_suffix(SERVICE).unwrap_or_default().trim_end_matches('.');
        let property = |key: &str| service.get_property_val_str(key);
        let is_whole = !addresses.is_empty() && service.get_port() != 0;
        is_whole.then(|| Self {
            name: clean(name),
            addresses,
            port: service.get_port(),
            is_tls: property("tls") == Some("1"),
            authority: property("ca").and_then(|hex| hex.parse().ok()),
        })
    }

    /// Origin at its best address.
    pub fn origin(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        let host = match self.addresses.first() {
            Some(IpAddr::V6(ip)) => format!("[{ip}]"),
            Some(ip) => ip.to_string(),
            None => String::new(),
        };
        format!("{scheme}://{host}:{}", self.port)
    }

    /// Join URL with this token.
    pub fn join_url(&self, token: &str) -> String {
        let authority = self.authority.filter(|_| self.is_tls).map(|authority| authority.to_string());
        format!("{}/join#{}", self.origin(), super::links::fragment(token, authority.as_deref()))
    }
}

/// Keeps letters, digits and some punctuation: nothing that controls a terminal.
fn clean(name: &str) -> String {
    let name = name.chars().filter(|c| *c != '\\');
    name.map(|c| if c.is_alphanumeric() || " -_.()".contains(c) { c } else { '?' }).take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_speak_to_the_terminal() {
        assert_eq!(clean("moex on desk (8443)"), "moex on desk (8443)");
        assert_eq!(clean("a\x1b[2J\u{202E}b\n"), "a??2J?b?");
        assert_eq!(clean(&"x".repeat(1000)).len(), MAX_NAME);
    }

    #[test]
    fn a_hub_that_was_found_is_joined_by_its_fingerprint() {
        let authority = "ab".repeat(32);
        let found = FoundHub {
            name: "desk".into(),
            addresses: vec!["fd00::7".parse().unwrap()],
            port: 8443,
            is_tls: true,
            authority: authority.parse().ok(),
        };
        assert_eq!(found.join_url("t0ken"), format!("https://[fd00::7]:8443/join#t0ken,ca={authority}"));
        let plain = FoundHub { is_tls: false, ..found };
        assert_eq!(plain.join_url("t0ken"), "http://[fd00::7]:8443/join#t0ken");
    }
}
