//! Runs a hub with the demo model inside this process, on a free loopback port.

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::check_grammar::own_program;
use crate::server::{self, Hub, HubConfig, Listener};
use moex_model::Compute;

/// A running hub.
pub(super) struct LocalHub {
    /// `http://127.0.0.1:PORT`.
    pub(super) url: String,
    /// The URL that workers join with.
    pub(super) join_url: String,
    /// The model served and the formats it is computed with.
    pub(super) description: String,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
}

/// Starts a hub that computes with `compute`.
pub(super) async fn start(token: String, compute: Compute) -> anyhow::Result<LocalHub> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let join_url = format!("{url}/join#{token}");
    let hub = Hub::open(
        HubConfig { token, compute, grammar_checker: own_program(), ..HubConfig::default() },
        |_, _| {},
    )
    .await?;
    let description = hub.description().to_owned();
    let (stop, stopped) = oneshot::channel();
    let stopped = async move {
        // Dropping the sender stops the hub too.
        let _ = stopped.await;
    };
    let serving = tokio::spawn(server::run(vec![Listener::plain(listener)], hub, stopped));
    Ok(LocalHub { url, join_url, description, stop, serving })
}

impl LocalHub {
    /// Stops the hub, including answers in progress.
    pub(super) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.serving.await;
    }
}
