//! Lists the hubs of this network and asks the user which one to join.

use std::io::{IsTerminal, Write, stderr, stdin};
use std::time::Duration;

use anyhow::{Context, bail};

use super::values;
use crate::access::greeting;
use crate::access::mdns::{self, FoundHub};

/// How long hubs may take to answer.
const WAIT: Duration = Duration::from_secs(3);

/// Returns the join URL of a hub that the user chooses from those announced.
pub(super) async fn ask() -> anyhow::Result<String> {
    eprintln!("Looking for hubs on this network...");
    let found = mdns::find(WAIT).await.map_err(anyhow::Error::msg)?;
    if found.is_empty() {
        bail!("no hub announces itself on this network: give the join URL that the hub prints");
    }
    if !stdin().is_terminal() {
        let origins: Vec<String> = found.iter().map(FoundHub::origin).collect();
        bail!(
            "which hub, and with which token? Give the join URL that the hub prints; on this network there is {}",
            origins.join(", ")
        );
    }
    tokio::task::spawn_blocking(move || choose(&found)).await.context("the question was not answered")?
}

fn choose(found: &[FoundHub]) -> anyhow::Result<String> {
    for (n, hub) in found.iter().enumerate() {
        eprintln!("\n  {}  {}, {}", n + 1, hub.name, hub.origin());
        match hub.authority {
            Some(authority) if hub.is_tls => {
                let text =
                    greeting::wrapped(&format!("SHA-256 {}", authority.spelled()), greeting::columns() - 5);
                text.lines().for_each(|line| eprintln!("     {line}"));
            }
            _ if hub.is_tls => {}
            _ => eprintln!("     plain http: others on the network can read the token"),
        }
    }
    let hub = match found {
        [only] => only,
        _ => loop {
            let answer = answer(&format!("\nWhich one, 1 to {}? ", found.len()))?;
            match answer.parse::<usize>().ok().and_then(|n| found.get(n.checked_sub(1)?)) {
                Some(hub) => break hub,
                None => eprintln!("That is none of them."),
            }
        },
    };
    if hub.is_tls && hub.authority.is_some() {
        eprintln!(
            "\nAnyone can announce such a name: go on only if the hub's terminal shows the same SHA-256."
        );
    }
    loop {
        let said = answer("Its token, or its whole join URL: ")?;
        if said.contains("://") {
            return Ok(said);
        }
        match values::token(&said) {
            Ok(token) => return Ok(hub.join_url(&token)),
            Err(error) => eprintln!("That is no token: {error}."),
        }
    }
}

/// Reads one typed line.
fn answer(question: &str) -> anyhow::Result<String> {
    let mut shown = stderr();
    write!(shown, "{question}")?;
    shown.flush()?;
    let mut line = String::new();
    if stdin().read_line(&mut line)? == 0 {
        bail!("no hub was chosen: give the join URL that the hub prints");
    }
    Ok(line.trim().to_owned())
}
