//! Runs a hub and native workers as processes, each on its own port.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::chat;
use crate::host::Host;
use crate::signal;
pub use crate::signal::Signal;

/// How long a test waits for an expected event: generous, since the machines of CI are slow and shared.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A `moex` binary, and the destination of its stderr.
#[derive(Clone, Debug)]
pub struct Moex {
    path: PathBuf,
    logs: Option<PathBuf>,
    host: Option<Arc<Host>>,
    state: Option<PathBuf>,
}

impl Moex {
    /// The binary of the profile under test.
    pub fn under_test() -> Self {
        Self::at(crate::moex())
    }

    /// This binary.
    pub fn at(path: PathBuf) -> Self {
        Self { path, logs: None, host: None, state: None }
    }

    /// The same binary with its processes' stderr appended to files in this folder, instead of our own stderr.
    #[must_use]
    pub fn logging_to(self, folder: &Path) -> Self {
        Self { logs: Some(folder.to_owned()), ..self }
    }

    /// The same binary with its processes on that host.
    #[must_use]
    pub fn on(self, host: Arc<Host>) -> Self {
        Self { host: Some(host), ..self }
    }

    /// The same binary with its hubs' secrets in this folder; otherwise, each hub has its own folder.
    #[must_use]
    pub fn keeping(self, folder: &Path) -> Self {
        Self { state: Some(folder.to_owned()), ..self }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `moex ARGS` to its end.
    pub fn run(&self, args: &[&str]) -> Result<()> {
        let status = self.command("moex")?.args(args).status().context("moex could not be started")?;
        ensure!(status.success(), "moex {} ended with {status}", args.join(" "));
        Ok(())
    }

    /// Runs `moex ARGS` to its end; returns what it printed.
    pub fn output(&self, args: &[&str]) -> Result<Vec<u8>> {
        let output = self.command("moex")?.args(args).stderr(Stdio::null()).output();
        let output = output.context("moex could not be started")?;
        ensure!(output.status.success(), "moex {} ended with {}", args.join(" "), output.status);
        Ok(output.stdout)
    }

    /// Starts `moex serve ARGS` on a free loopback port and waits until it listens.
    pub fn hub(&self, args: &[&str]) -> Result<Hub> {
        self.hub_at("127.0.0.1:0", args)
    }

    /// [`Self::hub`] on a free port of every address, for workers on other [hosts](Host).
    pub fn open_hub(&self, args: &[&str]) -> Result<Hub> {
        self.hub_at("0.0.0.0:0", &[&["--api-key", chat::API_KEY], args].concat())
    }

    /// [`Self::hub`] at an address in a user's notation.
    pub fn hub_at(&self, listen: &str, args: &[&str]) -> Result<Hub> {
        let own_state = tempfile::tempdir()?;
        let mut child = self
            .command("hub")?
            .env("MOEX_STATE", self.state.as_deref().unwrap_or(own_state.path()))
            .args(["serve", "--json", "--listen", listen])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .context("moex serve could not be started")?;
        let stdout = child.stdout.take().context("stdout was piped above")?;
        let process = Process(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let started: Value =
            serde_json::from_str(&line).with_context(|| format!("serve printed {line:?}"))?;
        let text = |key: &str| {
            Ok::<_, anyhow::Error>(
                started[key].as_str().with_context(|| format!("no {key} in {line:?}"))?.to_owned(),
            )
        };
        let (url, join_url) = (text("listen")?, text("local_join_url")?);
        let http = chat::client_with(started["api_key"].as_str().unwrap_or(chat::API_KEY))?;
        Ok(Hub { process, url, join_url, http, started, _own_state: own_state })
    }

    /// Starts `moex worker JOIN_URL ARGS`, on the CPU unless `args` name another device. Its log has this name.
    pub fn worker(&self, name: &str, join_url: &str, args: &[&str]) -> Result<Worker> {
        let child = self
            .command(name)?
            .env("MOEX_DEVICE", "cpu")
            .args(["worker", join_url])
            .args(args)
            .spawn()
            .context("moex worker could not be started")?;
        Ok(Worker(Process(child)))
    }

    fn command(&self, name: &str) -> Result<Command> {
        let mut command = match &self.host {
            Some(host) => host.command(&self.path),
            None => Command::new(&self.path),
        };
        command.stdin(Stdio::null());
        if let Some(folder) = &self.logs {
            let file = folder.join(format!("{name}.log"));
            let log = OpenOptions::new().create(true).append(true).open(&file);
            command.stderr(log.with_context(|| format!("{} cannot be written", file.display()))?);
        }
        Ok(command)
    }
}

/// A running `moex serve`, ended when dropped.
pub struct Hub {
    process: Process,
    /// Where it listens, as `http://127.0.0.1:PORT`.
    pub url: String,
    /// The URL that workers of this machine join by, token included.
    pub join_url: String,
    /// The object that it printed with `--json`.
    pub started: Value,
    http: reqwest::Client,
    _own_state: TempDir,
}

impl Hub {
    /// Starts the hub under test on a free loopback port and waits until it listens.
    pub fn start(args: &[&str]) -> Result<Self> {
        Moex::under_test().hub(args)
    }

    /// The address that it listens on.
    pub fn address(&self) -> Result<SocketAddr> {
        let address = self.url.trim_start_matches("http://");
        address.parse().with_context(|| format!("{address:?} is no address"))
    }

    /// The join URL through a proxy.
    pub fn join_url_by(&self, proxy: SocketAddr) -> Result<String> {
        Ok(self.join_url.replace(&self.address()?.to_string(), &proxy.to_string()))
    }

    /// The join URL with this machine's address as seen from another host.
    pub fn join_url_from(&self, host: &Host) -> Result<String> {
        self.join_url_by(SocketAddr::new(host.gateway().into(), self.address()?.port()))
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Asks it to end, and waits until it has ended.
    pub async fn end(mut self, signal: Signal) -> Result<()> {
        signal::send(&self.process.0, signal).context("the hub cannot be signalled")?;
        let begin = Instant::now();
        while self.process.0.try_wait()?.is_none() {
            ensure!(begin.elapsed() < PATIENCE, "the hub does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The status from `/api/swarm`.
    pub async fn status(&self) -> Result<Value> {
        self.get("/api/swarm").await
    }

    /// The JSON at a path.
    pub async fn get(&self, path: &str) -> Result<Value> {
        let response = self.http.get(format!("{}{path}", self.url)).send().await?;
        Ok(response.error_for_status()?.json().await?)
    }

    /// Waits until the status fulfils a condition; the error shows the last status.
    pub async fn wait_until(&self, what: &str, mut condition: impl FnMut(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                last = self.status().await?;
                if condition(&last) {
                    return Ok::<_, anyhow::Error>(());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        match waited.await {
            Ok(done) => done.map(|()| last),
            Err(_) => bail!("the swarm did not reach: {what}; its status is {last:#}"),
        }
    }

    /// Waits until `n` workers serve and every block is held by one of them.
    pub async fn wait_for_workers(&self, n: usize) -> Result<Value> {
        self.wait_until(&format!("{n} workers that serve, every block covered"), |status| {
            let serving = workers(status).filter(|worker| worker["state"] == "serving").count();
            let coverage = &status["coverage"];
            serving == n && coverage["covered"] == coverage["blocks"]
        })
        .await
    }

    /// The greedy answer to a case's conversation, without streaming: its text, without thinking and calls.
    pub async fn answer(&self, case: &Value) -> Result<String> {
        Ok(chat::ask(&self.http, &self.url, case).await?.content)
    }
}

/// The workers of a status.
pub fn workers(status: &Value) -> impl Iterator<Item = &Value> {
    status["workers"].as_array().into_iter().flatten()
}

/// A running `moex worker`. Dropping it kills it, as a power cut would.
pub struct Worker(Process);

impl Worker {
    /// Starts a worker of the binary under test.
    pub fn start(join_url: &str, args: &[&str]) -> Result<Self> {
        Moex::under_test().worker("worker", join_url, args)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.0.0.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        signal::send(&self.0.0, signal).context("the worker cannot be signalled")
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.0.0.try_wait()?)
    }
}

/// A child process that ends with its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
