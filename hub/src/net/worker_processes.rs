//! Runs native workers as child processes of the hub: starts, watches and restarts them.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moex_worker::native::BusyPoll;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::{Instant, sleep};

use moex_protocol::peer_text;

/// How long a worker outlives a hub that was killed before it could end its workers.
const PATIENCE_SECONDS: &str = "10";
/// What each offers unless the environment says otherwise: several share this machine with the hub.
const MEMORY: &str = "4GiB";
/// Wait before a worker is restarted; it doubles with each restart in a row.
const FIRST_RESTART_DELAY: Duration = Duration::from_secs(1);
/// The longest such wait.
const MAX_RESTART_DELAY: Duration = Duration::from_mins(1);
/// Restarts in a row after which a worker is no longer restarted.
const MAX_RESTARTS: u32 = 10;
/// After running this long, a worker's restarts count from zero again.
const RAN_WELL: Duration = Duration::from_mins(10);
/// Interval between checks of the workers.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Running workers; dropping this kills them.
pub struct WorkerProcesses {
    command: WorkerCommand,
    workers: Vec<WorkerProcess>,
}

/// A worker ended on its own.
#[derive(Debug, thiserror::Error)]
#[error("a worker ended with {status}: {last_line}")]
pub struct WorkerEnded {
    /// Its exit status.
    pub status: ExitStatus,
    /// The last line of its output.
    pub last_line: String,
}

/// Program and arguments of a worker.
struct WorkerCommand {
    program: PathBuf,
    join_url: String,
    busy_poll: BusyPoll,
}

struct WorkerProcess {
    child: Child,
    last_line: Arc<Mutex<String>>,
    started: Instant,
    restarts: Restarts,
}

/// Restart policy of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Restarts {
    /// Restarts in a row.
    n: u32,
    /// When the next restart is due, if the worker has ended.
    due: Option<Instant>,
    is_given_up: bool,
}

impl WorkerProcesses {
    /// Starts `count` CPU workers that join by this URL; `program` is the binary, or none for this process's own.
    /// `busy_poll` is passed on to them. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the system cannot start a process.
    pub fn start(
        count: usize,
        join_url: &str,
        program: Option<&Path>,
        busy_poll: BusyPoll,
    ) -> io::Result<Self> {
        let program = program.map_or_else(std::env::current_exe, |program| Ok(program.to_owned()))?;
        let command = WorkerCommand { program, join_url: join_url.to_owned(), busy_poll };
        let workers = (0..count).map(|_| WorkerProcess::start(&command)).collect::<io::Result<_>>()?;
        Ok(Self { command, workers })
    }

    /// Number of workers started.
    pub fn count(&self) -> usize {
        self.workers.len()
    }

    /// The first worker that has ended, if any.
    ///
    /// # Errors
    /// If the system cannot report its status.
    pub fn ended(&mut self) -> io::Result<Option<WorkerEnded>> {
        for worker in &mut self.workers {
            if let Some(ended) = worker.ended()? {
                return Ok(Some(ended));
            }
        }
        Ok(None)
    }

    /// Restarts workers that end, after a wait that doubles, and logs it. A worker that ends too often in a row is not
    /// restarted.
    pub async fn keep_running(&mut self) -> Infallible {
        loop {
            sleep(LOOK_INTERVAL).await;
            for (at, worker) in self.workers.iter_mut().enumerate() {
                worker.keep_running(at + 1, &self.command);
            }
        }
    }

    /// Kills the workers and waits until they have ended.
    pub async fn stop(&mut self) {
        for mut worker in self.workers.drain(..) {
            // Fails if it has already ended, which is fine.
            let _ = worker.child.kill().await;
        }
    }
}

impl WorkerProcess {
    fn start(command: &WorkerCommand) -> io::Result<Self> {
        let mut child = Command::new(&command.program)
            .args(["worker", "--device", "cpu", "--patience", PATIENCE_SECONDS])
            .arg(if command.busy_poll.is_on() { "--busy-poll=on" } else { "--busy-poll=off" })
            // Not an argument, since all users of the machine can read those, and the URL contains the token.
            .env("MOEX_JOIN_URL", &command.join_url)
            .env("MOEX_MEMORY", std::env::var_os("MOEX_MEMORY").unwrap_or(MEMORY.into()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let last_line = Arc::new(Mutex::new(String::new()));
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(keep_last_line(stderr, last_line.clone()));
        }
        Ok(Self { child, last_line, started: Instant::now(), restarts: Restarts::default() })
    }

    fn ended(&mut self) -> io::Result<Option<WorkerEnded>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        let last_line = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        let last_line = last_line.trim_start_matches("moex: ").to_owned();
        Ok(Some(WorkerEnded { status, last_line }))
    }

    /// Restarts the worker if it has ended and the wait is over. `number` names it in the log.
    fn keep_running(&mut self, number: usize, command: &WorkerCommand) {
        let now = Instant::now();
        if self.restarts.is_due(now) {
            let restarts = Restarts { due: None, ..self.restarts };
            match Self::start(command) {
                Ok(started) => {
                    tracing::info!(number, "restarting a worker");
                    *self = Self { restarts, ..started };
                }
                Err(error) => {
                    self.restarts = restarts;
                    self.plan_restart(number, now, &error.to_string());
                }
            }
        } else if self.restarts.watches()
            && let Ok(Some(ended)) = self.ended()
        {
            self.plan_restart(number, now, &ended.to_string());
        }
    }

    fn plan_restart(&mut self, number: usize, now: Instant, why: &str) {
        let why = peer_text(why);
        match self.restarts.plan(now, now.saturating_duration_since(self.started)) {
            Some(wait) => {
                tracing::warn!(number, reason = %why, "restarting a worker in {} s", wait.as_secs());
            }
            None => {
                tracing::error!(number, reason = %why, "a worker ended {MAX_RESTARTS} times in a row: not restarted");
            }
        }
    }
}

impl Restarts {
    fn is_due(self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Whether its end would be reported.
    fn watches(self) -> bool {
        self.due.is_none() && !self.is_given_up
    }

    /// Plans the restart of a worker that ended now after running for `ran`: returns the wait, or none.
    fn plan(&mut self, now: Instant, ran: Duration) -> Option<Duration> {
        if ran >= RAN_WELL {
            self.n = 0;
        }
        if self.n >= MAX_RESTARTS {
            self.is_given_up = true;
            return None;
        }
        let wait = FIRST_RESTART_DELAY.saturating_mul(1 << self.n).min(MAX_RESTART_DELAY);
        self.n += 1;
        self.due = Some(now + wait);
        Some(wait)
    }
}

/// Reads all output of a worker, so that it never blocks on this process.
async fn keep_last_line(stderr: ChildStderr, last: Arc<Mutex<String>>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if !line.trim().is_empty() {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = line;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_wait_longer_each_time_and_end() {
        let now = Instant::now();
        let mut restarts = Restarts::default();
        let plan = |restarts: &mut Restarts, ran| restarts.plan(now, Duration::from_secs(ran));
        let waits: Vec<u64> =
            std::iter::from_fn(|| plan(&mut restarts, 1)).map(|wait| wait.as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert!(restarts.is_given_up && !restarts.watches());
        let mut restarts = Restarts { n: 9, ..Restarts::default() };
        assert_eq!(plan(&mut restarts, 3_600), Some(FIRST_RESTART_DELAY), "it ran well");
        assert!(!restarts.is_due(now) && restarts.is_due(now + FIRST_RESTART_DELAY) && !restarts.watches());
    }
}
