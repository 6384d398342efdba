//! An accepted connection, plain TCP or TLS, that can move between runtimes with its buffers.

use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection_limit::{ConnectionPermit, Phase};
use crate::pace::Pace;

/// How long a peer may accept no bytes before the connection ends.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// What the system takes for a peer beyond what it can send: it would take megabytes of an answer that nobody reads, which
/// is then computed for nobody.
const UNSENT_BYTES: u32 = 32 << 10;

/// An accepted connection and its permit.
pub(super) struct Stream {
    transport: Transport,
    permit: ConnectionPermit,
    /// What may still be read; none for no limit.
    allowance: Option<Allowance>,
    /// Runs while the peer accepts no bytes.
    stalled: Option<Pin<Box<Sleep>>>,
}

/// What may be read of a stranger.
struct Allowance {
    /// Bytes.
    left: usize,
    /// The pace of all strangers.
    pace: Arc<Pace>,
    /// Runs between two reads.
    rest: Option<Pin<Box<Sleep>>>,
}

/// A [`Stream`] that is attached to no runtime.
pub(super) struct DetachedStream(Stream);

/// A connection after its WebSocket handshake, detached from the runtime that accepted it.
pub(super) struct Opened {
    pub stream: DetachedStream,
    /// Bytes that were read together with the handshake.
    pub already_read: Bytes,
    pub address: String,
}

enum Transport {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

/// A TCP socket, attached to a runtime or detached.
enum Socket {
    Here(TcpStream),
    Detached(std::net::TcpStream),
    /// Left behind if moving it failed.
    Lost,
}

/// Sets how much the system takes beyond what it can send; 0 for its own limit.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn limit_unsent(tcp: &TcpStream, n_bytes: u32) -> io::Result<()> {
    socket2::SockRef::from(tcp).set_tcp_notsent_lowat(n_bytes)
}

/// Other systems have no such limit, or no interface to it: there more of an answer is computed before it waits.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn limit_unsent(_: &TcpStream, _: u32) -> io::Result<()> {
    Ok(())
}

impl Stream {
    /// Opens an accepted socket, with TLS's handshake if there is an acceptor. Sets TCP_NODELAY, since a layer's
    /// message is small and nothing follows it.
    pub(super) async fn open(
        tcp: TcpStream,
        tls: Option<&TlsAcceptor>,
        permit: ConnectionPermit,
    ) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        limit_unsent(&tcp, UNSENT_BYTES)?;
        let socket = Socket::Here(tcp);
        let transport = match tls {
            None => Transport::Plain(socket),
            Some(tls) => Transport::Tls(Box::new(tls.accept(socket).await?)),
        };
        Ok(Self { transport, permit, allowance: None, stalled: None })
    }

    /// Detaches it from its runtime, as a WebSocket, whose messages are bounded where they are queued.
    pub(super) fn detach(mut self) -> io::Result<DetachedStream> {
        self.stalled = None;
        self.change_socket(|socket| match socket {
            Socket::Here(tcp) => {
                limit_unsent(&tcp, 0)?;
                tcp.into_std().map(Socket::Detached)
            }
            elsewhere => Ok(elsewhere),
        })?;
        Ok(DetachedStream(self))
    }

    /// Limits the bytes that the peer may still send, and how fast they are read: at once what comes first, the rest at `pace`.
    pub(super) fn allow(&mut self, n_bytes: usize, pace: Arc<Pace>) {
        self.allowance = Some(Allowance { left: n_bytes, pace, rest: None });
    }

    /// Removes the limits of a stranger and keeps the peer's permit.
    pub(super) fn trust(&mut self) {
        self.allowance = None;
        self.permit.enter(Phase::Joined);
    }

    pub(super) fn permit(&self) -> &ConnectionPermit {
        &self.permit
    }

    fn change_socket(&mut self, change: impl FnOnce(Socket) -> io::Result<Socket>) -> io::Result<()> {
        let socket = match &mut self.transport {
            Transport::Plain(socket) => socket,
            Transport::Tls(tls) => tls.get_mut().0,
        };
        *socket = change(mem::replace(socket, Socket::Lost))?;
        Ok(())
    }

    fn transport(&mut self) -> Pin<&mut dyn Duplex> {
        match &mut self.transport {
            Transport::Plain(socket) => Pin::new(socket),
            Transport::Tls(tls) => Pin::new(tls),
        }
    }

    /// Passes `progress` on; an error once there has been none for [`WRITE_TIMEOUT`].
    fn in_time<T>(&mut self, cx: &mut Context<'_>, progress: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.stalled = None;
            return progress;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")))
    }
}

impl DetachedStream {
    /// Attaches it to the current task's runtime.
    pub(super) fn attach(self) -> io::Result<Stream> {
        let Self(mut stream) = self;
        stream.change_socket(|socket| match socket {
            Socket::Detached(tcp) => TcpStream::from_std(tcp).map(Socket::Here),
            elsewhere => Ok(elsewhere),
        })?;
        Ok(stream)
    }
}

trait Duplex: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(Allowance { left, rest, .. }) = &mut self.allowance else {
            return self.transport().poll_read(cx, buffer);
        };
        if *left == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::FileTooLarge, "the peer sends too much")));
        }
        if let Some(rest) = rest {
            ready!(rest.as_mut().poll(cx));
        }
        let room = buffer.remaining().min(*left);
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(room));
        ready!(self.transport().poll_read(cx, &mut part))?;
        let n_bytes = part.filled().len();
        buffer.advance(n_bytes);
        if let Some(Allowance { left, pace, rest }) = &mut self.allowance {
            *left -= n_bytes;
            let now = Instant::now();
            let due = pace.due(n_bytes, now);
            *rest = (due > now).then(|| Box::pin(sleep_until(due)));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.transport().poll_write(cx, bytes);
        self.in_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.transport().poll_write_vectored(cx, parts);
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(socket) => socket.is_write_vectored(),
            Transport::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.transport().poll_flush(cx);
        self.in_time(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.transport().poll_shutdown(cx);
        self.in_time(cx, shut)
    }
}

impl Socket {
    fn tcp(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        match self {
            Self::Here(tcp) => Ok(Pin::new(tcp)),
            Self::Detached(_) | Self::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.tcp()?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.tcp()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.tcp()?.poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp()?.poll_shutdown(cx)
    }
}
