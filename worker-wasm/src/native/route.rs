//! The way to the hub: TCP, TLS if the join URL says so, and the WebSocket's handshake. It follows no redirect.

use std::sync::Arc;

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

use super::connection::SOCKET_TIMEOUT;
use super::join_url::JoinUrl;

/// Bytes the socket reads at a time: a decode step's rows. It is zeroed before each look at the socket.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// What a WebSocket runs over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An open connection to the hub.
pub(super) type Socket = WebSocketStream<Box<dyn Stream>>;

/// Where the hub is, and how it is known.
pub(super) struct Route {
    request: Request<()>,
    url: String,
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// Why there is no connection.
pub(super) enum ConnectError {
    /// Nothing that a hub would say came; it may later.
    NoAnswer(String),
    /// Who answers is not who the link or the system vouches for: trying again would not mend it.
    Stranger(String),
}

impl Route {
    /// The way to the hub of this URL; `tls` for https.
    ///
    /// # Errors
    /// One sentence, if the URL's host can be no host.
    pub(super) fn new(join: &JoinUrl, tls: Option<rustls::ClientConfig>) -> Result<Self, String> {
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
        Ok(Self { request, url, host, port, tls })
    }

    /// The WebSocket's address.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Connects, within [`SOCKET_TIMEOUT`].
    pub(super) async fn connect(&self) -> Result<Socket, ConnectError> {
        match timeout(SOCKET_TIMEOUT, self.open()).await {
            Ok(opened) => opened,
            Err(_) => Err(ConnectError::NoAnswer("no answer".into())),
        }
    }

    async fn open(&self) -> Result<Socket, ConnectError> {
        let no_answer = |error: std::io::Error| ConnectError::NoAnswer(error.to_string());
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
            Err(error) => Err(ConnectError::NoAnswer(error.to_string())),
        }
    }

    fn tls_error(&self, error: &std::io::Error) -> ConnectError {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::General(reason)) => {
                ConnectError::Stranger(format!("{} is not trusted: {reason}.", self.url))
            }
            Some(rustls::Error::InvalidCertificate(reason)) => ConnectError::Stranger(format!(
                "{} is not trusted ({reason}): give the whole join URL that the hub prints for workers, with `,ca=...`, or its \
                 certificate authority with --ca.",
                self.url
            )),
            _ => ConnectError::NoAnswer(format!("no TLS: {error}")),
        }
    }
}
