//! Connects to a hub: TCP, TLS if the join URL is https, then the WebSocket handshake. Follows no redirect.

use std::sync::Arc;
use std::time::Duration;

use moex_protocol::{SUBPROTOCOL, limits};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderValue, Request, header};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::join_url::JoinUrl;
use super::tls::Trust;
use crate::core::ConnectionError;

/// The time limit for opening a connection, or for sending a message.
pub(super) const SOCKET_TIMEOUT: Duration = Duration::from_secs(10);

/// The read buffer, about the rows of a decode step. It is zeroed before each read.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// The byte stream under a WebSocket: TCP or TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An open connection to the hub.
pub(super) type Socket = WebSocketStream<Box<dyn Stream>>;

/// A hub's address and how its certificate is checked.
pub(super) struct Route {
    request: Request<()>,
    url: String,
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// Whether the certificate is checked against the hub's own authority, which follows the hub's addresses.
    is_own_authority: bool,
}

impl Route {
    /// The route to the hub of this URL; `tls` is the configuration made of `trust`, for https.
    ///
    /// # Errors
    /// One sentence, if the URL has no valid host.
    pub(super) fn new(
        join: &JoinUrl,
        trust: &Trust,
        tls: Option<rustls::ClientConfig>,
    ) -> Result<Self, String> {
        let url = join.socket.to_string();
        let no_host = || format!("`{url}` has no host to connect to.");
        let host = join.socket.host_str().ok_or_else(no_host)?.trim_matches(['[', ']']).to_owned();
        let port = join.socket.port_or_known_default().ok_or_else(no_host)?;
        let mut request = url.as_str().into_client_request().map_err(|error| format!("`{url}`: {error}."))?;
        request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
        let tls = match tls {
            Some(config) => {
                let name = ServerName::try_from(host.clone()).map_err(|_| no_host())?;
                Some((TlsConnector::from(Arc::new(config)), name))
            }
            None => None,
        };
        let is_own_authority = !matches!(trust, Trust::System);
        Ok(Self { request, url, host, port, tls, is_own_authority })
    }

    /// The WebSocket's address.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Connects, within [`SOCKET_TIMEOUT`].
    pub(super) async fn connect(&self) -> Result<Socket, ConnectionError> {
        match timeout(SOCKET_TIMEOUT, self.open()).await {
            Ok(opened) => opened,
            Err(_) => Err(ConnectionError::Disconnected("no answer".into())),
        }
    }

    async fn open(&self) -> Result<Socket, ConnectionError> {
        let no_answer = |error: std::io::Error| ConnectionError::Disconnected(error.to_string());
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(no_answer)?;
        tcp.set_nodelay(true).map_err(no_answer)?;
        let stream: Box<dyn Stream> = match &self.tls {
            Some((connector, name)) => {
                Box::new(connector.connect(name.clone(), tcp).await.map_err(|error| self.tls_error(&error))?)
            }
            None => Box::new(tcp),
        };
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .max_message_size(Some(limits::MAX_MESSAGE_BYTES))
            .max_frame_size(Some(limits::MAX_MESSAGE_BYTES));
        match tokio_tungstenite::client_async_with_config(self.request.clone(), stream, Some(config)).await {
            Ok((socket, _)) => Ok(socket),
            Err(error) => Err(ConnectionError::Disconnected(error.to_string())),
        }
    }

    fn tls_error(&self, error: &std::io::Error) -> ConnectionError {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(error) => refused(&self.url, error, self.is_own_authority),
            None => ConnectionError::Disconnected(format!("no TLS: {error}")),
        }
    }
}

/// Classifies a failed handshake with the hub at `url`.
fn refused(url: &str, error: &rustls::Error, is_own_authority: bool) -> ConnectionError {
    use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
    match error {
        rustls::Error::General(reason) => {
            ConnectionError::Untrusted(format!("{url} is not trusted: {reason}."))
        }
        // Names are checked last, so the signatures and dates are right.
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })
            if is_own_authority =>
        {
            ConnectionError::AddressNotInCertificate(format!(
                "{url} is not trusted: the hub's certificate does not name this address."
            ))
        }
        rustls::Error::InvalidCertificate(reason) => ConnectionError::Untrusted(format!(
            "{url} is not trusted ({reason}): give the whole join URL that the hub prints for workers, with `,ca=...`, or its \
             certificate authority with --ca."
        )),
        error => ConnectionError::Disconnected(format!("no TLS: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use rustls::{CertificateError, Error};

    use super::*;

    fn kind(error: Error, is_own_authority: bool) -> &'static str {
        match refused("wss://desk.local/ws", &error, is_own_authority) {
            ConnectionError::Disconnected(_) => "try again",
            ConnectionError::AddressNotInCertificate(_) => "try again for a while",
            ConnectionError::Untrusted(_) => "never again",
        }
    }

    #[test]
    fn only_a_missing_name_under_the_hubs_own_authority_is_waited_for() {
        let missing_name = || Error::InvalidCertificate(CertificateError::NotValidForName);
        let with_context = Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("192.168.1.7").unwrap(),
            presented: vec!["IpAddress(127.0.0.1)".into()],
        });
        assert_eq!(kind(missing_name(), true), "try again for a while");
        assert_eq!(kind(with_context, true), "try again for a while");
        assert_eq!(
            kind(missing_name(), false),
            "never again",
            "a public authority renews nothing in seconds"
        );
        for wrong in [
            CertificateError::UnknownIssuer,
            CertificateError::BadSignature,
            CertificateError::Expired,
            CertificateError::Revoked,
        ] {
            assert_eq!(kind(Error::InvalidCertificate(wrong), true), "never again");
        }
        assert_eq!(kind(Error::General("another fingerprint".into()), true), "never again");
        assert_eq!(kind(Error::HandshakeNotComplete, true), "try again");
    }
}
