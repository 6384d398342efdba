//! What `/api/swarm` predicts beside what it measures, and whether what would help does help.

use std::time::Duration;

use moex_tests::chat;
use moex_tests::hub::{Hub, Moex, Worker};
use moex_tests::proxy::{Link, Proxy, Weather};
use serde_json::{Value, json};

/// The largest factor between predicted and measured tokens/s. The model takes workers for independent; those of a test
/// wait for the same cores and are late together, and other tests run beside them.
const TOLERANCE: f64 = 1.25;

/// A hub whose workers alone compute experts, behind links of their own.
struct Room {
    hub: Hub,
    workers: Vec<(Worker, Proxy)>,
}

impl Room {
    async fn new(n: usize, link: Link) -> Self {
        let hub = Hub::start(&["--no-hub-compute", "--no-guesses"]).unwrap();
        let mut workers = Vec::new();
        for name in ["one", "two", "three"].into_iter().take(n) {
            let proxy = Proxy::start(hub.address().unwrap(), Link::Open).await.unwrap();
            let join_url = hub.join_url_by(proxy.address).unwrap();
            workers.push((Moex::under_test().worker(name, &join_url, &[]).unwrap(), proxy));
        }
        hub.wait_for_workers(n).await.unwrap();
        // Weights come faster than answers will.
        workers.iter().for_each(|(_, proxy)| proxy.set(link));
        let room = Self { hub, workers };
        // The latencies that the hub keeps become those of this link: 256 of each worker.
        for _ in 0..2 {
            room.answer().await;
        }
        room
    }

    async fn answer(&self) {
        let story = json!({
            "messages": [{"role": "user", "content": "Tell me a story about a bear."}],
            "temperature": 0, "max_tokens": 100, "ignore_eos": true,
        });
        let url = format!("{}/v1/chat/completions", self.hub.url);
        chat::client().unwrap().post(url).json(&story).send().await.unwrap().error_for_status().unwrap();
    }

    async fn prediction(&self) -> Value {
        // From here on the prediction covers its own steps.
        self.hub.status().await.unwrap();
        self.answer().await;
        self.hub.status().await.unwrap()["prediction"].clone()
    }
}

fn figure(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap_or_else(|| panic!("no {name} in {of}"))
}

fn gain(prediction: &Value, change: &str) -> f64 {
    let what_ifs = prediction["what_ifs"].as_array().unwrap();
    let found = what_ifs.iter().find(|what_if| what_if["change"].as_str().unwrap().starts_with(change));
    figure(found.unwrap_or_else(|| panic!("no {change} in {prediction}")), "gain")
}

#[tokio::test]
async fn predicted_speed_is_near_the_measured_one_behind_a_link() {
    let half = Weather { delay: Duration::from_millis(2), ..Weather::default() };
    let room = Room::new(3, Link::Shaped { up: half, down: half }).await;
    let prediction = room.prediction().await;
    for name in ["tokens_per_second", "layer_micros"] {
        let (predicted, measured) =
            (figure(&prediction[name], "predicted"), figure(&prediction[name], "measured"));
        let factor = (predicted / measured).max(measured / predicted);
        assert!(factor < TOLERANCE, "{name}: {prediction}");
        let difference = figure(&prediction[name], "difference");
        assert!((difference - (predicted / measured - 1.0)).abs() < 1e-9, "{prediction}");
    }
    assert!(
        figure(&prediction["layer_micros"], "measured") > 4000.0,
        "two milliseconds each way: {prediction}"
    );
    // The link is most of a layer: a third of the work less is little, and a wire instead is much.
    assert!(gain(&prediction, "one more worker").abs() < 0.15, "{prediction}");
    assert!(gain(&prediction, "wired links") > 0.15, "{prediction}");
    assert_eq!(room.workers.len(), 3);
}

#[tokio::test]
async fn one_more_worker_helps_by_prediction_where_it_helps() {
    // An answer takes as long as its bytes: with two workers a link carries half of them.
    let slow = Weather { bytes_per_second: Some(140_000), ..Weather::default() };
    let link = Link::Shaped { up: slow, down: Weather::default() };
    let [one, two] = [Room::new(1, link).await, Room::new(2, link).await];
    let (alone, together) = (one.prediction().await, two.prediction().await);
    let rate = |prediction: &Value| figure(&prediction["tokens_per_second"], "measured");
    let (predicted, measured) = (gain(&alone, "one more worker"), rate(&together) / rate(&alone) - 1.0);
    assert!(
        predicted > 0.05 && measured > 0.05,
        "{predicted:+.2} predicted, {measured:+.2} measured: {alone}, {together}"
    );
}

#[tokio::test]
async fn where_too_little_is_measured_there_is_a_reason_and_no_number() {
    let hub = Hub::start(&[]).unwrap();
    let alone = hub.status().await.unwrap()["prediction"].clone();
    assert_eq!(alone, json!({ "reason": "No worker has joined: the hub computes alone." }));
    let _worker = Moex::under_test().worker("one", &hub.join_url, &[]).unwrap();
    hub.wait_for_workers(1).await.unwrap();
    let early = hub.status().await.unwrap()["prediction"].clone();
    assert!(early["reason"].as_str().unwrap().starts_with("Too little is measured"), "{early}");
    assert_eq!(early.as_object().unwrap().len(), 1, "{early}");
}
