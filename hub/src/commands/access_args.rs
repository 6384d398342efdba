//! Flags of `serve` for addresses, certificates and secrets, and the listeners made from them.

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
use crate::access::authority::Authority;
use crate::access::certificate::{Certificate, Source};
use crate::access::greeting::{self, Greeting};
use crate::access::links::{self, Origins};
use crate::access::mdns::{self, Announced};
use crate::access::revocations::Revocations;
use crate::access::state_folder::{Replace, SecretError, StateFolder, StoredSecret};
use crate::access::{addresses, page};
use crate::server::{self, Listener, PublicUrl, Surface};

/// Default address.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Default address with `--lan`.
const DEFAULT_LAN: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 8080);
/// The cost of plain http to a tab on another machine.
const CPU_ONLY: &str = "Browsers give WebGPU to https and localhost only: a tab on another machine computes on its CPU. \
                        `--lan` opens an https port that they can trust.";

/// The flags.
#[derive(clap::Args, Debug)]
pub(super) struct AccessArgs {
    /// Open the hub to this network: an https port with its own certificate authority (created at the first start), a
    /// page on --port that shows phones how to trust it, a QR code, mDNS, and an API key (created and kept if none is
    /// given).
    #[arg(long, env = "MOEX_LAN", value_parser = FalseyValueParser::new())]
    lan: bool,

    /// Address to listen on: a port, an IP address or both, such as 8080, 0.0.0.0 or 127.0.0.1:8080. Default:
    /// 127.0.0.1:8080, or all addresses with --lan. Port 0 takes a free port. Addresses beyond loopback need an API
    /// key.
    #[arg(long, env = "MOEX_LISTEN", value_name = "ADDRESS")]
    listen: Option<Listen>,

    /// Port to listen on if --listen names none. Default: 8080.
    #[arg(long, env = "MOEX_PORT", value_name = "PORT")]
    port: Option<u16>,

    /// Port for https with --lan.
    #[arg(long, env = "MOEX_HTTPS_PORT", value_name = "PORT", default_value_t = 8443)]
    https_port: u16,

    /// Serve https with this certificate chain: a PEM file, read again when it changes.
    #[arg(long, env = "MOEX_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert: a PEM file.
    #[arg(long, env = "MOEX_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// URL by which others reach the hub through a proxy: https://HOST. Printed links use it.
    #[arg(long, env = "MOEX_PUBLIC_URL", value_name = "URL")]
    pub(super) public_url: Option<PublicUrl>,

    /// Token that workers join with. Default: one created at the first start and kept, so that links and open tabs stay
    /// valid after a restart. All hubs with the same state folder share it.
    #[arg(long, env = "MOEX_TOKEN", hide_env_values = true, value_parser = values::token)]
    token: Option<String>,

    /// Replace the kept token: links and invitations given out before no longer work.
    #[arg(long, env = "MOEX_NEW_TOKEN", value_parser = FalseyValueParser::new(), conflicts_with = "token")]
    new_token: bool,

    /// API key that clients must send as `Authorization: Bearer KEY`.
    #[arg(long, env = "MOEX_API_KEY", hide_env_values = true, value_name = "KEY", value_parser = values::api_key)]
    api_key: Option<String>,

    /// With --lan, replace the kept API key.
    #[arg(long, env = "MOEX_NEW_API_KEY", value_parser = FalseyValueParser::new(), requires = "lan", conflicts_with = "api_key")]
    new_api_key: bool,

    /// Folder for token, API key and certificate authority, readable by this user alone. Default: `moex` in the user's
    /// state folder.
    #[arg(long, env = "MOEX_STATE", value_name = "DIR")]
    state: Option<PathBuf>,

    /// Do not announce the hub on the network (mDNS).
    #[arg(long, env = "MOEX_NO_MDNS", value_parser = FalseyValueParser::new())]
    no_mdns: bool,

    /// Show the QR code even if stderr is no terminal, or without --lan.
    #[arg(long, env = "MOEX_QR", value_parser = FalseyValueParser::new())]
    qr: bool,
}

/// The hub's bound listeners, with the secrets and URLs that belong to them.
pub(super) struct Opened {
    /// The listeners to serve on.
    pub(super) listeners: Vec<Listener>,
    /// The token that workers join with.
    pub(super) token: String,
    /// The invitations that admit nobody any more.
    pub(super) revocations: Revocations,
    /// The API key that clients must send, if any.
    pub(super) api_key: Option<String>,
    /// Origins of the chat, API, swarm and join pages.
    web: Origins,
    /// Origins of the plain http port beside https.
    plain: Option<Origins>,
    /// Origin by which this machine's own workers join.
    local: String,
    state: StateFolder,
    stored_key: Option<StoredSecret>,
    certificate: Option<Arc<Certificate>>,
    shows_qr: bool,
    _announced: Option<Announced>,
}

impl AccessArgs {
    /// Binds every address that the flags ask for, and reads or creates the secrets. Fails at once if a port is in use.
    pub(super) async fn open(&self, brings_workers: bool) -> anyhow::Result<Opened> {
        let default = if self.lan { DEFAULT_LAN } else { DEFAULT_LISTEN };
        let address = self.listen.clone().unwrap_or_default().resolve(self.port, default)?;
        if !address.ip().is_loopback() && self.api_key.is_none() && !self.lan {
            bail!(
                "{address} can be reached from other machines: give the hub an --api-key, open it with --lan, or listen on 127.0.0.1"
            );
        }
        if self.lan && address.port() == self.https_port && address.port() != 0 {
            bail!(
                "port {} is the https port of --lan, and its plain pages need one too: name another for them, or for https by --https-port",
                self.https_port
            );
        }
        let plain = bind_all(address, "--port")?;
        let https = match self.lan {
            true => bind_all(SocketAddr::new(address.ip(), self.https_port), "--https-port")?,
            false => Vec::new(),
        };
        let state = StateFolder::at(self.state.clone().unwrap_or_else(StateFolder::default_path));
        let token = self.token(&state)?;
        let revocations = self.revocations(&state)?;
        let stored_key = self.stored_key(&state)?;
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
        let plain_origins = self.lan.then(|| Origins::new("http", plain_at, &names));

        let mut listeners = Vec::new();
        let mut local = plain_origins.as_ref().map_or(local, Origins::local);
        match &certificate {
            None => listeners.extend(plain.into_iter().map(Listener::plain)),
            Some(certificate) => {
                let tls = Arc::new(certificate.server_config().context("there is no TLS")?);
                let secure = |tcp| Listener { tcp, tls: Some(tls.clone()), surface: Surface::Everything };
                if self.lan {
                    listeners.extend(https.into_iter().map(secure));
                    let pages = || pages(certificate, &web);
                    let plain_port = |tcp| Listener {
                        tcp,
                        tls: None,
                        surface: Surface::Plain(server::PlainPort::new(pages(), web.port())),
                    };
                    listeners.extend(plain.into_iter().map(plain_port));
                } else {
                    listeners.extend(plain.into_iter().map(secure));
                    if brings_workers {
                        // The certificate may name hosts other than this machine's loopback address.
                        let inner = listen::bind((Ipv4Addr::LOCALHOST, 0).into(), "--port")?;
                        local = format!("http://{}", inner.local_addr()?);
                        listeners.push(Listener::plain(inner));
                    }
                }
            }
        }
        Ok(Opened {
            listeners,
            api_key: self.api_key.clone().or_else(|| stored_key.as_ref().map(|stored| stored.value.clone())),
            token,
            revocations,
            web,
            plain: plain_origins,
            local,
            state,
            stored_key,
            certificate,
            shows_qr: self.qr || (self.lan && stderr().is_terminal()),
            _announced: announced,
        })
    }

    /// Returns the kept token, or a new one. If the state folder is not writable, the token lasts until the next start.
    fn token(&self, state: &StateFolder) -> anyhow::Result<String> {
        if let Some(token) = &self.token {
            return Ok(token.clone());
        }
        match state.keep("join-token", Replace::when(self.new_token), values::token, new_secret) {
            Ok(StoredSecret { value, .. }) => Ok(value),
            Err(error @ SecretError::Io { .. }) if !self.lan => {
                tracing::warn!("the join token changes with each start: {error}");
                values::secret()
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The invitations that were revoked with the kept token.
    fn revocations(&self, state: &StateFolder) -> Result<Revocations, SecretError> {
        if self.new_token {
            Revocations::clear(state)?;
        }
        Revocations::open(state.clone())
    }

    fn stored_key(&self, state: &StateFolder) -> anyhow::Result<Option<StoredSecret>> {
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

    /// Announces the hub on the network; a hub on loopback or with `--no-mdns` is not announced. A failure is one
    /// warning.
    fn announce(&self, at: SocketAddr, is_tls: bool, certificate: Option<&Certificate>) -> Option<Announced> {
        let is_wanted = !self.no_mdns && !addresses::reachable(at.ip()).is_empty();
        let host_name = is_wanted.then(addresses::host_name).flatten()?;
        let authority = certificate.and_then(Certificate::authority).map(Authority::fingerprint);
        let address = Some(at.ip()).filter(|ip| !ip.is_unspecified());
        let hub = mdns::Hub { host_name, port: at.port(), address, is_tls, authority };
        mdns::announce(&hub).inspect_err(|error| tracing::warn!("{error}")).ok()
    }
}

impl Opened {
    /// The address for other machines, or the local one if no other machine can reach the hub.
    pub(super) fn url(&self) -> String {
        self.web.shared().swap_remove(0)
    }

    /// The URL by which this machine's own workers join.
    pub(super) fn local_join(&self) -> String {
        join(&self.local, &self.token)
    }

    /// All addresses and paths as JSON, for programs.
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
            "setup_urls": self.page().map(Origins::shared),
            "qr": self.qr_url(),
            "api_key": self.stored_key.as_ref().map(|stored| &stored.value),
            "api_key_file": self.stored_key.as_ref().map(|stored| &stored.path),
            "ca": authority.map(|authority| json!({
                "fingerprint": authority.fingerprint().to_string(),
                "certificate": Authority::path(&self.state),
            })),
        })
    }

    /// The text printed at start: what is served, where, and what to do next.
    pub(super) fn greeting(&self, model: &str, next: &str) -> String {
        let mut notes: Vec<String> = Vec::new();
        if self.page().is_some() {
            let scan = if self.shows_qr { "scan the code, or " } else { "" };
            notes.push(format!(
                "On a phone: {scan}open the first address. The page there shows how to trust this hub."
            ));
        }
        notes.push(next.to_owned());
        match &self.stored_key {
            Some(StoredSecret { value, path, is_new: true }) => {
                notes.push(format!(
                    "Chat and API ask for the key {value} (shown this once, kept in {})",
                    path.display()
                ));
            }
            Some(StoredSecret { path, .. }) => {
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

    /// Origins of the page for phones; none with the user's own certificate, which needs no explanation.
    fn page(&self) -> Option<&Origins> {
        self.plain.as_ref().filter(|_| self.authority().is_some())
    }

    fn authority(&self) -> Option<&Authority> {
        self.certificate.as_ref()?.authority()
    }

    /// URL in the QR code: the page for phones if there is one, with the token in the fragment.
    fn qr_url(&self) -> String {
        match self.page() {
            Some(plain) => format!("{}/#{}", plain.shared()[0], self.token),
            None => join(&self.web.shared()[0], &self.token),
        }
    }

    /// Join URL that carries the authority's fingerprint, for native workers.
    fn worker_url(&self) -> String {
        let authority = self.authority().map(|authority| authority.fingerprint().to_string());
        format!("{}/join#{}", self.web.shared()[0], links::fragment(&self.token, authority.as_deref()))
    }
}

/// Pages of the plain http port beside https: how to trust the authority, or only a link to https.
fn pages(certificate: &Certificate, web: &Origins) -> axum::Router {
    let Some(authority) = certificate.authority() else { return axum::Router::new() };
    page::router(page::PageValues {
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

/// Binds the address. IPv6's unspecified address binds all addresses of both families if the system has IPv6.
fn bind_all(address: SocketAddr, flag: &str) -> anyhow::Result<Vec<TcpListener>> {
    if address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        return Ok(vec![listen::bind(address, flag)?]);
    }
    let both = match listen::listen(address) {
        Ok(both) => both,
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            return Ok(vec![listen::bind(address, flag)?]);
        }
        Err(_) => return Ok(vec![listen::bind((Ipv4Addr::UNSPECIFIED, address.port()).into(), flag)?]),
    };
    // On systems where the IPv6 socket accepts IPv4 too, this address is already in use.
    let port = both.local_addr()?.port();
    let other = listen::listen((Ipv4Addr::UNSPECIFIED, port).into());
    Ok([Some(both), other.ok()].into_iter().flatten().collect())
}
