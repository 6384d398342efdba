//! The Chrome DevTools Protocol: commands, answers and events as JSON, over one WebSocket
//! (<https://chromedevtools.github.io/devtools-protocol/>).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::tungstenite::{Message, protocol::WebSocketConfig};

use crate::hub::PATIENCE;

/// What is called with each event of a session: its method, as `Page.loadEventFired`, and its parameters.
pub(super) type Listener = Box<dyn Fn(&str, &Value) + Send>;

/// A connection to a Chromium. Clones share it.
#[derive(Clone)]
pub(super) struct DevTools {
    commands: mpsc::Sender<Message>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    last_id: u64,
    /// Whoever waits for an answer, by the id of the command.
    waiting: HashMap<u64, oneshot::Sender<Value>>,
    /// By the id of the session.
    listeners: HashMap<String, Listener>,
}

impl DevTools {
    /// Connects to the address that Chromium prints.
    pub(super) async fn connect(url: &str) -> Result<Self> {
        // A screenshot comes in one frame.
        let limits = WebSocketConfig::default().max_frame_size(None).max_message_size(None);
        let (socket, _) = tokio_tungstenite::connect_async_with_config(url, Some(limits), true).await?;
        let (mut outgoing, mut incoming) = socket.split();
        let (commands, mut to_send) = mpsc::channel(16);
        let state = Arc::new(Mutex::new(State::default()));
        tokio::spawn(async move {
            while let Some(message) = to_send.recv().await {
                if outgoing.send(message).await.is_err() {
                    return;
                }
            }
        });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Some(Ok(message)) = incoming.next().await {
                if let Ok(message) = serde_json::from_slice(&message.into_data()) {
                    lock(&shared).take(message);
                }
            }
            // Whoever still waits is told so.
            lock(&shared).waiting.clear();
        });
        Ok(Self { commands, state })
    }

    /// The result of a command, given to the browser or to one of its sessions.
    pub(super) async fn command(
        &self,
        session: Option<&str>,
        method: &str,
        parameters: Value,
    ) -> Result<Value> {
        let (answer, answered) = oneshot::channel();
        let id = lock(&self.state).wait(answer);
        let mut command = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = session {
            command["sessionId"] = json!(session);
        }
        let gone = || format!("Chromium ended before it answered to {method}");
        self.commands.send(Message::text(command.to_string())).await.ok().with_context(gone)?;
        let answer = tokio::time::timeout(PATIENCE, answered)
            .await
            .map_err(|_| anyhow!("Chromium does not answer to {method}"))?
            .with_context(gone)?;
        if let Some(error) = answer.get("error") {
            bail!("{method}: {}", error["message"].as_str().unwrap_or("refused without a reason"));
        }
        Ok(answer["result"].clone())
    }

    /// Calls the listener with each of a session's events from now on. There is one listener for a session.
    pub(super) fn listen(&self, session: &str, listener: Listener) {
        lock(&self.state).listeners.insert(session.to_owned(), listener);
    }
}

impl State {
    fn wait(&mut self, answer: oneshot::Sender<Value>) -> u64 {
        self.last_id += 1;
        self.waiting.insert(self.last_id, answer);
        self.last_id
    }

    fn take(&mut self, message: Value) {
        if let Some(id) = message["id"].as_u64() {
            if let Some(answer) = self.waiting.remove(&id) {
                // Whoever asked may have left.
                drop(answer.send(message));
            }
            return;
        }
        let listener = message["sessionId"].as_str().and_then(|session| self.listeners.get(session));
        if let (Some(listener), Some(method)) = (listener, message["method"].as_str()) {
            listener(method, &message["params"]);
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
