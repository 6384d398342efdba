//! A real Chromium with WebGPU on SwiftShader, and the tabs in it.

mod hands;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use chromiumoxide::browser::{Browser as Chromium, BrowserConfig};
pub use chromiumoxide::cdp::browser_protocol::page::SetWebLifecycleStateState as Lifecycle;
use chromiumoxide::cdp::browser_protocol::page::{NavigateParams, SetWebLifecycleStateParams};
use chromiumoxide::cdp::browser_protocol::target::CreateTargetParams;
use chromiumoxide::page::{Page, ScreenshotParams};
use futures_util::StreamExt;
use serde_json::Value;
use tempfile::TempDir;

pub use self::hands::Complaints;
use crate::host::Host;
use crate::hub::PATIENCE;

/// Keeps Chromium off the network and its GPU process on the software adapter.
const FLAGS: [&str; 13] = [
    "enable-unsafe-webgpu",
    "use-webgpu-adapter=swiftshader",
    "disable-quic",
    "no-first-run",
    "no-default-browser-check",
    "disable-background-networking",
    "disable-component-update",
    "disable-default-apps",
    "disable-domain-reliability",
    "disable-sync",
    "metrics-recording-only",
    "enable-precise-memory-info",
    // A process for the page that might be opened next, which wastes memory with so many browsers.
    "disable-features=SpareRendererForSitePerProcess,TranslateUI",
];

/// The path of Chromium: `$MOEX_CHROMIUM`, otherwise one of its usual names on the path.
pub fn executable() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("MOEX_CHROMIUM") {
        return Some(path.into());
    }
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    names.iter().find_map(|name| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file()))
}

/// One Chromium with a fresh profile, ended when dropped.
pub struct Browser {
    chromium: Chromium,
    _profile: TempDir,
    _home: Option<TempDir>,
}

impl Browser {
    /// Starts Chromium on another host, where it stays. The runtime must have a single thread.
    pub async fn launch_on(host: &Host) -> Result<Self> {
        // The connection to its tools is to the host's own loopback.
        let _visit = host.enter()?;
        Self::launch().await
    }

    /// [`Self::launch_on`] for a user whose system trusts the certificate authority in a PEM file.
    pub async fn launch_trusting(host: &Host, authority: &Path) -> Result<Self> {
        let _visit = host.enter()?;
        let home = tempfile::tempdir()?;
        trust(home.path(), authority)?;
        Self::launch_for(Some(home)).await
    }

    /// Starts Chromium.
    pub async fn launch() -> Result<Self> {
        Self::launch_for(None).await
    }

    async fn launch_for(home: Option<TempDir>) -> Result<Self> {
        let path =
            executable().context("no Chromium on the path: run `cargo xtask test`, which installs it")?;
        let profile = tempfile::tempdir()?;
        let mut config = BrowserConfig::builder();
        if let Some(home) = &home {
            config = config.env("HOME", home.path().display().to_string());
        }
        let config = config
            .chrome_executable(path)
            .new_headless_mode()
            .no_sandbox()
            .respect_https_errors()
            .user_data_dir(profile.path())
            .viewport(None)
            .window_size(1280, 800)
            .launch_timeout(PATIENCE)
            .request_timeout(PATIENCE)
            .args(FLAGS)
            .build()
            .map_err(|error| anyhow!(error))?;
        let (chromium, mut events) = Chromium::launch(config).await.context("Chromium did not start")?;
        // The connection to Chromium makes progress only while its events are read.
        tokio::spawn(async move { while events.next().await.is_some() {} });
        Ok(Self { chromium, _profile: profile, _home: home })
    }

    /// Opens a page in its own window, so that no tab hides another. A join page starts to lend at once.
    pub async fn open(&self, url: &str) -> Result<Tab> {
        self.visit(&lending(url)).await
    }

    /// Opens a page in its own window, as a first-time visitor sees it.
    pub async fn visit(&self, url: &str) -> Result<Tab> {
        self.create(url, true).await
    }

    /// Opens a page in front of the last one, which becomes hidden.
    pub async fn open_in_front(&self, url: &str) -> Result<Tab> {
        self.create(url, false).await
    }

    /// An empty window of the size of a phone.
    pub async fn empty_window(&self) -> Result<Tab> {
        let target = CreateTargetParams::builder().url("about:blank").new_window(true).width(412).height(780);
        Ok(Tab { page: self.chromium.new_page(target.build().map_err(|error| anyhow!(error))?).await? })
    }

    async fn create(&self, url: &str, is_own_window: bool) -> Result<Tab> {
        let target = CreateTargetParams::builder().url(url).new_window(is_own_window).build();
        Ok(Tab { page: self.chromium.new_page(target.map_err(|error| anyhow!(error))?).await? })
    }

    /// Ends Chromium as a user would, so that the profile is saved.
    pub async fn close(mut self) -> Result<()> {
        self.chromium.close().await?;
        self.chromium.wait().await?;
        Ok(())
    }
}

/// Adds the authority to the store that Chromium reads on Linux, in this home folder.
fn trust(home: &Path, authority: &Path) -> Result<()> {
    let store = home.join(".pki/nssdb");
    std::fs::create_dir_all(&store)?;
    let store = format!("sql:{}", store.display());
    let certutil = |args: &[&str]| {
        let output = Command::new("certutil").args(["-d", &store]).args(args).output();
        let output = output.context("certutil does not run (package libnss3-tools)")?;
        ensure!(
            output.status.success(),
            "certutil failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    };
    certutil(&["-N", "--empty-password"])?;
    certutil(&["-A", "-t", "C,,", "-n", "moex", "-i", &authority.display().to_string()])
}

/// The address of a join page that lends without asking; other addresses stay unchanged.
fn lending(url: &str) -> String {
    match url.split_once('#') {
        Some((page, token)) if page.contains("/join?") => format!("{page}&auto#{token}"),
        Some((page, token)) if page.ends_with("/join") => format!("{page}?auto#{token}"),
        _ => url.to_owned(),
    }
}

/// One open page.
pub struct Tab {
    page: Page,
}

impl Tab {
    /// The value of a JavaScript expression, promises awaited.
    pub async fn eval(&self, expression: &str) -> Result<Value> {
        let result = self.page.evaluate(expression).await?;
        Ok(result.value().cloned().unwrap_or(Value::Null))
    }

    /// The status of the join page's worker.
    pub async fn status(&self) -> Result<Value> {
        self.eval("window.moexStatus ?? null").await
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
        self.page.execute(NavigateParams::new(lending(url))).await?;
        Ok(())
    }

    /// Reloads the page, as a user would.
    pub async fn reload(&self) -> Result<()> {
        self.page.reload().await?;
        Ok(())
    }

    /// Freezes the page, as a browser that saves energy does. A headless Chromium never shows it again.
    pub async fn freeze(&self) -> Result<()> {
        self.page.execute(SetWebLifecycleStateParams::new(Lifecycle::Frozen)).await?;
        Ok(())
    }

    /// Closes the tab.
    pub async fn close(self) -> Result<()> {
        self.page.close().await?;
        Ok(())
    }

    /// A PNG of the whole page.
    pub async fn screenshot(&self) -> Result<Vec<u8>> {
        Ok(self.page.screenshot(ScreenshotParams::builder().full_page(true).build()).await?)
    }
}
