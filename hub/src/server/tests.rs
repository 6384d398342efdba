//! The API over real sockets: a hub of the demo model on port 0, computing its experts itself.

mod choices;
mod completions;
mod formats;
mod joining;
mod other_shapes;
mod reach;

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, header};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Hub, HubConfig, Listener, PlainPort, Server, Surface, run};
use crate::api::MAX_BODY_BYTES;

const STORY: &str = "Tell me a story about a bear.";
const TOKEN: &str = "join-token";

struct TestHub {
    url: String,
    http: Client,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
    _shards: tempfile::TempDir,
}

impl TestHub {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut HubConfig)) -> Self {
        let shards = tempfile::tempdir().unwrap();
        let folder = Some(shards.path().to_owned());
        let mut config = HubConfig { token: TOKEN.to_owned(), shards: folder, ..HubConfig::default() };
        change(&mut config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let hub = Hub::open(config, |_, _| {}).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving =
            tokio::spawn(run(vec![Listener::plain(listener)], hub, async move { drop(stopped.await) }));
        moex_worker::native::install_crypto();
        Self { url, http: Client::new(), stop, serving, _shards: shards }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    async fn post(&self, body: &Value) -> Response {
        self.request(Method::POST, "/v1/chat/completions").json(body).send().await.unwrap()
    }

    /// A request that must be answered.
    async fn complete(&self, body: &Value) -> Value {
        let response = self.post(body).await;
        let status = response.status();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// The chunks of a streamed answer.
    async fn stream(&self, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let response = self.post(&body).await;
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        let text = response.text().await.unwrap();
        let mut events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.serving.await.unwrap().unwrap();
    }
}

/// A greedy question.
fn ask(prompt: &str) -> Value {
    json!({
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": false},
    })
}

fn with(mut body: Value, extra: &Value) -> Value {
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

async fn assert_error(response: Response, status: u16, code: &str) -> String {
    let found = response.status();
    let body: Value = response.json().await.unwrap();
    assert_eq!((found.as_u16(), body["error"]["code"].as_str()), (status, Some(code)), "{body}");
    for field in ["message", "type"] {
        assert!(body["error"][field].is_string(), "{body}");
    }
    body["error"]["message"].as_str().unwrap().to_owned()
}

/// An answer's tokens, without those that depend on what was asked before: cached and guessed ones.
fn counts(answer: &Value) -> [Value; 4] {
    let usage = &answer["usage"];
    let reasoning = &usage["completion_tokens_details"]["reasoning_tokens"];
    [&usage["prompt_tokens"], &usage["completion_tokens"], &usage["total_tokens"], reasoning]
        .map(Value::clone)
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_with_usage_and_openais_shape() {
    let hub = TestHub::start().await;
    let answer = hub.complete(&ask("49 + 34 = ?")).await;
    assert_eq!(content(&answer), "83");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "moex-demo");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    // As transformers counts them: 25 for the prompt; "8", "3" and the end token.
    assert_eq!(
        answer["usage"],
        json!({
            "prompt_tokens": 25, "completion_tokens": 3, "total_tokens": 28,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
            },
        })
    );
    assert_eq!((&answer["timings"]["prompt_n"], &answer["timings"]["predicted_n"]), (&json!(25), &json!(3)));
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_and_a_whole_answer_are_the_same() {
    let hub = TestHub::start().await;
    let thinking = json!({"messages": [{"role": "user", "content": "509 + 798 = ?"}], "temperature": 0});
    for body in [ask(STORY), thinking] {
        let whole = hub.complete(&body).await;
        let chunks = hub.stream(&body).await;
        let joined = |field: &str| -> String {
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect()
        };
        let message = &whole["choices"][0]["message"];
        assert_eq!(joined("content"), message["content"].as_str().unwrap());
        assert_eq!(joined("reasoning_content"), message["reasoning_content"].as_str().unwrap_or_default());
        assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
        let [.., last, usage] = chunks.as_slice() else { panic!("an ending and a usage chunk") };
        assert_eq!(last["choices"][0]["finish_reason"], "stop");
        assert_eq!((&usage["choices"], counts(usage)), (&json!([]), counts(&whole)));
        assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
        let timings = &usage["timings"];
        assert_eq!(timings["predicted_n"], whole["timings"]["predicted_n"]);
        let [n, millis, rate] = ["predicted_n", "predicted_ms", "predicted_per_second"]
            .map(|name| timings[name].as_f64().unwrap());
        assert!((rate - (n - 1.0) * 1e3 / millis).abs() < 1e-6 * rate, "{timings}");
    }
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_comes_apart_from_the_answer() {
    let hub = TestHub::start().await;
    let body = json!({"messages": [{"role": "user", "content": "509 + 798 = ?"}], "temperature": 0});
    let message = hub.complete(&body).await["choices"][0]["message"].clone();
    assert_eq!(message["content"], "1307");
    assert_eq!(
        message["reasoning_content"],
        "ones: 9 + 8 = 17\ntens: 0 + 9 + 1 = 10\nhundreds: 5 + 7 + 1 = 13\ncarry 1"
    );
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_called_and_their_answers_read() {
    let hub = TestHub::start().await;
    let tools = json!([{"type": "function", "function": {
        "name": "get_weather", "description": "Get weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }}]);
    let body = with(ask("What is the weather in Dublin?"), &json!({"tools": tools}));
    let choice = hub.complete(&body).await["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "get_weather", "arguments": "{\"city\": \"Dublin\"}"}));
    let streamed = hub.stream(&body).await;
    let calls: Vec<_> = streamed.iter().filter_map(|c| c["choices"][0]["delta"].get("tool_calls")).collect();
    assert_eq!(calls.len(), 1);
    assert_eq!((&calls[0][0]["index"], &calls[0][0]["function"]), (&json!(0), &call["function"]));

    let mut history = body.clone();
    let turns = history["messages"].as_array_mut().unwrap();
    turns.push(choice["message"].clone());
    turns.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "rain"}));
    assert_eq!(hub.complete(&history).await["choices"][0]["finish_reason"], "stop");
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn max_tokens_and_stop_end_an_answer() {
    let hub = TestHub::start().await;
    let whole = hub.complete(&ask(STORY)).await;
    for field in ["max_tokens", "max_completion_tokens"] {
        let cut = hub.complete(&with(ask(STORY), &json!({field: 5}))).await;
        assert_eq!(cut["choices"][0]["finish_reason"], "length");
        assert_eq!(cut["usage"]["completion_tokens"], 5);
        assert!(content(&whole).starts_with(content(&cut)));
    }
    for stop in [json!("near"), json!(["nowhere", "near"])] {
        let stopped = hub.complete(&with(ask(STORY), &json!({"stop": stop}))).await;
        assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
        assert_eq!(content(&stopped), content(&whole).split("near").next().unwrap());
    }
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_repeats_a_text() {
    let hub = TestHub::start().await;
    let body = |seed: i64| {
        let hot = json!({"temperature": 1.5, "top_p": 1, "top_k": 0, "seed": seed, "max_tokens": 40});
        with(ask(STORY), &hot)
    };
    let first = hub.complete(&body(1)).await;
    assert_eq!(content(&first), content(&hub.complete(&body(1)).await));
    assert_ne!(content(&first), content(&hub.complete(&body(2)).await));
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_one_sentence() {
    let hub = TestHub::start().await;
    let raw = |body: &'static str| hub.request(Method::POST, "/v1/chat/completions").body(body).send();
    let said = assert_error(raw("{\"messages\": [}").await.unwrap(), 400, "invalid_json").await;
    assert!(said.contains("line 1 column 15"), "{said}");
    assert_error(raw("").await.unwrap(), 400, "invalid_json").await;
    assert_error(hub.post(&json!({})).await, 400, "invalid_value").await;
    assert_error(hub.post(&with(ask("Hi"), &json!({"temperature": "hot"}))).await, 400, "invalid_value")
        .await;
    assert_error(
        hub.post(&with(ask("Hi"), &json!({"bad_words": ["no"]}))).await,
        400,
        "unsupported_parameter",
    )
    .await;
    let long = "word ".repeat(5000);
    let said = assert_error(hub.post(&ask(&long)).await, 400, "context_length_exceeded").await;
    assert!(said.contains("2048"), "{said}");
    let huge = ask(&"x".repeat(MAX_BODY_BYTES));
    assert_error(hub.post(&huge).await, 413, "body_too_large").await;
    assert_error(hub.get("/v1/nothing").await, 404, "unknown_url").await;
    assert_error(hub.get("/assets/nothing.js").await, 404, "unknown_url").await;
    assert_error(hub.get("/v1/chat/completions").await, 405, "method_not_allowed").await;
    // And it still answers.
    assert_eq!(content(&hub.complete(&ask("49 + 34 = ?")).await), "83");
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_asked_for_by_its_name_or_as_default() {
    let hub = TestHub::start().await;
    let models: Value = hub.get("/v1/models").await.json().await.unwrap();
    let name = models["data"][0]["id"].as_str().unwrap();
    assert_eq!(name, "moex-demo");
    assert_eq!(models["data"][0]["context_length"], 2048);
    for model in [name, "default"] {
        hub.complete(&with(ask("Hi"), &json!({"model": model, "max_tokens": 1}))).await;
    }
    let said =
        assert_error(hub.post(&with(ask("Hi"), &json!({"model": "gpt-4o"}))).await, 404, "model_not_found")
            .await;
    assert!(said.contains("gpt-4o") && said.contains(name), "{said}");
    assert_eq!(hub.get("/v1/models/moex-demo").await.status(), 200);
    assert_error(hub.get("/v1/models/other").await, 404, "model_not_found").await;
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_key_guards_everything_but_health_and_pages() {
    let hub = TestHub::with(|config| config.api_key = Some("key".to_owned())).await;
    assert_error(hub.post(&ask("Hi")).await, 401, "invalid_api_key").await;
    for path in ["/v1/models", "/api/swarm", "/api/swarm/experts", "/api/join", "/metrics"] {
        assert_error(hub.get(path).await, 401, "invalid_api_key").await;
        let shown = |key: &'static str| hub.request(Method::GET, path).bearer_auth(key).send();
        assert_error(shown("kez").await.unwrap(), 401, "invalid_api_key").await;
        assert_eq!(shown("key").await.unwrap().status(), 200);
    }
    for path in ["/health", "/", "/swarm", "/assets/base.css"] {
        assert_eq!(hub.get(path).await.status(), 200, "{path}");
    }
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_errors_carry_the_security_headers() {
    let hub = TestHub::start().await;
    for path in ["/", "/swarm", "/nothing"] {
        let headers = hub.get(path).await.headers().clone();
        assert_eq!(headers["cross-origin-opener-policy"], "same-origin", "{path}");
        assert_eq!(headers["cross-origin-embedder-policy"], "require-corp", "{path}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        assert!(
            headers["content-security-policy"].to_str().unwrap().contains("default-src 'self'"),
            "{path}"
        );
        assert!(!headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN), "{path}");
    }
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_sites_page_gets_nothing() {
    let hub = TestHub::start().await;
    let rebound =
        hub.request(Method::GET, "/api/swarm").header(header::HOST, "evil.example").send().await.unwrap();
    assert_error(rebound, 403, "forbidden").await;
    let posted = hub
        .request(Method::POST, "/v1/chat/completions")
        .header(header::ORIGIN, "http://evil.example")
        .json(&ask("Hi"))
        .send()
        .await
        .unwrap();
    assert_error(posted, 403, "forbidden").await;
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_workers_a_hub_that_may_not_compute_says_so() {
    let without = |config: &mut HubConfig| {
        config.hub_compute = false;
        config.verify = moex_swarm::Verify::Audit;
    };
    let hub = TestHub::with(without).await;
    let health = hub.get("/health").await;
    assert_eq!(health.status(), StatusCode::SERVICE_UNAVAILABLE);
    let health: Value = health.json().await.unwrap();
    assert_eq!(health["coverage"], json!({"blocks": 64, "covered": 0, "replicas": 2}));
    let refused = hub.post(&ask("Hi")).await;
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    assert_error(refused, 503, "experts_missing").await;
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_swarm_tell_what_is_served_and_who_computes() {
    let hub = TestHub::start().await;
    let health: Value = hub.get("/health").await.json().await.unwrap();
    assert_eq!(
        (&health["status"], &health["model"], &health["workers"]),
        (&json!("ok"), &json!("moex-demo"), &json!(0))
    );
    hub.complete(&ask("49 + 34 = ?")).await;
    let swarm: Value = hub.get("/api/swarm").await.json().await.unwrap();
    assert_eq!(swarm["workers"], json!([]));
    assert_eq!(swarm["model"]["n_experts"], 16);
    assert!(swarm["hub"]["rows"].as_u64().unwrap() > 0, "{swarm}");
    let engine = |name: &str| swarm["engine"][name].as_u64().unwrap();
    assert!(engine("tokens") > 0 && engine("rows") > engine("tokens"), "{swarm}");
    assert!((1..swarm["at_micros"].as_u64().unwrap()).contains(&engine("step_micros")), "{swarm}");
    let experts: Value = hub.get("/api/swarm/experts").await.json().await.unwrap();
    let layers = experts["layers"].as_array().unwrap();
    assert_eq!((layers.len(), layers[0]["load"].as_array().unwrap().len()), (4, 16), "{experts}");
    let load = layers.iter().flat_map(|layer| layer["load"].as_array().unwrap()).filter_map(Value::as_u64);
    assert!(load.sum::<u64>() > 0, "{experts}");
    let metrics = hub.get("/metrics").await;
    assert_eq!(metrics.headers()[header::CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    let rows = swarm["hub"]["rows"].to_string();
    assert!(metrics.text().await.unwrap().contains(&format!("\nmoex_hub_rows_total {rows}\n")));
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_lets_an_answer_end() {
    let hub = TestHub::start().await;
    let body = with(ask(STORY), &json!({"stream": true}));
    let streaming = hub.post(&body).await;
    let TestHub { stop, serving, _shards, .. } = hub;
    stop.send(()).unwrap();
    let text = streaming.text().await.unwrap();
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
    let begun = Instant::now();
    serving.await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "nothing is left to wait for");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_ends_its_request() {
    let hub = TestHub::start().await;
    // Rewarded for repeating itself, the model does not come to an end before the context does.
    let endless = with(ask(STORY), &json!({"frequency_penalty": -2, "n": 2}));
    let rows = async || -> u64 {
        let swarm: Value = hub.get("/api/swarm").await.json().await.unwrap();
        swarm["hub"]["rows"].as_u64().unwrap()
    };
    for stream in [true, false] {
        let before = rows().await;
        let posted = tokio::spawn(
            hub.request(Method::POST, "/v1/chat/completions")
                .json(&with(endless.clone(), &json!({"stream": stream})))
                .send(),
        );
        while rows().await < before + 500 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // A whole answer is still awaited, a streamed one has begun: both are dropped here.
        posted.abort();
        drop(posted.await);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let seen = rows().await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            if rows().await == seen {
                break;
            }
            assert!(Instant::now() < deadline, "the engine goes on for nobody");
        }
        // 4 layers of 4 experts for each of 2048 positions would have been many more.
        assert!(rows().await < before + 16 * 1500, "the request ran to its end");
    }
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_said_with_a_time_to_come_back() {
    let hub = TestHub::start().await;
    let endless = with(ask(STORY), &json!({"frequency_penalty": -2}));
    // More than may run and wait together; those that may are not answered while this test looks.
    let mut asked: FuturesUnordered<_> = (0..200).map(|_| hub.post(&endless)).collect();
    let refused = asked.next().await.unwrap();
    assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
    assert_error(refused, 429, "queue_full").await;
    drop(asked);
    hub.stop().await;
}
