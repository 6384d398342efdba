//! `moex demo`: answers one prompt with the demo model over real workers.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use moex_kernels::engine::ActivationFormat;
use moex_worker::native::{BusyPoll, Trust};
use serde_json::{Value, json};

use super::answer_printer::AnswerPrinter;
use super::compute::ComputeArgs;
use super::hub_client::{Ending, HubClient};
use super::{local_hub, values};
use crate::net::WorkerProcesses;

/// A prompt whose answer is easy to check and makes the model think first.
const PROMPT: &str = "What is 478 + 356?";
/// How long workers may take to join and fetch their experts.
const JOIN_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Answers a prompt with the demo model, a hub and native workers as processes, then shows how many rows each computed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to ask.
    #[arg(default_value = PROMPT)]
    prompt: String,

    /// Number of workers to start; with 0 the hub computes alone.
    #[arg(long, env = "MOEX_WORKERS", default_value_t = 2, value_name = "N",
          value_parser = clap::value_parser!(u8).range(..=32))]
    workers: u8,

    #[command(flatten)]
    compute: ComputeArgs,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let compute = args.compute.compute(ActivationFormat::Int8)?;
        let hub = local_hub::start(values::secret()?, compute).await?;
        eprintln!("{}", hub.description);
        // Dropping these kills the processes, on every return path.
        let mut workers =
            WorkerProcesses::start(usize::from(args.workers), &hub.join_url, None, BusyPoll::default())?;
        let shown = tokio::select! {
            shown = show(&args.prompt, &hub.url, &mut workers) => shown,
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("stopped")),
        };
        workers.stop().await;
        hub.stop().await;
        shown
    })
}

async fn show(prompt: &str, url: &str, workers: &mut WorkerProcesses) -> anyhow::Result<()> {
    let client = HubClient::new(url, None, &Trust::System)?;
    wait_for(workers, &client).await?;
    writeln!(stdout(), "> {prompt}")?;
    let started = Instant::now();
    let ending = ask(&client, prompt).await?;
    let seconds = started.elapsed().as_secs_f64();
    let table = who_computed(&client.json("/api/swarm").await?);
    writeln!(stdout(), "\n{}\n{table}", speed(&ending, seconds))?;
    eprintln!("This model is tiny and often wrong: it is here to try moex.");
    eprintln!("Next: `moex serve`, then open the addresses that it prints.");
    Ok(())
}

/// Waits until every worker serves and every expert is on a worker.
async fn wait_for(workers: &mut WorkerProcesses, client: &HubClient) -> anyhow::Result<()> {
    let wanted = workers.count() as u64;
    if wanted == 0 {
        return Ok(());
    }
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template("{msg} [{bar:20}] {pos} of {len} experts")?.progress_chars("=> "),
    );
    bar.set_message(format!("waiting for {wanted} workers"));
    let deadline = Instant::now() + JOIN_PATIENCE;
    loop {
        if let Some(ended) = workers.ended()? {
            return Err(ended.into());
        }
        let status = client.json("/api/swarm").await?;
        let serving = worker_list(&status).filter(|worker| worker["state"] == "serving").count() as u64;
        let (held, blocks) = (number(&status["coverage"]["covered"]), number(&status["coverage"]["blocks"]));
        bar.set_length(blocks);
        bar.set_position(held);
        if serving == wanted && held == blocks {
            bar.finish_and_clear();
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("after {} s {serving} of {wanted} workers serve", JOIN_PATIENCE.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn ask(client: &HubClient, prompt: &str) -> anyhow::Result<Ending> {
    let request = json!({ "messages": [{ "role": "user", "content": prompt }], "temperature": 0 });
    let mut printer = AnswerPrinter::stdout();
    let asked = client.chat(request, |delta| Ok(printer.print(&delta)?)).await;
    printer.finish()?;
    let ending = asked?;
    ensure!(ending.completion_tokens > 0, "the model gave no answer");
    Ok(ending)
}

fn speed(ending: &Ending, seconds: f64) -> String {
    let tokens = ending.completion_tokens;
    format!(
        "{tokens} tokens in {seconds:.2} s, {:.0} tokens/s; experts computed by:",
        tokens as f64 / seconds
    )
}

/// One row for each worker and one for the hub; at most 60 columns wide.
fn who_computed(status: &Value) -> Table {
    let hub_rows = number(&status["hub"]["rows"]);
    let total: u64 = hub_rows + worker_list(status).map(|worker| number(&worker["rows"])).sum::<u64>();
    let share = |rows: u64| format!("{:.0} %", 100.0 * rows as f64 / total.max(1) as f64);
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["", "rows", "share", "latency", "weights"]);
    for (index, worker) in worker_list(status).enumerate() {
        let rows = number(&worker["rows"]);
        let latency_millis = number(&worker["latency_p50_micros"]) as f64 / 1e3;
        table.add_row([
            format!("worker {}", index + 1),
            rows.to_string(),
            share(rows),
            format!("{latency_millis:.2} ms"),
            HumanBytes(number(&worker["bytes_resident"])).to_string(),
        ]);
    }
    let none = || "-".to_owned();
    table.add_row(["the hub".to_owned(), hub_rows.to_string(), share(hub_rows), none(), none()]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn worker_list(status: &Value) -> impl Iterator<Item = &Value> {
    status["workers"].as_array().into_iter().flatten()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_sixty_columns_and_names_every_share() {
        let worker =
            |rows: u64| json!({"rows": rows, "latency_p50_micros": 123_456, "bytes_resident": 123_456_789});
        let status = json!({"workers": [worker(6_000_000), worker(3_000_000)], "hub": {"rows": 1_000_000}});
        let table = who_computed(&status).to_string();
        assert!(table.lines().all(|line| line.chars().count() <= 60), "{table}");
        for (who, share) in [("worker 1", "60 %"), ("worker 2", "30 %"), ("the hub", "10 %")] {
            assert!(table.lines().any(|line| line.contains(who) && line.contains(share)), "{table}");
        }
    }

    #[test]
    fn a_swarm_that_computed_nothing_has_no_shares() {
        assert!(who_computed(&json!({"workers": [], "hub": {"rows": 0}})).to_string().contains("0 %"));
    }
}
