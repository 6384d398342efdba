//! How a hub is reached: the flags of `serve` for addresses, certificates and secrets, and the listeners they come to.

use std::io::{IsTerminal, stderr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::builder::FalseyValueParser;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::listen::{self, Listen};
use super::values;
use crate::door::authority::Authority;
use crate::door::certificate::{Certificate, Source};
use crate::door::greeting::{self, Greeting};
use crate::door::kept::{Kept, KeptError, Replace, StateFolder};
use crate::door::links::{self, Origins};
use crate::door::mdns::{self, Announced};
use crate::door::{addresses, page};
use crate::server::{self, Listener, PublicUrl, Surface};

/// Where a hub listens that is not told.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Where one does that opens its door to the network.
const DEFAULT_LAN: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 8080);
/// What plain http costs a tab on another machine.
const CPU_ONLY: &str = "Browsers give WebGPU to https and localhost only: a tab on another machine computes on its CPU. \
                        `--lan` opens an https port that they can trust.";

/// The flags.
#[derive(clap::Args, Debug)]
pub(super) struct DoorArgs {
    /// Open the hub to this network: https with a certificate authority of its own, made at the first start, on --https-port,
    /// a page on --port that shows phones how to trust it, a QR code, mDNS, and an API key, made and kept if none is given.
    #[arg(long, env = "MOEX_LAN", value_parser = FalseyValueParser::new())]
    lan: bool,

    /// Where to listen: a port, an address or both, such as 8080, 0.0.0.0 or 127.0.0.1:8080, which it is without it (with
    /// --lan, all addresses); port 0 takes a free one. Beyond loopback an API key is required.
    #[arg(long, env = "MOEX_LISTEN", value_name = "ADDRESS")]
    listen: Option<Listen>,

    /// The port, where --listen names none; without it, 8080.
    #[arg(long, env = "MOEX_PORT", value_name = "PORT")]
    port: Option<u16>,

    /// The port of https with --lan.
    #[arg(long, env = "MOEX_HTTPS_PORT", value_name = "PORT", default_value_t = 8443)]
    https_port: u16,

    /// Serve https with this certificate chain, a PEM file that is read again when it changes.
    #[arg(long, env = "MOEX_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The key of --tls-cert, a PEM file.
    #[arg(long, env = "MOEX_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// By which others reach the hub when a proxy stands before it: https://HOST. Links name it.
    #[arg(long, env = "MOEX_PUBLIC_URL", value_name = "URL")]
    pub(super) public_url: Option<PublicUrl>,

    /// The token workers join with; without it, one made at the first start and kept, so that links and open tabs outlive a
    /// restart. All hubs of one state folder share it.
    #[arg(long, env = "MOEX_TOKEN", hide_env_values = true, value_parser = values::token)]
    token: Option<String>,

    /// Give up the kept token for a new one: links given out before no longer join.
    #[arg(long, env = "MOEX_NEW_TOKEN", value_parser = FalseyValueParser::new(), conflicts_with = "token")]
    new_token: bool,

    /// What clients of the API must show as `Authorization: Bearer KEY`.
    #[arg(long, env = "MOEX_API_KEY", hide_env_values = true, value_name = "KEY", value_parser = values::api_key)]
    api_key: Option<String>,

    /// With --lan, give up the kept API key for a new one.
    #[arg(long, env = "MOEX_NEW_API_KEY", value_parser = FalseyValueParser::new(), requires = "lan", conflicts_with = "api_key")]
    new_api_key: bool,

    /// Where token, API key and certificate authority are kept, readable by this user alone; without it, `moex` in the user's
    /// state folder.
    #[arg(long, env = "MOEX_STATE", value_name = "DIR")]
    state: Option<PathBuf>,

    /// Do not announce the hub to its network (mDNS).
    #[arg(long, env = "MOEX_NO_MDNS", value_parser = FalseyValueParser::new())]
    no_mdns: bool,

    /// Show the QR code even where stderr is no terminal, or without --lan.
    #[arg(long, env = "MOEX_QR", value_parser = FalseyValueParser::new())]
    qr: bool,
}

/// A hub's way in, bound and ready to be listened on.
pub(super) struct Door {
    /// What to serve on.
    pub(super) listeners: Vec<Listener>,
    /// What workers join with.
    pub(super) token: String,
    /// What clients of the API show, if they must.
    pub(super) api_key: Option<String>,
    /// Where chat, API, swarm and join pages are.
    web: Origins,
    /// The plain port beside https.
    plain: Option<Origins>,
    /// By which this machine's own workers join.
    local: String,
    state: StateFolder,
    kept_key: Option<Kept>,
    certificate: Option<Arc<Certificate>>,
    shows_qr: bool,
    _announced: Option<Announced>,
}

impl DoorArgs {
    /// Binds all that the flags ask for, and reads or makes the secrets. Ports in use are said at once.
    pub(super) async fn open(&self, brings_workers: bool) -> anyhow::Result<Door> {
        let default = if self.lan { DEFAULT_LAN } else { DEFAULT_LISTEN };
        let address = self.listen.clone().unwrap_or_default().resolve(self.port, default)?;
        if !address.ip().is_loopback() && self.api_key.is_none() && !self.lan {
            bail!(
                "{address} can be reached from other machines: give the hub an --api-key, open it with --lan, or listen on 127.0.0.1"
            );
        }
        let plain = bind_all(address, "--port").await?;
        let https = match self.lan {
            true => bind_all(SocketAddr::new(address.ip(), self.https_port), "--https-port").await?,
            false => Vec::new(),
        };
        let state = StateFolder::at(self.state.clone().unwrap_or_else(StateFolder::default_path));
        let token = self.token(&state)?;
        let kept_key = self.kept_key(&state)?;
        let certificate = self.certificate(&state)?;
        if let Some(certificate) = &certificate {
            tokio::spawn(certificate.clone().keep_current());
        }

        let plain_at = plain[0].local_addr()?;
        let web_at = https.first().map_or(Ok(plain_at), TcpListener::local_addr)?;
        let is_tls = certificate.is_some();
        let announced = self.announce(web_at, is_tls, certificate.as_deref());
        let names: Vec<String> =
            announced.iter().filter_map(|_| addresses::host_name()).map(|name| name + ".local").collect();
        let own = Origins::new(if is_tls { "https" } else { "http" }, web_at, &names);
        let local = own.local();
        let web = match &self.public_url {
            Some(url) => own.published(url.to_string()),
            None => own,
        };
        let door = self.lan.then(|| Origins::new("http", plain_at, &names));

        let mut listeners = Vec::new();
        let mut local = door.as_ref().map_or(local, Origins::local);
        match &certificate {
            None => listeners.extend(plain.into_iter().map(Listener::plain)),
            Some(certificate) => {
                let tls = Arc::new(certificate.server_config().context("there is no TLS")?);
                let secure = |tcp| Listener { tcp, tls: Some(tls.clone()), surface: Surface::Everything };
                if self.lan {
                    listeners.extend(https.into_iter().map(secure));
                    let pages = || pages(certificate, &web);
                    let door = |tcp| Listener {
                        tcp,
                        tls: None,
                        surface: Surface::Door(server::Door::new(pages(), web.port())),
                    };
                    listeners.extend(plain.into_iter().map(door));
                } else {
                    listeners.extend(plain.into_iter().map(secure));
                    if brings_workers {
                        // The certificate names hosts that need not be this machine's loopback address.
                        let inner = listen::bind((Ipv4Addr::LOCALHOST, 0).into(), "--port").await?;
                        local = format!("http://{}", inner.local_addr()?);
                        listeners.push(Listener::plain(inner));
                    }
                }
            }
        }
        Ok(Door {
            listeners,
            api_key: self.api_key.clone().or_else(|| kept_key.as_ref().map(|kept| kept.value.clone())),
            token,
            web,
            plain: door,
            local,
            state,
            kept_key,
            certificate,
            shows_qr: self.qr || (self.lan && stderr().is_terminal()),
            _announced: announced,
        })
    }

    /// The token of the last start, or a new one. A state folder that cannot be written costs no more than the keeping.
    fn token(&self, state: &StateFolder) -> anyhow::Result<String> {
        if let Some(token) = &self.token {
            return Ok(token.clone());
        }
        match state.keep("join-token", Replace::when(self.new_token), values::token, new_secret) {
            Ok(Kept { value, .. }) => Ok(value),
            Err(error @ KeptError::Io { .. }) if !self.lan => {
                tracing::warn!("the join token changes with each start: {error}");
                values::secret()
            }
            Err(error) => Err(error.into()),
        }
    }

    fn kept_key(&self, state: &StateFolder) -> anyhow::Result<Option<Kept>> {
        if !self.lan || self.api_key.is_some() {
            return Ok(None);
        }
        Ok(Some(state.keep("api-key", Replace::when(self.new_api_key), values::api_key, new_secret)?))
    }

    fn certificate(&self, state: &StateFolder) -> anyhow::Result<Option<Arc<Certificate>>> {
        let source = match (&self.tls_cert, &self.tls_key) {
            (Some(chain), Some(key)) => Source::Files { chain: chain.clone(), key: key.clone() },
            _ if self.lan => Source::Authority(Box::new(Authority::keep(state)?.0)),
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(Certificate::first(source).map_err(anyhow::Error::msg)?)))
    }

    /// Whoever is on no network, or wants silence, is announced to nobody; what fails is one warning.
    fn announce(&self, at: SocketAddr, is_tls: bool, certificate: Option<&Certificate>) -> Option<Announced> {
        let is_wanted = !self.no_mdns && !addresses::reachable(at.ip()).is_empty();
        let host_name = is_wanted.then(addresses::host_name).flatten()?;
        let authority = certificate.and_then(Certificate::authority).map(Authority::fingerprint);
        let address = Some(at.ip()).filter(|ip| !ip.is_unspecified());
        let hub = mdns::Hub { host_name, port: at.port(), address, is_tls, authority };
        mdns::announce(&hub).inspect_err(|error| tracing::warn!("{error}")).ok()
    }
}

impl Door {
    /// Where others find the hub, or its own machine if no other can.
    pub(super) fn url(&self) -> String {
        self.web.shared().swap_remove(0)
    }

    /// The URL by which this machine's own workers join.
    pub(super) fn local_join(&self) -> String {
        join(&self.local, &self.token)
    }

    /// Every address and path, for tools.
    pub(super) fn json(&self) -> Value {
        let urls = self.web.shared();
        let authority = self.authority();
        json!({
            "listen": self.local,
            "token": self.token,
            "local_join_url": self.local_join(),
            "join_url": join(&urls[0], &self.token),
            "join_urls": urls.iter().map(|url| join(url, &self.token)).collect::<Vec<_>>(),
            "urls": urls,
            "worker_url": self.worker_url(),
            "door_urls": self.page().map(Origins::shared),
            "qr": self.qr_url(),
            "api_key": self.kept_key.as_ref().map(|kept| &kept.value),
            "api_key_file": self.kept_key.as_ref().map(|kept| &kept.path),
            "ca": authority.map(|authority| json!({
                "fingerprint": authority.fingerprint().to_string(),
                "certificate": Authority::path(&self.state),
            })),
        })
    }

    /// What a person is told: what is served, where, and what to do next.
    pub(super) fn greeting(&self, model: &str, next: &str) -> String {
        let mut notes: Vec<String> = Vec::new();
        if self.page().is_some() {
            let scan = if self.shows_qr { "scan the code, or " } else { "" };
            notes.push(format!(
                "On a phone: {scan}open the first address. The page there shows how to trust this hub."
            ));
        }
        notes.push(next.to_owned());
        match &self.kept_key {
            Some(Kept { value, path, is_new: true }) => {
                notes.push(format!(
                    "Chat and API ask for the key {value} (shown this once, kept in {})",
                    path.display()
                ));
            }
            Some(Kept { path, .. }) => {
                notes.push(format!("Chat and API ask for the key in {}", path.display()));
            }
            None => {}
        }
        match (self.authority(), self.web.is_shared(), &self.certificate) {
            (Some(authority), ..) => notes.push(format!(
                "The certificate authority's SHA-256, to compare with what devices show: {}",
                authority.fingerprint().spelled()
            )),
            (None, true, None) if !self.web.is_https() => notes.push(CPU_ONLY.to_owned()),
            _ => {}
        }
        notes.push("Ctrl-C stops it.".to_owned());
        let url = self.qr_url();
        Greeting {
            model,
            phone: self.page().is_some().then_some(url.as_str()),
            qr: self.shows_qr.then_some(url.as_str()),
            origins: &self.web.shared(),
            token: &self.token,
            worker: self.authority().is_some().then(|| self.worker_url()).as_deref(),
            notes: &notes,
        }
        .text(greeting::columns())
    }

    /// Where the page for phones is; with a certificate of the user's own there is nothing to explain.
    fn page(&self) -> Option<&Origins> {
        self.plain.as_ref().filter(|_| self.authority().is_some())
    }

    fn authority(&self) -> Option<&Authority> {
        self.certificate.as_ref()?.authority()
    }

    /// What the QR code holds: the page for phones if there is one, with the token where only its script reads it.
    fn qr_url(&self) -> String {
        match self.page() {
            Some(plain) => format!("{}/#{}", plain.shared()[0], self.token),
            None => join(&self.web.shared()[0], &self.token),
        }
    }

    /// The join URL with which a native worker knows the hub by its authority.
    fn worker_url(&self) -> String {
        let authority = self.authority().map(|authority| authority.fingerprint().to_string());
        format!("{}/join#{}", self.web.shared()[0], links::fragment(&self.token, authority.as_deref()))
    }
}

/// What a plain port beside https serves of its own: the page about the authority, or nothing but the way on.
fn pages(certificate: &Certificate, web: &Origins) -> axum::Router {
    let Some(authority) = certificate.authority() else { return axum::Router::new() };
    page::router(page::Told {
        https_port: web.port(),
        certificate: authority.certificate().to_vec(),
        pem: authority.pem().to_owned(),
        fingerprint: authority.fingerprint().spelled(),
        name: authority.name(),
        host: web.first_host().to_owned(),
    })
}

fn join(origin: &str, token: &str) -> String {
    format!("{origin}/join#{}", links::fragment(token, None))
}

fn new_secret() -> Result<String, String> {
    values::secret().map_err(|error| error.to_string())
}

/// Binds the address; all addresses of both families if it is IPv6's for all and the system has IPv6.
async fn bind_all(address: SocketAddr, flag: &str) -> anyhow::Result<Vec<TcpListener>> {
    if address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        return Ok(vec![listen::bind(address, flag).await?]);
    }
    let both = match TcpListener::bind(address).await {
        Ok(both) => both,
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            return Ok(vec![listen::bind(address, flag).await?]);
        }
        Err(_) => return Ok(vec![listen::bind((Ipv4Addr::UNSPECIFIED, address.port()).into(), flag).await?]),
    };
    // Where IPv6's socket takes IPv4 too, this one is in use already.
    let port = both.local_addr()?.port();
    let other = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await;
    Ok([Some(both), other.ok()].into_iter().flatten().collect())
}
