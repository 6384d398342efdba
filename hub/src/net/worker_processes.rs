//! Native workers as processes of the `moex` binary, for hubs that bring their own.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use moex_worker::native::BusyPoll;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};

/// How long a worker outlives a hub that was killed before it could end its workers.
const PATIENCE_SECONDS: &str = "10";

/// Running workers; dropping this kills them.
pub struct WorkerProcesses {
    workers: Vec<WorkerProcess>,
}

/// How a worker ended that was not told to.
#[derive(Debug, thiserror::Error)]
#[error("a worker ended with {status}: {last_line}")]
pub struct WorkerEnded {
    /// How.
    pub status: ExitStatus,
    /// The last that it said.
    pub last_line: String,
}

struct WorkerProcess {
    child: Child,
    last_line: Arc<Mutex<String>>,
}

impl WorkerProcesses {
    /// Starts `count` workers on the CPU that join by this URL; `program` is the binary, this process's own if none.
    /// They look for messages or sleep as `busy_poll` says. Call it within a tokio runtime.
    ///
    /// # Errors
    /// If the system starts no process.
    pub fn start(
        count: usize,
        join_url: &str,
        program: Option<&Path>,
        busy_poll: BusyPoll,
    ) -> io::Result<Self> {
        let program = program.map_or_else(std::env::current_exe, |program| Ok(program.to_owned()))?;
        let workers = (0..count)
            .map(|_| WorkerProcess::start(&program, join_url, busy_poll))
            .collect::<io::Result<_>>()?;
        Ok(Self { workers })
    }

    /// How many were started.
    pub fn count(&self) -> usize {
        self.workers.len()
    }

    /// The first that has ended, if one has.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn ended(&mut self) -> io::Result<Option<WorkerEnded>> {
        for worker in &mut self.workers {
            if let Some(status) = worker.child.try_wait()? {
                let last_line = worker.last_line.lock().unwrap_or_else(PoisonError::into_inner);
                let last_line = last_line.trim_start_matches("moex: ").to_owned();
                return Ok(Some(WorkerEnded { status, last_line }));
            }
        }
        Ok(None)
    }

    /// Kills them and waits until they are gone.
    pub async fn stop(&mut self) {
        for mut worker in self.workers.drain(..) {
            // One that has ended by itself is as dead as it needs to be.
            let _ = worker.child.kill().await;
        }
    }
}

impl WorkerProcess {
    fn start(program: &Path, join_url: &str, busy_poll: BusyPoll) -> io::Result<Self> {
        let mut child = Command::new(program)
            .args(["worker", "--device", "cpu", "--patience", PATIENCE_SECONDS])
            .args(busy_poll.is_on().then_some("--busy-poll"))
            // Not an argument: those are for everybody on the machine to read, and the URL holds the token.
            .env("MOEX_JOIN_URL", join_url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let last_line = Arc::new(Mutex::new(String::new()));
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(keep_last_line(stderr, last_line.clone()));
        }
        Ok(Self { child, last_line })
    }
}

/// Reads all that a worker says, so that it never waits for this process.
async fn keep_last_line(stderr: ChildStderr, last: Arc<Mutex<String>>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if !line.trim().is_empty() {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = line;
        }
    }
}
