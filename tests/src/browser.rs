//! A real Chromium with WebGPU, on SwiftShader or on the machine's own card, and the tabs in it.

mod devtools;
mod hands;
mod tab;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use self::devtools::DevTools;
pub use self::hands::Complaints;
pub use self::tab::Tab;
use crate::host::Host;
use crate::hub::PATIENCE;

/// A Chromium without a window, off the network, in which no page is slower for being out of sight.
const FLAGS: [&str; 30] = [
    "--headless=new",
    "--no-sandbox",
    "--remote-debugging-port=0",
    "--enable-unsafe-webgpu",
    "--window-size=1280,800",
    "--hide-scrollbars",
    "--mute-audio",
    "--lang=en_US",
    "--force-color-profile=srgb",
    "--password-store=basic",
    "--use-mock-keychain",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-hang-monitor",
    "--disable-renderer-backgrounding",
    "--disable-sync",
    "--metrics-recording-only",
    "--enable-automation",
    "--enable-precise-memory-info",
    // A process for the page that might be opened next, which wastes memory with so many browsers.
    "--disable-features=SpareRendererForSitePerProcess,TranslateUI",
];

/// The adapter of WebGPU that a browser offers.
#[derive(Clone, Copy, Debug)]
pub enum Adapter {
    /// SwiftShader, which is the same on every machine.
    Software,
    /// The machine's own card, through Vulkan.
    Card,
}

impl Adapter {
    /// Chromium's flags for it.
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Software => &["--use-webgpu-adapter=swiftshader"],
            // A machine without a screen has no surface to draw on.
            Self::Card => &[
                "--use-angle=vulkan",
                "--enable-features=Vulkan",
                "--disable-vulkan-surface",
                "--ignore-gpu-blocklist",
            ],
        }
    }
}

/// The address of a page without content.
const BLANK: &str = "about:blank";

/// What Chromium prints before the address of its tools.
const LISTENING: &str = "DevTools listening on ";

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
    devtools: DevTools,
    process: Child,
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
        Self::launch_for(Adapter::Software, Some(home)).await
    }

    /// Starts Chromium.
    pub async fn launch() -> Result<Self> {
        Self::launch_with(Adapter::Software).await
    }

    /// Starts Chromium with an adapter.
    pub async fn launch_with(adapter: Adapter) -> Result<Self> {
        Self::launch_for(adapter, None).await
    }

    async fn launch_for(adapter: Adapter, home: Option<TempDir>) -> Result<Self> {
        let path =
            executable().context("no Chromium on the path: run `cargo xtask test`, which installs it")?;
        let profile = tempfile::tempdir()?;
        let mut command = tokio::process::Command::new(path);
        command
            .args(FLAGS)
            .args(adapter.flags())
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(home) = &home {
            command.env("HOME", home.path());
        }
        let mut process = command.spawn().context("Chromium does not run")?;
        let url = tokio::time::timeout(PATIENCE, devtools_url(&mut process))
            .await
            .context("Chromium does not say where its tools are")??;
        let devtools = DevTools::connect(&url).await.context("Chromium's tools do not answer")?;
        Ok(Self { devtools, process, _profile: profile, _home: home })
    }

    /// Opens a page in its own window, so that no tab hides another. A join page starts to lend at once.
    pub async fn open(&self, url: &str) -> Result<Tab> {
        self.visit(&lending(url)).await
    }

    /// Opens a page in its own window, as a first-time visitor sees it.
    pub async fn visit(&self, url: &str) -> Result<Tab> {
        self.create(url, json!({ "newWindow": true })).await
    }

    /// Opens a page in front of the last one, which becomes hidden.
    pub async fn open_in_front(&self, url: &str) -> Result<Tab> {
        self.create(url, json!({})).await
    }

    /// An empty window of the size of a phone.
    pub async fn empty_window(&self) -> Result<Tab> {
        self.create(BLANK, json!({ "newWindow": true, "width": 412, "height": 780 })).await
    }

    /// Opens a page, and waits until it is loaded.
    async fn create(&self, url: &str, mut window: Value) -> Result<Tab> {
        window["url"] = json!(BLANK);
        let target = self.devtools.command(None, "Target.createTarget", window).await?;
        let tab = Tab::attach(self.devtools.clone(), &target["targetId"]).await?;
        if url != BLANK {
            tab.visit(url).await?;
        }
        Ok(tab)
    }

    /// Ends Chromium as a user would, so that the profile is saved.
    pub async fn close(mut self) -> Result<()> {
        self.devtools.command(None, "Browser.close", json!({})).await?;
        tokio::time::timeout(PATIENCE, self.process.wait()).await.context("Chromium does not end")??;
        Ok(())
    }
}

/// The address that Chromium prints. What it prints after that is read too, or it would wait for a reader.
async fn devtools_url(process: &mut Child) -> Result<String> {
    let mut lines = BufReader::new(process.stderr.take().context("its output is piped")?).lines();
    let mut printed = String::new();
    while let Some(line) = lines.next_line().await? {
        if let Some(url) = line.strip_prefix(LISTENING) {
            let url = url.to_owned();
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(url);
        }
        printed += &line;
        printed.push('\n');
    }
    bail!("Chromium did not start: {printed}")
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
