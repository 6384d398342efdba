//! Workers that lie, and no others: with default flags each text is the hub's own, whatever they answer and however
//! often they return under another name.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and these lines say where")]

use moex_tests::chat::{self, Reply};
use moex_tests::hub::{Hub, PATIENCE, Worker, workers};
use moex_tests::liar::Lie;
use moex_tests::peer::{Behaviour, Peer, PeerConfig};
use serde_json::{Value, json};

/// Answers requested under each attack; `MOEX_LIES` sets another number.
const ANSWERS: usize = 200;
/// Concurrent conversations.
const AT_ONCE: usize = 4;

#[tokio::test]
async fn two_liars_that_hold_the_last_layer_alone_change_no_text() {
    let hub = under_attack(Behaviour::Lies(Lie::LastLayer)).await;
    caught(&hub).await;
}

#[tokio::test]
async fn a_lie_in_a_hundred_answers_changes_no_text() {
    let hub = under_attack(Behaviour::Lies(Lie::Scaled(-20.0, 1))).await;
    caught(&hub).await;
}

#[tokio::test]
async fn three_per_cent_of_noise_change_no_text() {
    let hub = under_attack(Behaviour::Lies(Lie::Noise(0.03))).await;
    caught(&hub).await;
}

#[tokio::test]
async fn liars_that_rejoin_under_new_ids_change_no_text() {
    let hub = under_attack(Behaviour::Lies(Lie::Scaled(3.0, 100))).await;
    let status = caught(&hub).await;
    assert!(status["quarantined"].as_array().unwrap().len() > 2, "they came back: {status:#}");
}

#[tokio::test]
async fn no_numbers_change_no_text() {
    let hub = under_attack(Behaviour::NotFinite).await;
    let is_out = |status: &Value| !status["quarantined"].as_array().unwrap().is_empty();
    hub.wait_until("they are quarantined", is_out).await.unwrap();
}

#[tokio::test]
async fn answers_that_follow_from_wrong_products_change_no_text() {
    let hub = under_attack(Behaviour::Lies(Lie::ScaledProducts(3.0))).await;
    caught(&hub).await;
}

/// The answers are true, but the hub has to compute each one: this counts as a lie too.
#[tokio::test]
async fn false_products_beside_true_answers_change_no_text_and_are_found_out() {
    let hub = under_attack(Behaviour::Lies(Lie::FalseProducts(3.0))).await;
    caught(&hub).await;
}

#[tokio::test]
async fn two_values_that_cancel_for_many_a_check_change_no_text() {
    let hub = under_attack(Behaviour::Lies(Lie::TwoValues)).await;
    caught(&hub).await;
}

/// Where answers are checked after they were used, a false one is found late: then texts begin again or fail, and what later
/// texts would have read from the cache is gone.
#[tokio::test]
async fn what_was_wrong_before_liars_were_found_out_is_in_no_later_text() {
    let hub = Hub::start(&["--verify", "audit", "--check-every", "64"]).unwrap();
    let _liars = [1, 2].map(|id| {
        Peer::start(&hub.join_url, PeerConfig::new(id, Behaviour::Lies(Lie::Scaled(-20.0, 5)))).unwrap()
    });
    let serves = |worker: &Value| worker["blocks_resident"].as_u64() > Some(0);
    hub.wait_until("both serve", |status| workers(status).filter(|worker| serves(worker)).count() == 2)
        .await
        .unwrap();
    let http = chat::client().unwrap();
    let cases = cases_and_texts(20).await;
    let n_found = |status: &Value| status["quarantined"].as_array().map_or(0, Vec::len);
    let (mut n, mut wrong) = (0, 0);
    while n_found(&hub.status().await.unwrap()) < 2 {
        for (case, expected) in &cases {
            let said = chat::stream(&http, &hub.url, case, || {}).await;
            n += 1;
            wrong += usize::from(said.is_ok_and(|said| said != *expected));
        }
    }
    println!("{wrong} of {n} texts were wrong before they were found out");
    let status = hub.status().await.unwrap();
    assert!(status["totals"]["doubts"].as_u64() > Some(0), "{status:#}");
    answers_are_right(&hub).await;
}

/// These tests' liars compute what honest workers compute, and nobody is suspected for it.
#[tokio::test]
async fn honest_workers_are_used_and_never_suspected() {
    let hub = Hub::start(&[]).unwrap();
    let _native = Worker::start(&hub.join_url, &[]).unwrap();
    let _scripted = Peer::start(&hub.join_url, PeerConfig::new(7, Behaviour::Lies(Lie::None))).unwrap();
    hub.wait_for_workers(2).await.unwrap();
    answers_are_right(&hub).await;
    let status = hub.status().await.unwrap();
    let verification = &status["verification"];
    let count = |what: &str| verification[what].as_u64().unwrap();
    assert_eq!(verification["mode"], "blocking");
    assert_eq!((count("refuted"), count("lies")), (0, 0), "{status:#}");
    assert!(count("checked") > 10 * count("recomputed"), "most are checked, not computed: {status:#}");
    assert_eq!(status["totals"]["mismatches"], 0);
    println!("{verification}");
}

/// Each liar is thrown out as soon as it has answered, and returns: the hub computes alone and does not, by turns, within one
/// prompt. Its length makes several groups of rows.
#[tokio::test]
async fn long_prompts_change_in_no_bit_while_liars_come_and_go() {
    let (hub, alone) = (Hub::start(&[]).unwrap(), Hub::start(&[]).unwrap());
    let _liars = [1, 2].map(|id| {
        let behaviour = Behaviour::Lies(Lie::Scaled(3.0, 100));
        let config = PeerConfig { renames: true, ..PeerConfig::new(id, behaviour) };
        Peer::start(&hub.join_url, config).unwrap()
    });
    hub.wait_for_workers(2).await.unwrap();
    let lines = std::fs::read_to_string(moex_tests::data("demo-cases.jsonl")).unwrap();
    let cases = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let questions: Vec<String> = cases.map(|case| case["messages"][0]["content"].to_string()).collect();
    let http = chat::client().unwrap();
    let mut n_tokens = 0;
    for first in (0..questions.len()).step_by(10) {
        let long: Vec<&str> = questions.iter().cycle().skip(first).take(90).map(String::as_str).collect();
        let body = json!({"messages": [{"role": "user", "content": long.join(" ")}], "temperature": 0,
            "max_tokens": 8, "logprobs": true, "top_logprobs": 3});
        let mut said = Vec::new();
        for hub in [&hub, &alone] {
            let asked = http.post(format!("{}/v1/chat/completions", hub.url)).json(&body).timeout(PATIENCE);
            said.push(asked.send().await.unwrap().json::<Value>().await.unwrap());
        }
        let [by_liars, by_itself] = &said[..] else { panic!("two answers") };
        assert!(by_itself["choices"][0]["logprobs"]["content"][0]["logprob"].is_number(), "{by_itself}");
        assert_eq!(by_liars["choices"], by_itself["choices"], "from question {first} on");
        n_tokens += by_itself["usage"]["prompt_tokens"].as_u64().unwrap();
    }
    let status = caught(&hub).await;
    assert!(status["quarantined"].as_array().unwrap().len() > 2, "they came back: {status:#}");
    println!("{n_tokens} tokens of prompts");
}

/// A hub with default flags whose two workers both behave like this, after [`ANSWERS`] answers that were all right.
async fn under_attack(behaviour: Behaviour) -> Hub {
    let hub = Hub::start(&[]).unwrap();
    let liars = [1, 2].map(|id| {
        let config = PeerConfig { renames: true, ..PeerConfig::new(id, behaviour) };
        Peer::start(&hub.join_url, config).unwrap()
    });
    let serves = |worker: &Value| worker["blocks_resident"].as_u64() > Some(0);
    hub.wait_until("both serve", |status| workers(status).filter(|worker| serves(worker)).count() == 2)
        .await
        .unwrap();
    answers_are_right(&hub).await;
    let n_asked: u64 = liars.iter().map(|liar| liar.counts()[0]).sum();
    println!("{behaviour:?}: answered {n_asked} times");
    assert!(n_asked > 0, "{behaviour:?} was never asked");
    hub
}

/// The status of a hub that has detected a lie.
async fn caught(hub: &Hub) -> Value {
    let is_caught = |status: &Value| !status["quarantined"].as_array().unwrap().is_empty();
    hub.wait_until("a liar is quarantined", is_caught).await.unwrap();
    let status = hub.status().await.unwrap();
    let quarantined = &status["quarantined"][0];
    assert!(quarantined["evidence"][0]["against"].is_null(), "the hub's own result is the proof: {status:#}");
    println!("{} quarantined, {}", status["quarantined"].as_array().unwrap().len(), status["verification"]);
    status
}

async fn answers_are_right(hub: &Hub) {
    let n: usize = std::env::var("MOEX_LIES").ok().and_then(|n| n.parse().ok()).unwrap_or(ANSWERS);
    let cases = cases_and_texts(20).await;
    let http = chat::client().unwrap();
    let mut wrong = 0;
    let asked: Vec<&(Value, Reply)> = cases.iter().cycle().take(n).collect();
    for some in asked.chunks(AT_ONCE) {
        let all = some.iter().map(|(case, _)| chat::ask(&http, &hub.url, case));
        let said = futures_util::future::join_all(all).await;
        for ((case, expected), said) in some.iter().zip(said) {
            let said = said.unwrap();
            if said != *expected {
                println!("case {}: {said:?}", case["id"]);
                wrong += 1;
            }
        }
    }
    assert_eq!(wrong, 0, "wrong texts of {n}");
}

/// The first cases of the demo, with the texts of a hub without workers.
async fn cases_and_texts(n: usize) -> Vec<(Value, Reply)> {
    let hub = Hub::start(&[]).unwrap();
    let http = chat::client().unwrap();
    let lines = std::fs::read_to_string(moex_tests::data("demo-cases.jsonl")).unwrap();
    let mut texts = Vec::new();
    for line in lines.lines().take(n) {
        let case: Value = serde_json::from_str(line).unwrap();
        let said = chat::ask(&http, &hub.url, &case).await.unwrap();
        texts.push((case, said));
    }
    texts
}
