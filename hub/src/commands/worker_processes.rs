//! Native workers as processes of this same binary, for the commands that bring their own.

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// How long a worker outlives a hub that was killed before it could end its workers.
const PATIENCE_SECONDS: &str = "10";

/// Running workers; dropping this kills them.
pub(super) struct WorkerProcesses {
    workers: Vec<WorkerProcess>,
}

struct WorkerProcess {
    child: Child,
    /// The last line it wrote, which says why if it ends.
    last_line: Arc<Mutex<String>>,
}

impl WorkerProcesses {
    /// Starts `count` workers on the CPU that join by this URL.
    pub(super) fn start(count: usize, join_url: &str) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("the path of this binary is not known")?;
        let workers = (0..count)
            .map(|_| {
                let mut child = Command::new(&binary)
                    .args(["worker", "--device", "cpu", "--patience", PATIENCE_SECONDS])
                    // Not an argument: those are for everybody on the machine to read, and the URL holds the token.
                    .env("MOEX_JOIN_URL", join_url)
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .kill_on_drop(true)
                    .spawn()
                    .context("a worker could not be started")?;
                let last_line = Arc::new(Mutex::new(String::new()));
                if let Some(stderr) = child.stderr.take() {
                    tokio::spawn(keep_last_line(stderr, last_line.clone()));
                }
                Ok(WorkerProcess { child, last_line })
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { workers })
    }

    /// How many were started.
    pub(super) fn count(&self) -> usize {
        self.workers.len()
    }

    /// Fails if one has ended, with its last words.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for worker in &mut self.workers {
            if let Some(status) = worker.child.try_wait()? {
                let said = worker.last_line.lock().unwrap_or_else(PoisonError::into_inner).clone();
                match said.as_str() {
                    "" => bail!("a worker ended with {status}"),
                    said => bail!("a worker ended with {status}: {}", said.trim_start_matches("moex: ")),
                }
            }
        }
        Ok(())
    }

    /// Kills them and waits until they are gone.
    pub(super) async fn stop(mut self) {
        for worker in &mut self.workers {
            // It may have ended by itself; then there is nothing left to kill.
            let _ = worker.child.kill().await;
        }
    }
}

/// Reads all a worker writes, so that it never waits for us.
async fn keep_last_line(stderr: tokio::process::ChildStderr, last: Arc<Mutex<String>>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if !line.trim().is_empty() {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = line;
        }
    }
}
