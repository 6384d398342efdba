//! Workers that break, leave and lie: every request still gets the hub's own text, and nobody waits for long.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and these lines say where")]

use std::time::{Duration, Instant};

use moex_protocol::WorkerId;
use moex_tests::chaos::{self, Config};
use moex_tests::chat::{self, Said};
use moex_tests::hub::{Hub, Moex, Signal, Worker, workers};
use moex_tests::peer::{Manner, Peer, PeerConfig};
use serde_json::Value;
use tokio::time::sleep;

/// The hub's default, which is the paper's.
const TIMEOUT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn ten_seconds_of_chaos_change_no_text() {
    let config = Config {
        moex: Moex::under_test().logging_to(&chaos::log_folder("chaos-test").unwrap()),
        length: Duration::from_secs(10),
        seed: 10,
        n_workers: 4,
        n_tabs: 0,
        n_hosts: chaos::hosts(1),
        n_streams: 4,
        n_cases: 12,
        serve: Vec::new(),
    };
    let report = chaos::run(&config).await.unwrap();
    assert!(report.is_good(), "{report}");
    assert!(report.n_events() >= 20, "{report}");
    assert!(report.totals["answers"].as_u64() > Some(0), "workers answered too: {report}");
}

/// What a liar does to the hub's counts.
enum Shows {
    /// This total grows with its answers.
    Counts(&'static str),
    /// The hub ends its connection, and counts that.
    ThrownOut,
}

#[tokio::test]
async fn liars_beside_honest_workers_change_no_text() {
    let cases = cases_and_texts(4).await;
    let hub = Hub::start(&["--experts", "int4"]).unwrap();
    let _honest = [Worker::start(&hub.join_url, &[]).unwrap(), Worker::start(&hub.join_url, &[]).unwrap()];
    hub.wait_for_workers(2).await.unwrap();
    let liars = [
        (Manner::NotFinite, Shows::Counts("errors")),
        (Manner::Stale, Shows::Counts("late")),
        (Manner::Mute, Shows::Counts("timeouts")),
        (Manner::Foreign, Shows::ThrownOut),
        (Manner::Overlong, Shows::ThrownOut),
        (Manner::Huge, Shows::ThrownOut),
        (Manner::Truncated, Shows::ThrownOut),
        (Manner::Text, Shows::ThrownOut),
        (Manner::SlowLoris, Shows::Counts("timeouts")),
    ];
    for (id, (manner, shows)) in (0xBAD0..).zip(liars) {
        let before = hub.status().await.unwrap();
        // An id of its own: what one liar is known for is not held against the next.
        let config =
            PeerConfig { worker: WorkerId(id), memory_budget_bytes: 1 << 30, manner, busy_poll: false };
        let liar = Peer::start(&hub.join_url, config).unwrap();
        hub.wait_for_workers(3).await.unwrap();
        let http = chat::client().unwrap();
        for (case, expected) in &cases {
            let said = chat::ask(&http, &hub.url, case).await.unwrap();
            assert_eq!(said, *expected, "case {} beside {manner:?}", case["id"]);
        }
        let [answers, thrown_out] = liar.deeds();
        assert!(answers > 0, "{manner:?} was never asked");
        let status = hub.status().await.unwrap();
        let grows = |total: &str| {
            let [before, now] = [&before, &status].map(|status| status["totals"][total].as_u64().unwrap());
            assert!(now > before, "{manner:?} shows in no {total}: {status:#}");
        };
        match shows {
            Shows::Counts(total) => grows(total),
            Shows::ThrownOut => {
                assert!(thrown_out > 0, "{manner:?} is still welcome: {status:#}");
                grows("sessions_ended");
            }
        }
        assert!(workers(&status).count() >= 2, "{manner:?} drove others away: {status:#}");
        drop(liar);
        hub.wait_for_workers(2).await.unwrap();
    }
}

/// Values of the right shape, finite and wrong: with every answer checked none of them reaches a text, and the liar is
/// found out, named with its evidence, and kept out.
#[tokio::test]
async fn a_worker_that_answers_wrong_values_is_quarantined_and_changes_no_text() {
    let cases = cases_and_texts(4).await;
    let hub = Hub::start(&["--experts", "int4", "--check-every", "1"]).unwrap();
    let _honest = [Worker::start(&hub.join_url, &[]).unwrap(), Worker::start(&hub.join_url, &[]).unwrap()];
    hub.wait_for_workers(2).await.unwrap();
    let worker = WorkerId(0xBAD);
    let config = PeerConfig { worker, memory_budget_bytes: 1 << 30, manner: Manner::Zeros, busy_poll: false };
    let liar = Peer::start(&hub.join_url, config).unwrap();
    hub.wait_for_workers(3).await.unwrap();
    let http = chat::client().unwrap();
    for (case, expected) in &cases {
        let said = chat::ask(&http, &hub.url, case).await.unwrap();
        assert_eq!(said, *expected, "case {} beside a liar", case["id"]);
    }
    assert!(liar.deeds()[0] > 0, "it was never asked");
    let status = hub.status().await.unwrap();
    let quarantined = status["quarantined"].as_array().unwrap();
    assert_eq!(quarantined.len(), 1, "{status:#}");
    assert_eq!(quarantined[0]["id"], worker.to_string());
    assert!(quarantined[0]["evidence"].as_array().is_some_and(|evidence| evidence.len() >= 2), "{status:#}");
    assert_eq!(workers(&status).count(), 2, "it is turned away when it returns: {status:#}");
    let metrics = http.get(format!("{}/metrics", hub.url)).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("\nmoex_quarantines_total 1\n"), "{metrics}");
}

/// A worker is stopped, so that it surely holds an attempt, then killed: from the closed socket on, the token takes no
/// longer than a token does, and 5 ms.
#[tokio::test]
async fn a_worker_killed_in_the_middle_of_a_layer_costs_its_token_five_milliseconds() {
    const COST: Duration = Duration::from_millis(5);
    // The machine may look away for longer than that, so one try of a few must show it.
    const TRIES: usize = 8;
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let Some((usual, after_kill)) = interrupted(Some(TIMEOUT / 4)).await else { continue };
        seen.push((usual, after_kill));
        if after_kill <= usual + COST {
            return;
        }
    }
    panic!("a usual token, and the token after the kill: {seen:?}");
}

/// A worker that is stopped and keeps its socket costs the token that it is asked for at most one timeout.
#[tokio::test]
async fn a_worker_that_hangs_in_the_middle_of_a_layer_costs_its_token_one_timeout() {
    const TRIES: usize = 8;
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let Some((usual, after_stop)) = interrupted(None).await else { continue };
        seen.push((usual, after_stop));
        if after_stop <= TIMEOUT + 2 * usual + Duration::from_millis(50) {
            return;
        }
    }
    panic!("a usual token, and the token that met the stopped worker: {seen:?}");
}

/// Streams a story from two workers, each of which holds everything, and stops one of them in the middle. The time of
/// a usual token - the median of both workers' or of the survivor's, whichever is longer - and the longest a token then
/// took from the stop on; if the worker is killed so long after the stop, what the token under way took from the kill
/// on. None if the hub happened to ask the other one only.
async fn interrupted(kill_after: Option<Duration>) -> Option<(Duration, Duration)> {
    const N_BEFORE: usize = 16;
    // A second copy would hide what a retry costs.
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
        // A try that shows nothing is not listened to any further.
        let on_piece = || {
            let _ = pieces.send(Instant::now());
        };
        chat::stream(&http, &url, &case, on_piece).await
    });
    let mut times = Vec::new();
    while times.len() < N_BEFORE {
        times.push(heard.recv().await.unwrap());
    }
    let before = median_gap(&times);

    victim.as_ref().unwrap().signal(Signal::STOP).unwrap();
    let mut last = Instant::now();
    if let Some(pause) = kill_after {
        sleep(pause).await;
        // Tokens that were under way when the worker was stopped; the next one waits for it.
        while let Ok(before) = heard.try_recv() {
            if before > last + pause / 2 {
                return None;
            }
        }
        last = Instant::now();
        victim = None;
    }
    let mut longest = Duration::ZERO;
    times.clear();
    while let Some(time) = heard.recv().await {
        // What waits for a killed worker is the token under way, and no other.
        if kill_after.is_none() || times.is_empty() {
            longest = longest.max(time.saturating_duration_since(last));
        }
        last = last.max(time);
        times.push(time);
    }
    let usual = before.max(median_gap(&times));
    story.await.unwrap().unwrap();
    drop(victim);
    let was_asked = kill_after.is_some() || longest >= TIMEOUT / 2;
    was_asked.then_some((usual, longest))
}

fn median_gap(times: &[Instant]) -> Duration {
    let mut gaps: Vec<Duration> = times.windows(2).map(|two| two[1] - two[0]).collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or_default()
}

/// The first cases of the demo, with what a hub without workers says.
async fn cases_and_texts(n: usize) -> Vec<(Value, Said)> {
    let lines = std::fs::read_to_string(moex_tests::data("demo-cases.jsonl")).unwrap();
    let hub = Hub::start(&["--experts", "int4"]).unwrap();
    let http = chat::client().unwrap();
    let mut texts = Vec::new();
    for line in lines.lines().take(n) {
        let case: Value = serde_json::from_str(line).unwrap();
        let said = chat::ask(&http, &hub.url, &case).await.unwrap();
        texts.push((case, said));
    }
    texts
}
