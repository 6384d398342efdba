//! Finds the addresses and names by which other machines reach this one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InterfaceAddress {
    interface: String,
    ip: IpAddr,
    is_up: bool,
}

/// Addresses by which others reach a socket bound to `bound`, that of the default route first. Empty for a socket on
/// loopback, or if the machine is on no network.
pub fn reachable(bound: IpAddr) -> Vec<IpAddr> {
    if !bound.is_unspecified() {
        return Some(bound).filter(|ip| !ip.is_loopback()).into_iter().collect();
    }
    let found = if_addrs::get_if_addrs().unwrap_or_else(|error| {
        tracing::warn!(%error, "the system does not report this machine's addresses");
        Vec::new()
    });
    let found = found.into_iter().map(|interface| InterfaceAddress {
        ip: interface.ip(),
        is_up: interface.is_oper_up(),
        interface: interface.name,
    });
    let both_families = bound.is_ipv6();
    choose(found.collect(), both_families, &default_routes())
}

/// This machine's name without its domain, if mDNS can announce it.
pub fn host_name() -> Option<String> {
    let name = gethostname::gethostname().into_string().ok()?;
    label(&name)
}

fn label(name: &str) -> Option<String> {
    let name = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = (1..=63).contains(&name.len())
        && name.bytes().all(fits)
        && !name.starts_with('-')
        && !name.ends_with('-')
        && name != "localhost";
    is_label.then_some(name)
}

/// Addresses that others can reach: default routes first, then IPv4 before IPv6, each in the system's order.
fn choose(found: Vec<InterfaceAddress>, both_families: bool, first: &[IpAddr]) -> Vec<IpAddr> {
    let mut chosen: Vec<IpAddr> = Vec::new();
    for InterfaceAddress { interface, ip, is_up } in found {
        let is_wanted =
            is_up && (ip.is_ipv4() || both_families) && reaches_others(ip) && !is_internal(&interface);
        if is_wanted && !chosen.contains(&ip) {
            chosen.push(ip);
        }
    }
    chosen.sort_by_key(|ip| (!first.contains(ip), ip.is_ipv6()));
    chosen
}

/// Loopback and link-local addresses differ in meaning on every machine.
fn reaches_others(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            !(ip.is_loopback()
                || ip.is_link_local()
                || ip.is_unspecified()
                || ip.is_broadcast()
                || ip.is_multicast())
        }
        IpAddr::V6(ip) => {
            !(ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unspecified() || ip.is_multicast())
        }
    }
}

/// Bridges to this machine's own containers and virtual machines: no other machine is behind them.
fn is_internal(interface: &str) -> bool {
    let is_docker_network = interface
        .strip_prefix("br-")
        .is_some_and(|id| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    is_docker_network
        || ["docker", "virbr", "podman", "cni", "lxcbr", "lxdbr"]
            .iter()
            .any(|name| interface.starts_with(name))
}

/// Source addresses that the system would use for other networks. Finding them sends no packet.
fn default_routes() -> Vec<IpAddr> {
    // Documentation addresses: no machine has them, so the system picks the default route.
    let elsewhere: [(SocketAddr, SocketAddr); 2] = [
        ((Ipv4Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::new(192, 0, 2, 1), 9).into()),
        ((Ipv6Addr::UNSPECIFIED, 0).into(), (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9).into()),
    ];
    let route = |(from, to): (SocketAddr, SocketAddr)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    elsewhere.into_iter().filter_map(route).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(entries: &[(&str, &str)]) -> Vec<InterfaceAddress> {
        let found = |(interface, ip): &(&str, &str)| InterfaceAddress {
            interface: (*interface).to_owned(),
            ip: ip.parse().unwrap(),
            is_up: true,
        };
        entries.iter().map(found).collect()
    }

    #[test]
    fn what_others_cannot_reach_is_left_out_and_the_default_route_comes_first() {
        let all = found(&[
            ("lo", "127.0.0.1"),
            ("lo", "::1"),
            ("tailscale0", "100.100.1.2"),
            ("wlan0", "fe80::1"),
            ("wlan0", "fd00::7"),
            ("wlan0", "192.168.1.20"),
            ("eth1", "169.254.3.4"),
            ("docker0", "172.17.0.1"),
            ("br-0123456789ab", "172.18.0.1"),
            ("br-lan", "10.0.0.1"),
            ("wlan0", "2001:db8::7"),
        ]);
        let first = ["192.168.1.20".parse().unwrap()];
        let shown =
            |both| choose(all.clone(), both, &first).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown(false), ["192.168.1.20", "100.100.1.2", "10.0.0.1"]);
        assert_eq!(shown(true), ["192.168.1.20", "100.100.1.2", "10.0.0.1", "fd00::7", "2001:db8::7"]);
    }

    #[test]
    fn an_interface_that_is_down_has_no_address_to_share() {
        let mut all = found(&[("eth0", "10.0.0.1")]);
        all[0].is_up = false;
        assert_eq!(choose(all, true, &[]), Vec::<IpAddr>::new());
    }

    #[test]
    fn a_socket_of_one_address_is_reached_by_that() {
        assert_eq!(reachable("127.0.0.1".parse().unwrap()), Vec::<IpAddr>::new());
        assert_eq!(reachable("::1".parse().unwrap()), Vec::<IpAddr>::new());
        assert_eq!(reachable("192.0.2.7".parse().unwrap()), ["192.0.2.7".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn a_host_name_is_a_label_or_none() {
        assert_eq!(label("Desk-7.example.org").as_deref(), Some("desk-7"));
        for none in ["", "localhost", "a_b", "-a", "a-", "ä", ".x", &"x".repeat(64)] {
            assert_eq!(label(none), None, "{none}");
        }
    }
}
