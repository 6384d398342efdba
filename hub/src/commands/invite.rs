//! `moex invite`: join links for one machine, and their end.

use std::io::{IsTerminal, Write, stderr, stdout};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::hub_args::HubArgs;
use super::hub_client::HubClient;
use super::values;
use crate::access::{greeting, qr};

/// Prints join links for one machine, which a running hub lets in under this name until its invitation is revoked.
///
/// One worker at a time joins by an invitation. The swarm page shows it beside that worker.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Name of the invitation: letters, digits, - and _.
    #[arg(value_parser = values::invitation_name)]
    name: String,

    /// Revoke the invitation of this name: its worker is let go, and it admits nobody any more.
    #[arg(long)]
    revoke: bool,

    #[command(flatten)]
    hub: HubArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = args.hub.client(args.hub.api_key.as_deref())?;
    if args.revoke {
        runtime.block_on(client.post("/api/join/revoked", &json!({ "name": args.name })))?;
        eprintln!("The invitation {} admits nobody any more.", args.name);
        return Ok(());
    }
    let links = runtime.block_on(links(&client, &args.name))?;
    if let Some(first) = links.first().filter(|_| stderr().is_terminal())
        && let Some(code) = qr::lines(first, greeting::columns())
    {
        eprintln!("{}\n", code.join("\n"));
    }
    for link in &links {
        writeln!(stdout(), "{link}").context("the links could not be printed")?;
    }
    eprintln!("They admit one worker at a time, until `moex invite {} --revoke`.", args.name);
    Ok(())
}

/// The links of an invitation: those that other machines can open, or else those for this one.
async fn links(client: &HubClient, name: &str) -> anyhow::Result<Vec<String>> {
    let told = client.json(&format!("/api/join?name={name}&origin={}", client.url())).await?;
    let all = told["links"].as_array().map(Vec::as_slice).unwrap_or_default();
    let urls = |wanted: fn(&Value) -> bool| -> Vec<String> {
        all.iter()
            .filter(|link| wanted(link))
            .filter_map(|link| link["url"].as_str().map(str::to_owned))
            .collect()
    };
    let mut links = urls(|link| link["reachable"] == true);
    if links.is_empty() {
        links = urls(|_| true);
    }
    if links.is_empty() {
        bail!("{} does not answer like a moex hub: it tells no join link", client.url());
    }
    Ok(links)
}
