//! A hub and native workers as processes, each on a port of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// How long a test waits for what must come: generous, since the machines of CI are slow and shared.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A running `moex serve`, ended when dropped.
pub struct Hub {
    process: Process,
    /// Where it listens, as `http://127.0.0.1:PORT`.
    pub url: String,
    /// The URL that workers join by, token included.
    pub join_url: String,
    http: reqwest::Client,
}

impl Hub {
    /// Starts `moex serve ARGS` on a free loopback port and waits until it listens.
    pub fn start(args: &[&str]) -> Result<Self> {
        Self::start_binary(&crate::moex(), args)
    }

    /// The same with a binary of another profile.
    pub fn start_binary(moex: &Path, args: &[&str]) -> Result<Self> {
        let mut child = Command::new(moex)
            .args(["serve", "--json", "--listen", "127.0.0.1:0"])
            .args(args)
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
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
        Ok(Self { process, url: text("listen")?, join_url: text("join_url")?, http: reqwest::Client::new() })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// What `/api/swarm` says.
    pub async fn status(&self) -> Result<Value> {
        Ok(self.http.get(format!("{}/api/swarm", self.url)).send().await?.error_for_status()?.json().await?)
    }

    /// Waits until the status fulfils a condition; the error shows the last status.
    pub async fn wait_until(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Result<Value> {
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
            Err(_) => bail!("the swarm did not reach: {what}; it stands at {last:#}"),
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

    /// The greedy answer to a case's conversation, without streaming: what it says, not what it thinks or calls.
    pub async fn answer(&self, case: &Value) -> Result<String> {
        let body = json!({
            "messages": case["messages"],
            "tools": case["tools"],
            "chat_template_kwargs": {"enable_thinking": case["enable_thinking"]},
            "temperature": 0,
            "max_tokens": 200,
        });
        let response = self
            .http
            .post(format!("{}/v1/chat/completions", self.url))
            .json(&body)
            .timeout(PATIENCE)
            .send()
            .await?;
        let status = response.status();
        let answer: Value = response.json().await?;
        ensure!(status.is_success(), "the hub answered {status}: {answer}");
        Ok(answer["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned())
    }
}

/// The workers of a status.
pub fn workers(status: &Value) -> impl Iterator<Item = &Value> {
    status["workers"].as_array().into_iter().flatten()
}

/// A running `moex worker`, killed when dropped, as a power cut would.
pub struct Worker(Process);

impl Worker {
    /// Starts `moex worker JOIN_URL ARGS` on the CPU.
    pub fn start(join_url: &str, args: &[&str]) -> Result<Self> {
        let child = Command::new(crate::moex())
            .args(["worker", join_url, "--device", "cpu"])
            .args(args)
            .stdin(Stdio::null())
            .spawn()
            .context("moex worker could not be started")?;
        Ok(Self(Process(child)))
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.0.0.id()
    }
}

/// A child that does not outlive its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing left to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
