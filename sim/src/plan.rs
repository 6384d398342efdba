//! Finds a room that serves a model fast enough: the number and kind of workers, replicas and hedging, and the
//! bottleneck.
//!
//! For each kind of device, it searches for the smallest room in which a token takes no longer than the target on
//! average. The shipped swarm simulates every room ([`crate::run`]); only the first lower bound on the number of
//! workers (equation 3) is estimated.

use std::fmt::Write as _;

use moex_swarm::Verify;

use crate::{
    report::{Cell, Column, Digits, Table},
    run::{self, Outcome, Part},
    scenario::{DEVICES, Scenario},
};

/// The most workers of a room.
pub const MAX_WORKERS: usize = 200;
/// The sizes of rooms that are tried, as multiples of the workers that hold the model.
const GROWTH: [f64; 3] = [1.0, 2.0, 4.0];
/// Replicas and hedging that are tried, in the order of memory and bytes.
const POLICIES: [(usize, &str); 3] = [(1, "1"), (2, "'adaptive'"), (2, "2")];
const GIB: f64 = (1u64 << 30) as f64;

/// A question for the planner: the target, and what rooms are made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// A model's preset.
    pub model: String,
    /// The format of its experts.
    pub experts: String,
    /// The longest average time of a token, milliseconds.
    pub target_ms: f64,
    /// Memory of each worker for experts, bytes.
    pub ram_bytes: f64,
    /// Presets to try; all if empty.
    pub devices: Vec<String>,
    /// The preset of each worker's link.
    pub link: String,
    /// The most workers of a room, up to [`MAX_WORKERS`].
    pub max_workers: usize,
    /// Tokens to simulate for each room.
    pub tokens: usize,
    /// Seed of all random draws.
    pub seed: u64,
}

/// A room and its simulated results.
#[derive(Clone, Debug)]
pub struct Room {
    /// The workers' preset.
    pub device: String,
    /// The number of workers.
    pub n_workers: usize,
    /// Copies of each block, r.
    pub replicas: usize,
    /// Workers asked at once, h, or `adaptive`.
    pub hedge: String,
    /// The bytes of a worker with an even share.
    pub worker_bytes: f64,
    /// Whether it is fast enough.
    pub meets: bool,
    /// The bottleneck, in words.
    pub binds: String,
    /// The simulation's result.
    pub outcome: Outcome,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// An unknown preset or format, or an invalid figure.
    #[error("{0}")]
    Question(String),
    /// No room can hold the model.
    #[error(
        "{blocks} experts of {block_mib} MiB take {needed} workers of this memory, and {max} are the most: give each more \
         memory, pack the experts smaller, or allow more with --max-workers"
    )]
    TooLarge {
        /// Experts of the model.
        blocks: usize,
        /// The size of each, rounded.
        block_mib: u64,
        /// The number of workers that hold them once.
        needed: u64,
        /// The most workers allowed.
        max: usize,
    },
}

/// Looks for the smallest room of each kind, and calls `progress` with the number of rooms tried so far. Rooms that
/// meet the target come first, smallest first; then the others, fastest first.
///
/// # Errors
/// If the question names something that does not exist, or no room can hold the model.
pub fn plan(question: &Question, mut progress: impl FnMut(usize)) -> Result<Vec<Room>, PlanError> {
    let max_workers = question.max_workers.clamp(1, MAX_WORKERS);
    let devices: Vec<String> = match &question.devices[..] {
        [] => DEVICES.split(", ").map(str::to_owned).collect(),
        named => named.to_vec(),
    };
    let mut n_tried = 0;
    let mut best = Vec::new();
    for device in devices {
        let mut found: Option<Room> = None;
        for (n_workers, replicas, hedge) in rooms(question, &device, max_workers)? {
            n_tried += 1;
            progress(n_tried);
            let room = simulate(question, &device, n_workers, replicas, hedge)?;
            let is_better = |found: &Room| room.outcome.tokens.mean_ms() < found.outcome.tokens.mean_ms();
            let meets = room.meets;
            let fixed =
                [Part::Attention, Part::Serialise, Part::Combine, Part::Head, Part::Network, Part::Sync];
            let is_out_of_reach = part_ms(&room.outcome, &fixed) > question.target_ms;
            if found.as_ref().is_none_or(|found| meets || is_better(found)) {
                found = Some(room);
            }
            // More workers share the arithmetic and hold more, but they do not change this.
            if meets || is_out_of_reach {
                break;
            }
        }
        best.extend(found);
    }
    best.sort_by(|a, b| {
        let time = |room: &Room| room.outcome.tokens.mean_ms();
        let size = |room: &Room| if room.meets { room.n_workers } else { 0 };
        b.meets.cmp(&a.meets).then(size(a).cmp(&size(b))).then(time(a).total_cmp(&time(b)))
    });
    Ok(best)
}

/// Workers, replicas and hedging to try, the smallest rooms first.
fn rooms(
    question: &Question,
    device: &str,
    max_workers: usize,
) -> Result<Vec<(usize, usize, &'static str)>, PlanError> {
    let sizes = scenario(question, device, 1, 1, "1", true)?.sizes;
    let block_bytes = sizes.shape.block_bytes() as f64;
    let n_blocks = usize::from(sizes.n_layers) * usize::from(sizes.n_experts);
    let held = (question.ram_bytes / block_bytes).floor();
    let needed = |replicas: usize| (n_blocks * replicas) as f64 / held;
    if held < 1.0 || needed(1) > max_workers as f64 {
        return Err(PlanError::TooLarge {
            blocks: n_blocks,
            block_mib: (block_bytes / f64::from(1 << 20)).ceil() as u64,
            needed: needed(1).ceil() as u64,
            max: max_workers,
        });
    }
    let mut rooms = Vec::new();
    for (replicas, hedge) in POLICIES {
        for growth in GROWTH {
            let n_workers = (needed(replicas).ceil().max(replicas as f64) * growth).ceil();
            if n_workers <= max_workers as f64 {
                rooms.push((n_workers as usize, replicas, hedge));
            }
        }
    }
    rooms.sort_by_key(|(n_workers, replicas, _)| (*n_workers, *replicas));
    rooms.dedup();
    Ok(rooms)
}

fn scenario(
    question: &Question,
    device: &str,
    n_workers: usize,
    replicas: usize,
    hedge: &str,
    hub_compute: bool,
) -> Result<crate::scenario::Checked, PlanError> {
    let Question { model, experts, ram_bytes, link, tokens, seed, .. } = question;
    // Whoever computes here, a hub that is planned for checks answers as it does by default.
    let verify = Verify::default();
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let mut text = String::new();
    let _ = write!(
        text,
        "seed = {seed}\n[model]\npreset = {}\nformat = {}\n[swarm]\nreplicas = {replicas}\nhedge = {hedge}\nhub_compute = \
         {hub_compute}\nverify = \"{verify}\"\n[[workers]]\ncount = {n_workers}\nmemory_gib = {:?}\ndevice = {}\nlink = {}\n[load]\ntokens = {tokens}\n",
        quoted(model),
        quoted(experts),
        ram_bytes / GIB,
        quoted(device),
        quoted(link),
    );
    // The scenario's text is generated here: its line numbers mean nothing to the user.
    Scenario::parse(&text).map_err(|error| PlanError::Question(error.why))
}

fn simulate(
    question: &Question,
    device: &str,
    n_workers: usize,
    replicas: usize,
    hedge: &str,
) -> Result<Room, PlanError> {
    let checked = scenario(question, device, n_workers, replicas, hedge, false)?;
    let block_bytes = checked.sizes.shape.block_bytes() as f64;
    let n_blocks = f64::from(checked.sizes.n_layers) * f64::from(checked.sizes.n_experts);
    let outcome =
        run::run(&checked, |_, _| ()).map_err(|error| PlanError::Question(format!("{device}: {error}")))?;
    let meets = outcome.tokens.mean_ms() <= question.target_ms;
    let held = (question.ram_bytes / block_bytes).floor();
    let is_least = (n_workers - 1) as f64 * held < n_blocks;
    Ok(Room {
        device: device.to_owned(),
        n_workers,
        replicas,
        hedge: hedge.trim_matches('\'').to_owned(),
        worker_bytes: n_blocks * block_bytes * replicas as f64 / n_workers as f64,
        meets,
        binds: binds(question, &outcome, meets, is_least),
        outcome,
    })
}

/// The bottleneck of a room: what must change first. `is_least`: fewer workers do not hold the model.
fn binds(question: &Question, outcome: &Outcome, meets: bool, is_least: bool) -> String {
    let ms = |parts: &[Part]| part_ms(outcome, parts);
    let hub_ms = ms(&[Part::Attention, Part::Serialise, Part::Combine, Part::Head]);
    if hub_ms > question.target_ms {
        return format!("the hub: its own part takes {hub_ms:.0} ms, even with infinitely fast workers");
    }
    let mut shares = [
        ("the hub's own part", hub_ms),
        ("the network", ms(&[Part::Network])),
        ("launching and waiting for the device", ms(&[Part::Sync])),
        ("computing experts", ms(&[Part::Compute])),
        ("queueing at workers", ms(&[Part::Queue])),
        ("waiting for the slowest", ms(&[Part::Slowest])),
    ];
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (what, time_ms) = shares[0];
    let time = format!("{what}: {time_ms:.0} ms of {:.0}", outcome.tokens.mean_ms());
    if meets && is_least { format!("memory, for the number of workers; {time}") } else { time }
}

/// The time of these parts for one token.
fn part_ms(outcome: &Outcome, parts: &[Part]) -> f64 {
    let time: f64 = parts.iter().map(|part| outcome.parts.of(*part).as_secs_f64() * 1e3).sum();
    time / outcome.n_tokens.max(1) as f64
}

/// A table with one line for each room.
pub fn table(question: &Question, rooms: &[Room]) -> Table {
    let column = |key, heading, digits| Column { key, heading, digits };
    let row = |room: &Room| {
        vec![
            Cell::from(room.device.as_str()),
            Cell::from(if room.meets { "yes" } else { "no" }),
            (room.n_workers as f64).into(),
            (room.replicas as f64).into(),
            Cell::from(room.hedge.as_str()),
            (room.worker_bytes / 1e9).into(),
            room.outcome.tokens.mean_ms().into(),
            room.outcome.tokens.quantile_ms(0.95).into(),
            room.outcome.tokens_per_s().into(),
            Cell::from(room.binds.as_str()),
        ]
    };
    Table {
        name: "plan",
        title: format!(
            "{} in {}, a token in {} ms, {:.1} GiB a worker, over {}",
            question.model,
            question.experts,
            question.target_ms,
            question.ram_bytes / GIB,
            question.link
        ),
        columns: vec![
            column("device", "device", Digits::Mixed),
            column("meets", "fast enough", Digits::Mixed),
            column("workers", "workers", Digits::After(0)),
            column("replicas", "r", Digits::After(0)),
            column("hedge", "h", Digits::Mixed),
            column("share_gb", "share, GB", Digits::After(2)),
            column("token_mean_ms", "token, ms", Digits::After(0)),
            column("token_p95_ms", "p95, ms", Digits::After(0)),
            column("tokens_per_s", "tokens/s", Digits::After(1)),
            column("binds", "what binds", Digits::Mixed),
        ],
        rows: rooms.iter().map(row).collect(),
        notes: vec![
            "The smallest room of each kind that is fast enough, else its fastest; one stream, each room simulated with the shipped swarm.".to_owned(),
            "The hub's part is the paper's 2.4 ms a layer; devices are presets, some of their figures assumed: sim/README.md says which.".to_owned(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question {
            model: "qwen3-30b-a3b".to_owned(),
            experts: "int4".to_owned(),
            target_ms: 250.0,
            ram_bytes: 4.0 * GIB,
            devices: vec!["apple-m2".to_owned()],
            link: "ethernet".to_owned(),
            max_workers: 16,
            tokens: 4,
            seed: 1,
        }
    }

    #[test]
    fn the_smallest_room_that_is_fast_enough_is_found() {
        let rooms = plan(&question(), |_| ()).unwrap();
        let [room] = &rooms[..] else { panic!("{rooms:?}") };
        // 14.95 GB in 4 GiB each: four workers, and no more are needed.
        assert!(room.meets && room.n_workers == 4 && room.replicas == 1, "{room:?}");
        assert!(room.binds.contains("memory"), "{}", room.binds);
    }

    #[test]
    fn a_target_below_the_hubs_own_part_is_met_by_nobody_and_said_so() {
        let rooms = plan(&Question { target_ms: 50.0, ..question() }, |_| ()).unwrap();
        assert!(!rooms[0].meets && rooms[0].binds.starts_with("the hub"), "{}", rooms[0].binds);
    }

    #[test]
    fn what_cannot_be_is_told() {
        let error = |question: Question| plan(&question, |_| ()).unwrap_err().to_string();
        assert!(error(Question { ram_bytes: 1e6, ..question() }).contains("more memory"));
        assert!(error(Question { max_workers: 3, ..question() }).contains("take 4 workers"));
        assert!(error(Question { devices: vec!["toaster".to_owned()], ..question() }).contains("toaster"));
        assert!(error(Question { model: "gpt".to_owned(), ..question() }).contains("gpt"));
    }
}
