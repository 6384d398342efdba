//! A TCP proxy on loopback that the test can slow down and cut, as a bad Wi-Fi would.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the link does at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Passes bytes on as they come.
    Open,
    /// Passes on so many bytes a second towards the client.
    Slow(usize),
    /// Refuses new connections and has reset those that were open.
    Cut,
}

/// The proxy; it ends when dropped.
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    link: Arc<watch::Sender<Link>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and passes connections on to `target`.
    pub async fn start(target: SocketAddr, link: Link) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let link = Arc::new(watch::Sender::new(link));
        let links = Arc::clone(&link);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *links.borrow() != Link::Cut {
                    tokio::spawn(carry(client, target, links.subscribe()));
                }
            }
        });
        Ok(Self { address, link, accepting })
    }

    /// Changes the link, for open connections too.
    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.link.send_replace(Link::Cut);
        self.accepting.abort();
    }
}

/// Carries one connection until an end closes it or the link is cut.
async fn carry(client: TcpStream, target: SocketAddr, mut link: watch::Receiver<Link>) {
    let Ok(hub) = TcpStream::connect(target).await else { return };
    // A reset, not an orderly end: what a cut link looks like once the peer has been unreachable for long enough.
    let _ = client.set_zero_linger();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_hub, mut to_hub) = hub.into_split();
    let rate = link.clone();
    let down = async move {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = from_hub.read(&mut buffer).await {
            let state = *rate.borrow();
            if let Link::Slow(bytes_per_second) = state {
                tokio::time::sleep(Duration::from_secs_f64(n as f64 / bytes_per_second as f64)).await;
            }
            if to_client.write_all(&buffer[..n]).await.is_err() {
                return;
            }
        }
    };
    let up = async move { tokio::io::copy(&mut from_client, &mut to_hub).await };
    tokio::select! {
        () = down => {}
        _ = up => {}
        _ = link.wait_for(|link| *link == Link::Cut) => {}
    }
}
