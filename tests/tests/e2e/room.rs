//! A room of people at one hub: common parts of their chats are computed once, and no text depends on that.

use std::time::Duration;

use futures_util::future::try_join_all;
use moex_tests::chat;
use moex_tests::hub::{Hub, Moex};
use moex_tests::proxy::{Link, Proxy, Weather};
use serde_json::{Value, json};

const SYSTEM: &str = "You are a patient teacher of arithmetic. You answer in one short sentence, you never make fun of \
                      anybody, and you say so when you do not know. You like bears, hills, lamps and warm coats.";

async fn ask(hub: &Hub, messages: &Value, prediction: Option<&str>) -> anyhow::Result<Value> {
    let mut body = json!({
        "messages": messages, "temperature": 0, "max_tokens": 24, "ignore_eos": true,
        "chat_template_kwargs": {"enable_thinking": false},
    });
    if let Some(prediction) = prediction {
        body["prediction"] = json!({"type": "content", "content": prediction});
    }
    let url = format!("{}/v1/chat/completions", hub.url);
    Ok(chat::client()?.post(url).json(&body).send().await?.error_for_status()?.json().await?)
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

async fn counted(hub: &Hub) -> u64 {
    let metrics = chat::client().unwrap().get(format!("{}/metrics", hub.url)).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix("moex_engine_cached_tokens_total "));
    line.expect("the metric is there").parse().unwrap()
}

#[tokio::test]
async fn a_second_turn_and_a_common_system_prompt_are_computed_once() {
    let hub = Hub::start(&[]).unwrap();
    let question = |n: u32| json!([{"role": "system", "content": SYSTEM}, {"role": "user", "content": format!("{n} + 34 = ?")}]);
    let questions: Vec<Value> = (0..16).map(question).collect();
    let together = try_join_all(questions.iter().map(|messages| ask(&hub, messages, None))).await.unwrap();
    let fresh = together.iter().filter(|answer| cached(answer) == 0).count();
    assert_eq!(fresh, 1, "the first computes the system prompt, the others take it up");

    let mut turns = questions[3].as_array().unwrap().clone();
    turns.push(json!({"role": "assistant", "content": content(&together[3])}));
    turns.push(json!({"role": "user", "content": "And 2 more?"}));
    let second = ask(&hub, &json!(turns), None).await.unwrap();
    let first_prompt = together[3]["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(cached(&second) + 8 > first_prompt, "{second}: the first turn had {first_prompt} tokens");

    let told: u64 = together.iter().chain([&second]).map(cached).sum();
    assert_eq!(counted(&hub).await, told, "the API tells what the engine counts");
    for (n, answer) in together.iter().enumerate().step_by(5) {
        let alone = ask(&Hub::start(&[]).unwrap(), &questions[n], None).await.unwrap();
        assert_eq!((content(answer), cached(&alone)), (content(&alone), 0), "question {n}");
    }
}

#[tokio::test]
async fn groups_in_flight_and_guesses_change_no_text_behind_a_slow_link() {
    let plain = Hub::start(&["--no-guesses", "--in-flight", "1"]).unwrap();
    let hub = Hub::start(&["--no-hub-compute", "--in-flight", "3", "--max-rows", "16"]).unwrap();
    let half = Weather { delay: Duration::from_millis(1), ..Weather::default() };
    let mut workers = Vec::new();
    for name in ["one", "two"] {
        let proxy =
            Proxy::start(hub.address().unwrap(), Link::Shaped { up: half, down: half }).await.unwrap();
        let join_url = hub.join_url_by(proxy.address).unwrap();
        workers.push((Moex::under_test().worker(name, &join_url, &[]).unwrap(), proxy));
    }
    hub.wait_for_workers(2).await.unwrap();
    let stories = ["Tell me a story about a bear.", "Copy: 21, 22, 23, 24, 25, 26, 27, 28", "49 + 34 = ?"];
    let asked: Vec<Value> = stories.iter().map(|story| json!([{"role": "user", "content": story}])).collect();
    let expected = try_join_all(asked.iter().map(|messages| ask(&plain, messages, None))).await.unwrap();
    let predictions: Vec<String> =
        expected.iter().map(|answer| content(answer).replacen("bear", "bird", 1)).collect();
    for _ in 0..3 {
        let each = asked.iter().zip(&predictions).map(|(messages, told)| ask(&hub, messages, Some(told)));
        let answers = try_join_all(each).await.unwrap();
        let texts = |answers: &[Value]| answers.iter().map(|a| content(a).to_owned()).collect::<Vec<_>>();
        assert_eq!(texts(&answers), texts(&expected));
    }
}
