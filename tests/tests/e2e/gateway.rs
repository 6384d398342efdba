//! Two hubs behind smg, a gateway that knows nothing of moex: a conversation stays with the hub that has it cached. If
//! its hub is killed, it continues at the other one where it stopped.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use moex_tests::chat;
use moex_tests::hub::{Hub, Moex, PATIENCE, Worker};
use moex_tests::proxy::{Link, Proxy, Weather};
use serde_json::{Value, json};

/// The script's exit code if the gateway is not available.
const NOT_THERE: i32 = 3;
/// Times that it is started at most: its ports may be taken in between, and it has died of a signal while it started.
const MAX_STARTS: usize = 3;

/// A running gateway, ended when dropped.
struct Gateway {
    child: Child,
    url: String,
}

impl Gateway {
    /// Starts it before these hubs and waits until it knows all of them; `None`, with the reason on stderr, if it is
    /// not available.
    async fn before(hubs: &[&Hub]) -> Option<Self> {
        for _ in 0..MAX_STARTS {
            match Self::start(hubs).await {
                Ok(gateway) => return Some(gateway),
                Err((Some(NOT_THERE), said)) => {
                    eprintln!("{said}");
                    return None;
                }
                Err((code, said)) => {
                    eprintln!("the gateway ended before it served, exit code {code:?}: {said}");
                }
            }
        }
        panic!("the gateway does not start");
    }

    /// Its exit code, `None` if a signal ended it, and its stderr, if it ends before it knows all hubs.
    async fn start(hubs: &[&Hub]) -> Result<Self, (Option<i32>, String)> {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (port, metrics_port) = (free(), free());
        let mut command = Command::new(moex_tests::root().join("tests/clients/smg.sh"));
        command.args([port, metrics_port].map(|port| port.to_string())).args(hubs.iter().map(|hub| &hub.url));
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut gateway = Self { child, url: format!("http://127.0.0.1:{port}") };
        let begun = Instant::now();
        while gateway.n_hubs().await != Some(hubs.len()) {
            if let Some(status) = gateway.child.try_wait().unwrap() {
                let mut said = String::new();
                gateway.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                return Err((status.code(), said));
            }
            assert!(begun.elapsed() < PATIENCE, "the gateway does not find the hubs");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(gateway)
    }

    async fn n_hubs(&self) -> Option<usize> {
        let answer = chat::client().unwrap().get(format!("{}/workers", self.url)).send().await.ok()?;
        let told: Value = answer.json().await.ok()?;
        Some(told["workers"].as_array()?.iter().filter(|worker| worker["is_healthy"] == true).count())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn body(messages: &Value) -> Value {
    json!({
        "model": "moex-demo", "messages": messages, "temperature": 0, "max_tokens": 200,
        "chat_template_kwargs": {"enable_thinking": false},
    })
}

async fn ask(url: &str, body: &Value) -> anyhow::Result<Value> {
    let asked = chat::client()?.post(format!("{url}/v1/chat/completions")).json(body);
    Ok(asked.send().await?.error_for_status()?.json().await?)
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

async fn metric(hub: &Hub, name: &str) -> f64 {
    let text = chat::client().unwrap().get(format!("{}/metrics", hub.url)).send().await.unwrap();
    let text = text.text().await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.expect("the metric is there").parse().unwrap()
}

#[tokio::test]
async fn a_second_turn_reaches_the_hub_that_has_the_first() {
    let hubs = [Hub::start(&[]).unwrap(), Hub::start(&[]).unwrap()];
    let Some(gateway) = Gateway::before(&hubs.each_ref()).await else { return };
    let names = ["Ada", "Ben", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hal"];
    let topics = ["a bear", "the sea", "two lamps", "winter coats", "a long hill"];
    let first = |n: usize| {
        let (name, topic) = (names[n % names.len()], topics[n % topics.len()]);
        json!([{"role": "user", "content": format!("{name} number {n} asks: tell me a story about {topic}.")}])
    };
    // Eight people at a time, so that both hubs have work.
    let (mut n_cached, mut n_turns) = (0, 0);
    for group in 0..5 {
        let asked = (8 * group..8 * group + 8).map(async |n| {
            let mut turns = first(n);
            let told = ask(&gateway.url, &body(&turns)).await?;
            let messages = turns.as_array_mut().unwrap();
            messages.push(json!({"role": "assistant", "content": content(&told)}));
            messages.push(json!({"role": "user", "content": "And 2 more?"}));
            let second = ask(&gateway.url, &body(&turns)).await?;
            let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
            // Up to the point where the template treats an earlier answer differently from one to be written.
            anyhow::Ok(cached + 8 > told["usage"]["prompt_tokens"].as_u64().unwrap())
        });
        for is_cached in try_join_all(asked).await.unwrap() {
            n_cached += usize::from(is_cached);
            n_turns += 1;
        }
    }
    println!("{n_cached} of {n_turns} second turns found the first in the hub's cache");
    assert!(10 * n_cached >= 9 * n_turns, "{n_cached} of {n_turns}");
    for hub in &hubs {
        assert!(metric(hub, "moex_engine_tokens_total").await > 0.0, "a hub was never asked");
    }
}

/// A hub whose only worker is far away: a token takes some tens of milliseconds.
async fn slow_hub() -> (Hub, Proxy, Worker) {
    let moex = Moex::under_test();
    let hub = moex.hub(&["--no-hub-compute", "--check-every", "0"]).unwrap();
    let proxy = Proxy::start(hub.address().unwrap(), Link::Open).await.unwrap();
    let worker = moex.worker("worker", &hub.join_url_by(proxy.address).unwrap(), &[]).unwrap();
    hub.wait_for_workers(1).await.unwrap();
    let half = Weather { delay: Duration::from_millis(4), ..Weather::default() };
    proxy.set(Link::Shaped { up: half, down: half });
    (hub, proxy, worker)
}

#[tokio::test]
async fn a_stream_whose_hub_is_killed_goes_on_at_the_other_where_it_stopped() {
    let (first, second) = (slow_hub().await, slow_hub().await);
    let Some(gateway) = Gateway::before(&[&first.0, &second.0]).await else { return };
    let mut turns = json!([{"role": "user", "content": "Tell me a story about a bear."}]);
    let unbroken = ask(&first.0.url, &body(&turns)).await.unwrap();
    let unbroken = content(&unbroken).to_owned();

    let mut asked = body(&turns);
    asked["stream"] = json!(true);
    let url = format!("{}/v1/chat/completions", gateway.url);
    let mut stream = chat::client().unwrap().post(url).json(&asked).send().await.unwrap();
    let mut said = String::new();
    while said.matches("data: ").count() < 12 {
        said.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
    }
    let running = join_all([&first, &second].map(|(hub, ..)| metric(hub, "vllm:num_requests_running"))).await;
    let (serving, _other) = if running[0] > 0.0 { (first, second) } else { (second, first) };
    assert!(running.contains(&1.0) && running.contains(&0.0), "{running:?}");
    drop(serving); // As kill -9 does.
    while let Ok(Some(piece)) = stream.chunk().await {
        said.push_str(&String::from_utf8_lossy(&piece));
    }
    let pieces = said.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
    let pieces: Vec<Value> = pieces.collect();
    // The gateway's reaction to a connection that ends in the middle.
    assert!(pieces.last().unwrap()["error"]["message"].is_string(), "it ends as if it were whole: {said}");
    let mut partial = String::new();
    for piece in &pieces {
        partial.push_str(piece["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
    }
    assert!(unbroken.starts_with(&partial) && !partial.is_empty() && partial != unbroken, "{partial:?}");

    turns.as_array_mut().unwrap().push(json!({"role": "assistant", "content": partial}));
    let mut rest = body(&turns);
    rest["continue_final_message"] = json!(true);
    rest["add_generation_prompt"] = json!(false);
    let rest = ask(&gateway.url, &rest).await.unwrap();
    assert_eq!(format!("{partial}{}", content(&rest)), unbroken);
}
