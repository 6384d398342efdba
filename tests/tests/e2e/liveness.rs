//! Failing workers cost a hub that could answer alone less than half of its speed.

use std::time::Instant;

use moex_tests::chat;
use moex_tests::hub::Hub;
use moex_tests::peer::{Behaviour, Peer, PeerConfig};
use serde_json::{Value, json};

const N_TOKENS: u64 = 200;
/// The number of answers of each hub, taking turns; the medians are compared.
const N_RUNS: usize = 7;
/// Answers before the measurement, in which the hub gets to know its workers.
const N_WARM_UP: usize = 4;

/// The tokens a second of an uncached answer, and its text.
async fn answer(hub: &Hub, n: usize) -> (f64, String) {
    let body = json!({
        "prompt": format!("{n} bears"), "max_tokens": N_TOKENS, "ignore_eos": true, "temperature": 0
    });
    let begun = Instant::now();
    let asked = chat::client().unwrap().post(format!("{}/v1/completions", hub.url)).json(&body).send();
    let answer: Value = asked.await.unwrap().error_for_status().unwrap().json().await.unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], N_TOKENS);
    let text = answer["choices"][0]["text"].as_str().unwrap().to_owned();
    (N_TOKENS as f64 / begun.elapsed().as_secs_f64(), text)
}

#[tokio::test]
async fn workers_that_are_silent_lie_or_fail_leave_a_hub_more_than_half_of_its_speed() {
    let alone = Hub::start(&[]).unwrap();
    // A worker that renames itself returns under another key when it is thrown out.
    for (behaviour, renames) in [
        (Behaviour::Mute, false),
        (Behaviour::Zeros, false),
        (Behaviour::Zeros, true),
        (Behaviour::SlowLoris, false),
    ] {
        let hub = Hub::start(&["--prefer", "faster"]).unwrap();
        let peer =
            |n| Peer::start(&hub.join_url, PeerConfig { renames, ..PeerConfig::new(n, behaviour) }).unwrap();
        let _peers: Vec<Peer> = (1..=3).map(peer).collect();
        hub.wait_for_workers(3).await.unwrap();
        for n in 0..N_WARM_UP {
            assert_eq!(answer(&hub, n).await.1, answer(&alone, n).await.1, "{behaviour:?}");
        }
        let (mut speeds, mut speeds_alone) = (Vec::new(), Vec::new());
        for n in N_WARM_UP..N_WARM_UP + N_RUNS {
            let ((speed, text), (speed_alone, text_alone)) = (answer(&hub, n).await, answer(&alone, n).await);
            assert_eq!(text, text_alone, "{behaviour:?}");
            speeds.push(speed);
            speeds_alone.push(speed_alone);
        }
        let median = |mut of: Vec<f64>| {
            of.sort_by(f64::total_cmp);
            of[of.len() / 2]
        };
        let (with, without) = (median(speeds), median(speeds_alone));
        println!("{behaviour:?}: {with:.0} of {without:.0} tokens/s");
        assert!(with > 0.5 * without, "{behaviour:?}: {with:.0} of {without:.0} tokens/s");
        let totals = &hub.status().await.unwrap()["totals"];
        assert!(totals["layer_p99_micros"].as_u64() < Some(2_000_000), "{behaviour:?}: {totals}");
    }
}
