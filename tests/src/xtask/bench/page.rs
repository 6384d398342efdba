//! `cargo xtask bench page`: what the hub's page `/bench` says in Chromium, on this machine's own card.

use anyhow::{Result, ensure};

use crate::browser::{Adapter, Browser};
use crate::hub::Moex;

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// With SwiftShader in place of the card.
    #[arg(long)]
    software: bool,
}

/// Prints the page's result as a visitor copies it.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let hub = moex.hub(&[])?;
    let adapter = if args.software { Adapter::Software } else { Adapter::Card };
    let browser = Browser::launch_with(adapter).await?;
    let tab = browser.visit(&format!("{}/bench", hub.url)).await?;
    tab.until("document.querySelector('#start')").await?;
    tab.click("#start").await?;
    tab.until("['Measured', 'Stopped'].includes(document.querySelector('#state').textContent)").await?;
    let trouble = tab.text("#trouble").await?;
    ensure!(trouble.is_empty(), "{trouble}");
    println!("{}", tab.text("#facts").await?);
    browser.close().await
}
