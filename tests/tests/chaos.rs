//! Workers that fail, leave and lie: every request still gets the hub's own text, and nobody waits for long.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and these lines say where")]

use std::time::{Duration, Instant};

use moex_protocol::WorkerKey;
use moex_tests::chaos::{self, Config};
use moex_tests::chat::{self, Reply};
use moex_tests::hub::{Hub, Moex, Signal, Worker, workers};
use moex_tests::peer::{Behaviour, FORGED_LINE, Peer, PeerConfig};
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use tokio::time::sleep;

/// The hub's default, from the paper.
const TIMEOUT: Duration = Duration::from_millis(500);
/// How long a worker is stopped before it goes on or is killed.
const PAUSE: Duration = Duration::from_millis(125);
/// The number of interruptions whose times count.
const TRIES: usize = 8;

#[tokio::test]
async fn ten_seconds_of_chaos_change_no_text() {
    let activations = ["--activations", "int8"].map(str::to_owned);
    let config = Config {
        moex: Moex::under_test().logging_to(&chaos::log_folder("chaos-test").unwrap()),
        length: Duration::from_secs(10),
        seed: 10,
        n_workers: 4,
        n_tabs: 1,
        n_hosts: chaos::hosts(1),
        n_streams: 4,
        n_cases: 12,
        serve: activations.to_vec(),
    };
    let report = chaos::run(&config).await.unwrap();
    assert!(report.is_good(), "{report}");
    assert!(report.n_events() >= 20 && report.outcome.n_new > 0, "{report}");
    assert!(report.totals["answers"].as_u64() > Some(0), "workers answered too: {report}");
}

/// The effect of a liar on the hub's counts.
enum Shows {
    /// This total grows with its answers.
    Counts(&'static str),
    /// The hub ends its connection, and counts that as well.
    ThrownOut,
}

#[tokio::test]
async fn liars_beside_honest_workers_change_no_text() {
    let cases = cases_and_texts(4).await;
    let hub = Hub::start(&["--experts", "int4"]).unwrap();
    let _honest = [Worker::start(&hub.join_url, &[]).unwrap(), Worker::start(&hub.join_url, &[]).unwrap()];
    hub.wait_for_workers(2).await.unwrap();
    let liars = [
        (Behaviour::NotFinite, Shows::ThrownOut),
        (Behaviour::Stale, Shows::Counts("late")),
        (Behaviour::Mute, Shows::Counts("timeouts")),
        (Behaviour::Foreign, Shows::ThrownOut),
        (Behaviour::Overlong, Shows::ThrownOut),
        (Behaviour::Huge, Shows::ThrownOut),
        (Behaviour::Truncated, Shows::ThrownOut),
        (Behaviour::Text, Shows::ThrownOut),
        (Behaviour::SlowLoris, Shows::Counts("timeouts")),
    ];
    for (id, (behaviour, shows)) in (0xBAD0..).zip(liars) {
        let before = hub.status().await.unwrap();
        // Each liar has its own id, so that one's reputation does not affect the next.
        let liar = Peer::start(&hub.join_url, PeerConfig::new(id, behaviour)).unwrap();
        hub.wait_for_workers(3).await.unwrap();
        answer_beside(&liar, &hub, &cases, &format!("{behaviour:?}")).await;
        let [_, thrown_out] = liar.counts();
        let (total, least) = match shows {
            Shows::Counts(total) => (total, 0),
            Shows::ThrownOut => ("sessions_ended", 1),
        };
        let count = |status: &Value| status["totals"][total].as_u64().unwrap();
        // The hub notices an attempt that nobody waits for when its time is up.
        hub.wait_until("what the liar did is counted", |status| count(status) > count(&before))
            .await
            .unwrap();
        assert!(thrown_out >= least, "{behaviour:?} is still welcome");
        let status = hub.status().await.unwrap();
        assert!(workers(&status).count() >= 2, "{behaviour:?} drove others away: {status:#}");
        drop(liar);
        hub.wait_for_workers(2).await.unwrap();
    }
}

/// All cases give their texts beside a liar, which is asked at least once: whom the hub asks depends on the loads and
/// times of the workers, and four short answers may pass a worker by.
async fn answer_beside(liar: &Peer, hub: &Hub, cases: &[(Value, Reply)], who: &str) {
    let http = chat::client().unwrap();
    let start = Instant::now();
    loop {
        for (case, expected) in cases {
            let said = chat::ask(&http, &hub.url, case).await.unwrap();
            assert_eq!(said, *expected, "case {} beside {who}", case["id"]);
        }
        if liar.counts()[0] > 0 {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{who} was never asked");
    }
}

/// Three workers that declare almost no work and answer nothing: with default flags, ten answers take no longer than
/// those of a hub that computes by itself, apart from the noise of a shared machine.
#[tokio::test]
async fn silent_workers_that_say_they_are_slow_hold_up_no_answer() {
    let cases = cases_and_texts(10).await;
    let hub = Hub::start(&[]).unwrap();
    // A hub without connections computes on the thread that asks; this worker holds nothing, and gets no dispatches.
    let idle = Peer::start(&hub.join_url, PeerConfig::new(0xBAD9, Behaviour::LoadsNothing)).unwrap();
    hub.wait_until("it has joined", |status| workers(status).count() == 1).await.unwrap();
    time_of(&hub, &cases).await;
    let alone = time_of(&hub, &cases).await;
    drop(idle);
    hub.wait_until("it is gone", |status| workers(status).count() == 0).await.unwrap();
    let silent = (0xBAD0..0xBAD3).map(|id| {
        let config = PeerConfig { teraflops: 1e-9, ..PeerConfig::new(id, Behaviour::Mute) };
        Peer::start(&hub.join_url, config).unwrap()
    });
    let silent: Vec<Peer> = silent.collect();
    hub.wait_for_workers(3).await.unwrap();
    let beside = time_of(&hub, &cases).await;
    assert!(silent.iter().any(|peer| peer.counts()[0] > 0), "they were never asked");
    println!("ten answers: {alone:?} alone, {beside:?} beside three silent workers");
    assert!(beside < 2 * alone + TIMEOUT, "{alone:?} alone, {beside:?} beside them");
}

/// A worker that loads nothing does not slow the others.
#[tokio::test]
async fn a_worker_that_fails_every_load_holds_up_no_answer() {
    let cases = cases_and_texts(10).await;
    let hub = Hub::start(&[]).unwrap();
    let _honest = [Worker::start(&hub.join_url, &[]).unwrap(), Worker::start(&hub.join_url, &[]).unwrap()];
    hub.wait_for_workers(2).await.unwrap();
    time_of(&hub, &cases).await;
    let without = time_of(&hub, &cases).await;
    let held = |status: &Value| -> Vec<u64> {
        workers(status).map(|worker| worker["blocks_resident"].as_u64().unwrap()).filter(|n| *n > 0).collect()
    };
    let before = held(&hub.status().await.unwrap());
    let _bad = Peer::start(&hub.join_url, PeerConfig::new(0xBAD0, Behaviour::LoadsNothing)).unwrap();
    hub.wait_until("it has joined", |status| workers(status).count() == 3).await.unwrap();
    let beside = time_of(&hub, &cases).await;
    println!("ten answers: {without:?} without, {beside:?} beside a worker that loads nothing");
    assert!(beside < 2 * without + TIMEOUT, "{without:?} without, {beside:?} beside it");
    assert_eq!(held(&hub.status().await.unwrap()), before, "nobody else's blocks have moved");
}

/// No number is answered twice, with default flags, by a worker that answers none.
#[tokio::test]
async fn a_worker_that_answers_no_numbers_is_quarantined_with_default_flags() {
    let cases = cases_and_texts(4).await;
    let hub = Hub::start(&["--experts", "int4"]).unwrap();
    let _liar = Peer::start(&hub.join_url, PeerConfig::new(0xBAD, Behaviour::NotFinite)).unwrap();
    hub.wait_until("it has joined", |status| workers(status).count() == 1).await.unwrap();
    let http = reqwest::Client::new();
    for (case, expected) in &cases {
        assert_eq!(chat::ask(&http, &hub.url, case).await.unwrap(), *expected, "case {}", case["id"]);
    }
    let is_out = |status: &Value| status["quarantined"].as_array().is_some_and(|all| all.len() == 1);
    hub.wait_until("it is quarantined", is_out).await.unwrap();
    assert_eq!(workers(&hub.status().await.unwrap()).count(), 0, "and turned away");
}

/// Wrong but finite values of the right shape. With every answer checked, none of them reaches a text, and the hub
/// detects the liar, names it with the evidence, and keeps it out.
#[tokio::test]
async fn a_worker_that_answers_wrong_values_is_quarantined_and_changes_no_text() {
    let cases = cases_and_texts(4).await;
    let hub = Hub::start(&["--experts", "int4", "--check-every", "1"]).unwrap();
    let _honest = [Worker::start(&hub.join_url, &[]).unwrap(), Worker::start(&hub.join_url, &[]).unwrap()];
    hub.wait_for_workers(2).await.unwrap();
    let key = WorkerKey(0xBAD);
    let liar = Peer::start(&hub.join_url, PeerConfig::new(key.0, Behaviour::Zeros)).unwrap();
    hub.wait_for_workers(3).await.unwrap();
    answer_beside(&liar, &hub, &cases, "a liar").await;
    let status = hub.status().await.unwrap();
    let quarantined = status["quarantined"].as_array().unwrap();
    assert_eq!(quarantined.len(), 1, "{status:#}");
    assert_eq!(quarantined[0]["id"], key.id().to_string());
    assert!(quarantined[0]["evidence"].as_array().is_some_and(|evidence| !evidence.is_empty()), "{status:#}");
    assert_eq!(workers(&status).count(), 2, "it is turned away when it returns: {status:#}");
    let metrics = reqwest::get(format!("{}/metrics", hub.url)).await.unwrap().text().await.unwrap();
    assert!(metrics.contains("\nmoex_quarantines_total 1\n"), "{metrics}");
}

/// A worker's text becomes one line of the hub's log, without escapes for a terminal.
#[tokio::test]
async fn what_a_worker_writes_forges_no_line_of_the_log() {
    let folder = chaos::log_folder("forged-log-test").unwrap();
    let hub = Moex::under_test().logging_to(&folder).hub(&[]).unwrap();
    let _peer = Peer::start(&hub.join_url, PeerConfig::new(0xBAD, Behaviour::Forges)).unwrap();
    hub.wait_for_workers(1).await.unwrap();
    let (http, case) = (reqwest::Client::new(), &demo_cases(1)[0]);
    chat::ask(&http, &hub.url, case).await.unwrap();
    hub.wait_until("it has said so", |s| s["totals"]["sessions_ended"].as_u64() > Some(0)).await.unwrap();
    let log = std::fs::read_to_string(folder.join("hub.log")).unwrap();
    assert!(log.contains(FORGED_LINE), "it is shown: {log}");
    assert!(log.lines().all(|line| !line.starts_with(FORGED_LINE)) && !log.contains("\u{1b}[2J"), "{log}");
    let id = WorkerKey(0xBAD).id();
    assert!(!log.contains(&id.to_string()) && log.contains(&id.short()), "ids are short: {log}");
}

/// The hub's own worker is killed: a new process replaces it.
#[tokio::test]
async fn a_worker_of_the_hubs_own_that_dies_is_started_again() {
    let hub = Hub::start(&["--workers", "1"]).unwrap();
    hub.wait_for_workers(1).await.unwrap();
    let [victim] = children(hub.pid())[..] else { panic!("one worker") };
    kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    hub.wait_until("it is gone", |status| workers(status).count() == 0).await.unwrap();
    hub.wait_for_workers(1).await.unwrap();
    let after = children(hub.pid());
    assert!(after.len() == 1 && after[0] != victim, "{victim} {after:?}");
    hub.end(Signal::TERM).await.unwrap();
}

/// The running processes that this process has started.
fn children(pid: u32) -> Vec<i32> {
    let is_child = |id: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // The name, which may contain spaces, ends with the last parenthesis; then come state and parent.
        let mut rest = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        rest.next() != Some("Z") && rest.next() == Some(&pid.to_string())
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(is_child).collect()
}

/// What becomes of a worker in the middle of a layer. It is stopped first, so that it surely holds an attempt.
#[derive(Clone, Copy, PartialEq)]
enum Interruption {
    /// Goes on after [`PAUSE`].
    Pauses,
    /// Is killed after [`PAUSE`].
    Dies,
    /// Stays as it is, and keeps its socket.
    Hangs,
}

/// After its socket closes, the token takes no longer than one whose worker has only paused for as long, plus 5 ms. The machine may
/// be busy for longer, so half of all tries must show it.
#[tokio::test]
async fn a_worker_killed_in_the_middle_of_a_layer_costs_its_token_five_milliseconds() {
    const COST: Duration = Duration::from_millis(5);
    let after_pause = median(tries(Interruption::Pauses).await);
    let seen = tries(Interruption::Dies).await;
    let n_within = seen.iter().filter(|took| **took <= after_pause + COST).count();
    println!("{after_pause:?} after a pause, after a kill {seen:?}");
    assert!(2 * n_within >= TRIES, "{n_within}: {after_pause:?} after a pause, after a kill {seen:?}");
}

/// A worker that is stopped and keeps its socket delays the token by at most one timeout, in at least three of four
/// tries.
#[tokio::test]
async fn a_worker_that_hangs_in_the_middle_of_a_layer_costs_its_token_one_timeout() {
    let after_pause = median(tries(Interruption::Pauses).await);
    let seen = tries(Interruption::Hangs).await;
    let most = TIMEOUT + 2 * after_pause + Duration::from_millis(50);
    let n_within = seen.iter().filter(|took| **took <= most).count();
    println!("{after_pause:?} after a pause, beside a stopped worker {seen:?}");
    assert!(
        4 * n_within >= 3 * TRIES,
        "{n_within}: {after_pause:?} after a pause, beside a stopped worker {seen:?}"
    );
}

/// Interrupts until [`TRIES`] interruptions have had an effect; returns how long the token took that met each.
async fn tries(what: Interruption) -> Vec<Duration> {
    let mut seen = Vec::new();
    for _ in 0..3 * TRIES {
        seen.extend(interrupted(what).await);
        if seen.len() == TRIES {
            break;
        }
    }
    assert_eq!(seen.len(), TRIES, "too few interruptions met a worker that was asked");
    seen
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Streams a story from two workers, each of which holds everything, and stops one of them in the middle. Returns the longest time of
/// a token after that; if the worker goes on or is killed, the time of the running token from then on. `None` if the hub happened
/// to ask only the other worker.
async fn interrupted(what: Interruption) -> Option<Duration> {
    const N_BEFORE: usize = 16;
    // A second copy would hide the cost of a retry.
    let hub = Hub::start(&["--experts", "int4", "--hedge", "1"]).unwrap();
    let mut victim = Some(Worker::start(&hub.join_url, &[]).unwrap());
    let _survivor = Worker::start(&hub.join_url, &[]).unwrap();
    hub.wait_until("two workers with everything", |status| {
        let blocks = &status["coverage"]["blocks"];
        workers(status).filter(|worker| worker["blocks_resident"] == *blocks).count() == 2
    })
    .await
    .unwrap();
    let (pieces, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let url = hub.url.clone();
    let story = tokio::spawn(async move {
        let case = serde_json::json!({"messages": [{"role": "user", "content": "Tell me a story about a bear."}],
            "enable_thinking": false});
        let http = chat::client().unwrap();
        // The rest of a try without effect is not read.
        let on_piece = || {
            let _ = pieces.send(Instant::now());
        };
        chat::stream(&http, &url, &case, on_piece).await
    });
    for _ in 0..N_BEFORE {
        heard.recv().await.unwrap();
    }
    victim.as_ref().unwrap().signal(Signal::STOP).unwrap();
    let mut last = Instant::now();
    if what != Interruption::Hangs {
        sleep(PAUSE).await;
        // Tokens that were running when the worker was stopped; the next one waits for it.
        while let Ok(before) = heard.try_recv() {
            if before > last + PAUSE / 2 {
                return None;
            }
        }
        match what {
            Interruption::Pauses => victim.as_ref().unwrap().signal(Signal::CONT).unwrap(),
            // The process has ended when this returns, so its sockets are closed.
            _ => victim = None,
        }
        last = Instant::now();
    }
    let mut longest = Duration::ZERO;
    while let Some(time) = heard.recv().await {
        longest = longest.max(time.saturating_duration_since(last));
        last = last.max(time);
        // Only the running token waits for a worker that goes on or is gone.
        if what != Interruption::Hangs {
            break;
        }
    }
    drop(heard);
    story.await.unwrap().unwrap();
    drop(victim);
    (what != Interruption::Hangs || longest >= TIMEOUT / 2).then_some(longest)
}

/// The time that a hub takes for these cases, one after another.
async fn time_of(hub: &Hub, cases: &[(Value, Reply)]) -> Duration {
    let http = reqwest::Client::new();
    let started = Instant::now();
    for (case, _) in cases {
        chat::ask(&http, &hub.url, case).await.unwrap();
    }
    started.elapsed()
}

/// The first cases of the demo.
fn demo_cases(n: usize) -> Vec<Value> {
    let lines = std::fs::read_to_string(moex_tests::data("demo-cases.jsonl")).unwrap();
    lines.lines().take(n).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The first cases of the demo, with the texts of a hub without workers.
async fn cases_and_texts(n: usize) -> Vec<(Value, Reply)> {
    let hub = Hub::start(&["--experts", "int4"]).unwrap();
    let http = chat::client().unwrap();
    let mut texts = Vec::new();
    for case in demo_cases(n) {
        let said = chat::ask(&http, &hub.url, &case).await.unwrap();
        texts.push((case, said));
    }
    texts
}
