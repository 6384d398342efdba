//! `cargo xtask bench sessions`: measures the memory that many short sessions leave behind in the hub.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use futures_util::future::join_all;
use moex_protocol::WorkerKey;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

use super::generate;
use super::resources::{self, HubResources};
use crate::hub::{Hub, Moex, workers};
use crate::peer::{Behaviour, Departure, PeerConfig, visit};

/// How long the hub may take to free its memory.
const SETTLING: Duration = Duration::from_secs(20);
/// The largest allowed growth of resident memory, as a fraction.
const TOLERANCE: f64 = 0.05;

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Concurrent sessions.
    #[arg(long, default_value_t = 1_000)]
    sessions: usize,
    /// Duration of the load, seconds.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// The seed that chooses when and how sessions leave.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Further arguments of `moex serve`, after `--`.
    #[arg(last = true)]
    serve: Vec<String>,
}

/// Fills a hub with sessions twice; prints the resources that it held before, during and after each.
///
/// # Errors
/// If it holds notably more after the second filling than after the first. The first leaves what an allocator keeps for
/// reuse; what the second adds is a leak.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    // The most replicas, so that as many sessions as possible hold a block and get dispatches.
    let mut serve = vec!["--experts", "int4", "--replicas", "16"];
    serve.extend(args.serve.iter().map(String::as_str));
    let hub = moex.hub(&serve)?;
    generate(&hub, 64).await?;
    let mut table = Table::new();
    table.set_header([
        "",
        "sessions",
        "resident KiB",
        "anonymous",
        "open files",
        "threads",
        "visits",
        "answers",
    ]);
    let mut row = |name: &str, n_sessions: usize, held: HubResources, more: [String; 2]| {
        let HubResources { resident_kib, anonymous_kib, n_files, n_threads } = held;
        let [visits, answers] = more;
        table.add_row([
            name.to_owned(),
            n_sessions.to_string(),
            resident_kib.to_string(),
            anonymous_kib.to_string(),
            n_files.to_string(),
            n_threads.to_string(),
            visits,
            answers,
        ]);
    };
    row("before", 0, resources::of_hub(&hub)?, Default::default());
    let length = Duration::from_secs(args.seconds) / 2;
    let mut left = Vec::new();
    for filling in 1..=2 {
        let seen = fill(&hub, args, length).await?;
        row(
            &format!("filling {filling}"),
            seen.n_most,
            seen.most,
            [seen.n_visits.to_string(), seen.n_answers.to_string()],
        );
        let after = settle(&hub).await?;
        row(&format!("after {filling}"), 0, after, Default::default());
        left.push(after);
    }
    println!("{table}");
    let [first, second] = left[..] else { anyhow::bail!("the hub was filled twice") };
    let growth = second.resident_kib as f64 / first.resident_kib as f64 - 1.0;
    println!("resident memory after the second filling against after the first: {:+.1} %", 100.0 * growth);
    ensure!(growth <= TOLERANCE, "the hub holds {:.1} % more than after the first filling", 100.0 * growth);
    ensure!(
        second.n_files <= first.n_files,
        "open files after the first and the second filling: {} and {}",
        first.n_files,
        second.n_files
    );
    Ok(())
}

/// The observations while the hub was full.
struct Seen {
    most: HubResources,
    n_most: usize,
    n_visits: u64,
    n_answers: u64,
}

/// Keeps a number of seats taken for `length`, each by one short visit after another, while the hub answers.
async fn fill(hub: &Hub, args: &Args, length: Duration) -> Result<Seen> {
    let until = Instant::now() + length;
    let block_bytes = hub.status().await?["model"]["block_bytes"].as_u64().context("a model has blocks")?;
    let n_visits = AtomicU64::new(0);
    let seats = (0..args.sessions).map(async |seat| {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(args.seed.wrapping_add(seat as u64));
        let config = PeerConfig {
            key: WorkerKey(seat as u128 + 1),
            memory_budget_bytes: 2 * block_bytes,
            teraflops: 1.0,
            behaviour: Behaviour::Zeros,
            busy_poll: false,
            renames: false,
        };
        // They do not start all at once; a visit lasts between a twentieth and a fifth of the time.
        sleep(length.mul_f64(random.random_range(0.0..0.05))).await;
        while Instant::now() < until {
            let stay = length.mul_f64(random.random_range(0.05..0.2)).min(until - Instant::now());
            let end = if random.random_range(0..2) == 0 { Departure::Orderly } else { Departure::Abrupt };
            visit(&hub.join_url, &config, stay, end).await?;
            n_visits.fetch_add(1, Ordering::Relaxed);
        }
        Ok::<_, anyhow::Error>(())
    });
    let look = async {
        let (mut most, mut n_most) = (resources::of_hub(hub)?, 0);
        while Instant::now() < until {
            let status = hub.status().await?;
            n_most = n_most.max(workers(&status).count());
            let now = resources::of_hub(hub)?;
            if now.resident_kib > most.resident_kib {
                most = now;
            }
            sleep(Duration::from_millis(500)).await;
        }
        Ok::<_, anyhow::Error>((most, n_most))
    };
    let ask = async {
        let mut n_answers = 0;
        while Instant::now() < until {
            // The answers are zeros: it matters only that there are answers.
            generate(hub, 64).await?;
            n_answers += 1;
        }
        Ok::<_, anyhow::Error>(n_answers)
    };
    let (seats, looked, asked) = tokio::join!(join_all(seats), look, ask);
    for seat in seats {
        seat.context("a seat")?;
    }
    let (most, n_most) = looked?;
    Ok(Seen { most, n_most, n_visits: n_visits.into_inner(), n_answers: asked? })
}

/// The resources held after all sessions have left and the hub has had time to settle.
async fn settle(hub: &Hub) -> Result<HubResources> {
    timeout(SETTLING, hub.wait_until("nobody is left", |status| workers(status).count() == 0))
        .await
        .context("sessions outlive their sockets")??;
    sleep(SETTLING).await;
    resources::of_hub(hub)
}
