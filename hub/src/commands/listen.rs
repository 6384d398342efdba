//! Parses listen addresses as users write them: `8080`, `:8080`, `localhost`, `0.0.0.0:8080`, `[::]:8080`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use anyhow::{Context, bail};
use tokio::net::{TcpListener, TcpSocket};

/// Connections that the system keeps until they are accepted, at most as many as it allows. It ignores those beyond, and they try
/// again after a second: a class that opens the page at once, or strangers who connect by the hundred, must not fill it.
const BACKLOG: u32 = 4096;

/// An address whose host or port may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listen {
    host: Option<String>,
    port: Option<u16>,
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.contains('/') {
            return Err(
                "write a port, an address or both, such as 8080, 0.0.0.0 or 127.0.0.1:8080".to_owned()
            );
        }
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(Self { host: Some(ip.to_string()), port: None });
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Self { host: None, port: Some(port(text)?) });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, digits)) => (host, Some(port(digits)?)),
            None => (text, None),
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bracketed {
            Some(inner) if inner.parse::<Ipv6Addr>().is_ok() => inner,
            None if host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) => host,
            _ => {
                return Err(format!(
                    "`{host}` is neither an address nor a name (IPv6 stands in brackets: [::]:8080)"
                ));
            }
        };
        Ok(Self { host: Some(host.to_owned()).filter(|host| !host.is_empty()), port })
    }
}

impl Listen {
    /// Completes the address: a missing port comes from `--port`, then from `default`.
    pub(super) fn resolve(&self, port_flag: Option<u16>, default: SocketAddr) -> anyhow::Result<SocketAddr> {
        let port = match (self.port, port_flag) {
            (Some(listen), Some(flag)) if listen != flag => {
                bail!("--listen names port {listen} and --port {flag}: leave one of them out")
            }
            (listen, flag) => listen.or(flag).unwrap_or(default.port()),
        };
        let ip = match self.host.as_deref() {
            None => default.ip(),
            Some("localhost") => Ipv4Addr::LOCALHOST.into(),
            Some(host) => look_up(host)?,
        };
        Ok(SocketAddr::new(ip, port))
    }
}

fn port(digits: &str) -> Result<u16, String> {
    digits.parse().map_err(|_| format!("`{digits}` is not a port: write a number from 0 to 65535"))
}

fn look_up(host: &str) -> anyhow::Result<IpAddr> {
    if let Ok(ip) = host.parse() {
        return Ok(ip);
    }
    let found =
        (host, 0).to_socket_addrs().with_context(|| format!("--listen: no address is known for `{host}`"))?;
    let mut found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    found.sort_by_key(IpAddr::is_ipv6);
    found.first().copied().with_context(|| format!("--listen: no address is known for `{host}`"))
}

/// Binds the address; an error says what to do. `flag` is the flag that sets the port.
pub(super) fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let error = match listen(address) {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let way_out = match free_port_after(address) {
                Some(free) => format!("`{flag} {free}` is free"),
                None => format!("`{flag}` takes another, and port 0 any free one"),
            };
            bail!("{address} is in use by another program: stop that, or choose another port ({way_out})")
        }
        io::ErrorKind::AddrNotAvailable => {
            bail!("{} is not an address of this machine: 0.0.0.0 listens on all of them", address.ip())
        }
        io::ErrorKind::PermissionDenied => {
            bail!("port {} needs privileges: choose one from 1024 on, such as `{flag} 8080`", address.port())
        }
        _ => Err(error).with_context(|| format!("cannot listen on {address}")),
    }
}

/// Listens on the address.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A hub that starts again takes over its port from connections that are only waiting for their end. On Windows the option
    // would let two hubs share a port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Returns the first free port among the next few.
fn free_port_after(address: SocketAddr) -> Option<u16> {
    const TRIES: u16 = 20;
    for step in 1..=TRIES {
        let next = SocketAddr::new(address.ip(), address.port().checked_add(step)?);
        if listen(next).is_ok() {
            return Some(next.port());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str, port: Option<u16>) -> Result<String, String> {
        let default = "127.0.0.1:8080".parse().unwrap();
        let listen: Listen = text.parse()?;
        listen.resolve(port, default).map(|address| address.to_string()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn every_way_to_write_an_address_is_understood() {
        let cases = [
            ("8081", "127.0.0.1:8081"),
            (":8081", "127.0.0.1:8081"),
            ("localhost:8081", "127.0.0.1:8081"),
            ("localhost", "127.0.0.1:8080"),
            ("0.0.0.0", "0.0.0.0:8080"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("192.0.2.7:81", "192.0.2.7:81"),
            ("::", "[::]:8080"),
            ("[::1]", "[::1]:8080"),
            ("[::]:81", "[::]:81"),
        ];
        for (text, expected) in cases {
            assert_eq!(address(text, None).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(address("0.0.0.0", Some(81)).as_deref(), Ok("0.0.0.0:81"));
        assert_eq!(address("81", Some(81)).as_deref(), Ok("127.0.0.1:81"));
    }

    #[test]
    fn what_is_no_address_is_refused_in_one_sentence() {
        let cases = [
            ("", None, "such as 8080"),
            ("http://localhost:8080", None, "such as 8080"),
            ("70000", None, "0 to 65535"),
            ("localhost:", None, "0 to 65535"),
            ("localhost:http", None, "0 to 65535"),
            ("a b:80", None, "neither an address"),
            ("[::1", None, "neither an address"),
            ("81", Some(82), "leave one of them out"),
            ("no-such-host.invalid", None, "no address is known"),
        ];
        for (text, port, words) in cases {
            let said = address(text, port).unwrap_err();
            assert!(said.contains(words) && !said.contains('\n'), "{text}: {said}");
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_named_with_a_way_out() {
        let taken = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = taken.local_addr().unwrap();
        let said = bind(address, "--port").unwrap_err().to_string();
        assert!(said.contains(&address.to_string()) && said.contains("--port"), "{said}");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_crowd_waits_until_it_is_accepted() {
        let allowed: usize =
            std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let connect =
            || std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_millis(500));
        let crowd: Result<Vec<_>, _> = (0..500.min(allowed)).map(|_| connect()).collect();
        assert!(crowd.is_ok(), "{crowd:?}");
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_refused_in_one_sentence() {
        let said = bind("192.0.2.7:0".parse().unwrap(), "--port").unwrap_err().to_string();
        assert!(said.contains("192.0.2.7 is not an address of this machine"), "{said}");
    }
}
