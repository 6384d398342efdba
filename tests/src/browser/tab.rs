//! One open page: what it shows and says.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::devtools::DevTools;
use super::hands::Complaints;
use super::lending;
use crate::hub::PATIENCE;

/// One open page.
pub struct Tab {
    devtools: DevTools,
    target: Value,
    session: String,
    /// How often the page has been loaded.
    n_loads: watch::Receiver<u64>,
    complaints: Complaints,
}

impl Tab {
    /// Begins a session with a page of the browser.
    pub(super) async fn attach(devtools: DevTools, target: &Value) -> Result<Self> {
        let attached = json!({ "targetId": target, "flatten": true });
        let attached = devtools.command(None, "Target.attachToTarget", attached).await?;
        let session = attached["sessionId"].as_str().context("a session")?.to_owned();
        let (loads, n_loads) = watch::channel(0);
        let complaints = Complaints::default();
        let heard = complaints.clone();
        devtools.listen(
            &session,
            Box::new(move |event, parameters| match event {
                "Page.loadEventFired" => loads.send_modify(|n| *n += 1),
                event => heard.hear(event, parameters),
            }),
        );
        let tab = Self { devtools, target: target.clone(), session, n_loads, complaints };
        tab.command("Page.enable", json!({})).await?;
        Ok(tab)
    }

    /// The result of a command to this page.
    pub(super) async fn command(&self, method: &str, parameters: Value) -> Result<Value> {
        self.devtools.command(Some(&self.session), method, parameters).await
    }

    /// Goes to an address, and waits until the page is loaded; so is the browser's own page about an error.
    pub(super) async fn visit(&self, url: &str) -> Result<()> {
        self.load("Page.navigate", json!({ "url": url })).await?;
        // The event may have been that of the empty page before it.
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'").await
    }

    /// Gives a command after which a page loads, and waits for that.
    async fn load(&self, method: &str, parameters: Value) -> Result<()> {
        let mut n_loads = self.n_loads.clone();
        n_loads.mark_unchanged();
        self.command(method, parameters).await?;
        let loaded = tokio::time::timeout(PATIENCE, n_loads.changed()).await;
        loaded.context("the page does not load")?.context("Chromium ended")
    }

    /// The errors on the page's console, if it was opened to be heard.
    pub(super) fn complaints(&self) -> Complaints {
        self.complaints.clone()
    }

    /// From now on requests to URLs that match one of these patterns fail as if the network did; `*` is anything.
    pub async fn refuse(&self, patterns: &[&str]) -> Result<()> {
        self.command("Network.enable", json!({})).await?;
        self.command("Network.setBlockedURLs", json!({ "urls": patterns })).await?;
        Ok(())
    }

    /// The value of a JavaScript expression, promises awaited.
    pub async fn eval(&self, expression: &str) -> Result<Value> {
        let expression = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.command("Runtime.evaluate", expression).await?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            bail!("the page threw {}", thrown["exception"]["description"].as_str().unwrap_or("a value"));
        }
        Ok(answer["result"]["value"].clone())
    }

    /// The status of the join page's worker.
    pub async fn status(&self) -> Result<Value> {
        self.eval("window.moexStatus ?? null").await
    }

    /// Breaks a Web Worker by an error that nothing catches, named as for [`Self::in_worker`].
    pub async fn break_worker(&self, scripts: &[&str]) -> Result<()> {
        self.in_worker(scripts, "setTimeout(() => { throw new Error('broken by a test'); })").await
    }

    /// Evaluates an expression in a Web Worker: the page's worker of the first of these `scripts`, or its worker of the second, and
    /// so on.
    pub async fn in_worker(&self, scripts: &[&str], expression: &str) -> Result<()> {
        let page = json!({ "targetId": self.target, "flatten": true });
        let mut owner =
            self.devtools.command(None, "Target.attachToTarget", page).await?["sessionId"].clone();
        for script in scripts {
            owner = self.worker_of(owner.as_str().context("a session")?, script).await?;
        }
        let parameters = json!({ "expression": expression });
        self.devtools.command(owner.as_str(), "Runtime.evaluate", parameters).await?;
        Ok(())
    }

    /// A session with a worker that the page or worker of the session `owner` has started with `script`.
    async fn worker_of(&self, owner: &str, script: &str) -> Result<Value> {
        let (found, mut sessions) = mpsc::unbounded_channel();
        let script = script.to_owned();
        let hear = move |event: &str, attached: &Value| {
            let url = attached["targetInfo"]["url"].as_str().unwrap_or_default();
            if event == "Target.attachedToTarget" && url.ends_with(&script) {
                // Whoever asked may have left.
                drop(found.send(attached["sessionId"].clone()));
            }
        };
        self.devtools.listen(owner, Box::new(hear));
        let attach = json!({ "autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true });
        self.devtools.command(Some(owner), "Target.setAutoAttach", attach).await?;
        let session = tokio::time::timeout(PATIENCE, sessions.recv()).await;
        session.context("there is no such worker")?.context("Chromium ended")
    }

    /// Waits until the worker's status fulfils a condition; the error shows the last status and the page's text.
    pub async fn wait_until(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let status = self.status().await.unwrap_or(Value::Null);
            if condition(&status) {
                return Ok(status);
            }
            if tokio::time::Instant::now() > deadline {
                let text = self.eval("document.body.innerText").await.unwrap_or(Value::Null);
                bail!("the tab did not reach: {what}; its status is {status:#}, its page says {text}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The files of blocks that the browser stores for the page's origin: names and sizes.
    pub async fn stored_blocks(&self) -> Result<Vec<(String, u64)>> {
        let list = r#"(async () => {
            const found = [];
            const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("moex-blocks");
            for await (const [name, file] of folder.entries()) found.push([name, (await file.getFile()).size]);
            return found;
        })()"#;
        let files = self.eval(list).await?;
        let file = |entry: &Value| Some((entry[0].as_str()?.to_owned(), entry[1].as_u64()?));
        files.as_array().into_iter().flatten().map(|entry| file(entry).context("a name and a size")).collect()
    }

    /// Opens another page in the same window without waiting for it. A join page starts to lend at once.
    pub async fn go(&self, url: &str) -> Result<()> {
        self.command("Page.navigate", json!({ "url": lending(url) })).await?;
        Ok(())
    }

    /// Reloads the page, as a user would.
    pub async fn reload(&self) -> Result<()> {
        self.load("Page.reload", json!({})).await
    }

    /// Reloads the page without waiting for it, for a link that carries nothing.
    pub async fn begin_reload(&self) -> Result<()> {
        self.command("Page.reload", json!({})).await?;
        Ok(())
    }

    /// Freezes the page, as a browser that saves energy does. A headless Chromium never shows it again.
    pub async fn freeze(&self) -> Result<()> {
        self.command("Page.setWebLifecycleState", json!({ "state": "frozen" })).await?;
        Ok(())
    }

    /// Closes the tab.
    pub async fn close(self) -> Result<()> {
        self.devtools.command(None, "Target.closeTarget", json!({ "targetId": self.target })).await?;
        Ok(())
    }

    /// A PNG of the whole page.
    pub async fn screenshot(&self) -> Result<Vec<u8>> {
        let metrics = self.command("Page.getLayoutMetrics", json!({})).await?;
        let mut clip = metrics["cssContentSize"].clone();
        clip["scale"] = json!(1);
        let whole = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let picture = self.command("Page.captureScreenshot", whole).await?;
        let data = picture["data"].as_str().context("a picture")?;
        Ok(base64::engine::general_purpose::STANDARD.decode(data)?)
    }
}
