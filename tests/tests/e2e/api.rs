//! Fields of a request, through the built hub: which ones work, and which ones are refused by name.

use moex_tests::hub::Hub;
use moex_tests::tensors::Matrix;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::succeed;

struct Server {
    hub: Hub,
    http: reqwest::Client,
}

impl Server {
    fn start() -> Self {
        Self { hub: Hub::start(&[]).unwrap(), http: reqwest::Client::new() }
    }

    /// The status and body of a greedy answer of five tokens, with this field.
    async fn with(&self, name: &str, value: Value) -> (StatusCode, Value) {
        let mut body = json!({
            "messages": [{"role": "user", "content": "49 + 34 = ?"}],
            "chat_template_kwargs": {"enable_thinking": false}, "temperature": 0, "max_tokens": 5,
        });
        body[name] = value;
        let response =
            self.http.post(format!("{}/v1/chat/completions", self.hub.url)).json(&body).send().await.unwrap();
        (response.status(), response.json().await.unwrap())
    }
}

#[tokio::test]
async fn what_would_be_ignored_is_refused_by_its_name() {
    let asked = Server::start();
    for (name, value) in [
        ("functions", json!([{"name": "f"}])),
        ("reasoning_effort", json!("high")),
        ("bad_words", json!(["no"])),
        ("guided_json", json!({"type": "object"})),
        ("guided_regex", json!("a+")),
        ("guided_choice", json!(["a"])),
        ("guided_grammar", json!("root ::= \"a\"")),
        ("grammar", json!("root ::= \"a\"")),
        ("modalities", json!(["text", "audio"])),
    ] {
        let (status, body) = asked.with(name, value).await;
        assert_eq!((status.as_u16(), body["error"]["param"].as_str()), (400, Some(name)), "{body}");
        assert_eq!(body["error"]["type"], "invalid_request_error", "{body}");
        assert_eq!(body["error"]["code"], "unsupported_parameter", "{body}");
    }
    for (name, value) in [
        ("user", json!("somebody")),
        ("metadata", json!({"a": "b"})),
        ("store", json!(true)),
        ("logprobs", json!(false)),
        ("modalities", json!(["text"])),
    ] {
        let (status, body) = asked.with(name, value).await;
        assert_eq!(status, 200, "{name}: {body}");
    }
}

#[tokio::test]
async fn logit_bias_moves_tokens_and_its_own_mistakes_are_said() {
    let asked = Server::start();
    let (_, plain) = asked.with("logit_bias", json!({})).await;
    assert_eq!(plain["choices"][0]["message"]["content"], "83");
    // The bias is so large that no other token can follow.
    let (status, biased) = asked.with("logit_bias", json!({"40": 100})).await;
    assert_eq!(status, 200, "{biased}");
    let text = biased["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(biased["choices"][0]["finish_reason"], "length", "{biased}");
    let token = &text[..text.len() / 5];
    assert!(!token.is_empty() && text == token.repeat(5), "one token five times: {text:?}");
    for wrong in
        [json!({"4000000": 1}), json!({"40": 101}), json!({"40": "1"}), json!({"the": 1}), json!([40])]
    {
        let (status, body) = asked.with("logit_bias", wrong.clone()).await;
        assert_eq!(
            (status.as_u16(), body["error"]["param"].as_str()),
            (400, Some("logit_bias")),
            "{wrong}: {body}"
        );
    }
}

#[tokio::test]
async fn ignore_eos_goes_on_to_the_last_token_that_is_allowed() {
    let asked = Server::start();
    let (_, plain) = asked.with("ignore_eos", json!(false)).await;
    assert_eq!(
        (&plain["usage"]["completion_tokens"], &plain["choices"][0]["finish_reason"]),
        (&json!(3), &json!("stop"))
    );
    let (_, longer) = asked.with("ignore_eos", json!(true)).await;
    assert_eq!(
        (&longer["usage"]["completion_tokens"], &longer["choices"][0]["finish_reason"]),
        (&json!(5), &json!("length")),
        "{longer}"
    );
}

/// The log probabilities of an echoed prompt are the log-softmax of the logits that `moex logits` writes for its
/// tokens.
#[tokio::test]
async fn an_echoed_prompt_has_the_log_probabilities_of_moex_logits() {
    let hub = Hub::start(&["--activations", "f32"]).unwrap();
    let http = reqwest::Client::new();
    let prompts =
        [vec![1016_u32, 269, 258, 198, 473, 362, 257, 474, 492, 257, 728, 13, 1017], vec![198, 1016]];
    for max_tokens in [0, 3] {
        let body = json!({"prompt": prompts, "echo": true, "logprobs": 2, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true});
        let response = http.post(format!("{}/v1/completions", hub.url)).json(&body).send().await.unwrap();
        let answer: Value = response.json().await.unwrap();
        for (choice, ids) in answer["choices"].as_array().unwrap().iter().zip(&prompts) {
            let told = &choice["logprobs"];
            let list = |field: &str| told[field].as_array().unwrap().clone();
            assert_eq!(list("tokens").len(), ids.len() + max_tokens, "{choice}");
            assert_eq!((&list("token_logprobs")[0], &list("top_logprobs")[0]), (&Value::Null, &Value::Null));
            // Special tokens that follow are not part of the text.
            let echoed: String =
                list("tokens")[..ids.len()].iter().map(|token| token.as_str().unwrap()).collect();
            let text = choice["text"].as_str().unwrap();
            assert!(text.starts_with(&echoed) && (max_tokens > 0 || text == echoed), "{text:?}");
            assert_eq!(choice["finish_reason"], "length");
            let expected = log_softmax(ids);
            for (at, id) in ids.iter().enumerate().skip(1) {
                let row = &expected[at - 1];
                let said = list("token_logprobs")[at].as_f64().unwrap();
                assert!((said - row[*id as usize]).abs() < 1e-5, "{at}: {said} and {}", row[*id as usize]);
                let best = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let top = list("top_logprobs")[at].as_object().unwrap().clone();
                assert!((2..=3).contains(&top.len()), "{top:?}");
                let said =
                    top.values().map(|value| value.as_f64().unwrap()).fold(f64::NEG_INFINITY, f64::max);
                assert!((said - best).abs() < 1e-5, "{at}: {said} and {best}");
                let before: usize = list("text_offset")[at].as_u64().unwrap() as usize;
                let token = list("tokens")[at].as_str().unwrap().to_owned();
                let rest: String = text.chars().skip(before).collect();
                assert!(rest.starts_with(&token), "{token:?} at {before} of {text:?}");
            }
        }
        let n_prompt: usize = prompts.iter().map(Vec::len).sum();
        assert_eq!(answer["usage"]["prompt_tokens"], n_prompt);
        assert_eq!(answer["usage"]["completion_tokens"], 2 * max_tokens);
    }
}

#[tokio::test]
async fn a_stream_tells_of_the_echoed_prompt_first_and_too_many_are_refused() {
    let hub = Hub::start(&[]).unwrap();
    let http = reqwest::Client::new();
    let post = |body: Value| http.post(format!("{}/v1/completions", hub.url)).json(&body).send();
    let asked =
        json!({"prompt": "Once there was", "echo": true, "logprobs": 0, "max_tokens": 4, "temperature": 0});
    let whole: Value = post(asked.clone()).await.unwrap().json().await.unwrap();
    let mut streamed = asked;
    streamed["stream"] = json!(true);
    let events = post(streamed).await.unwrap().text().await.unwrap();
    let mut tokens = Vec::new();
    for chunk in events.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let chunk: Value = serde_json::from_str(&format!("{{{chunk}")).unwrap();
        tokens.extend(chunk["choices"][0]["logprobs"]["tokens"].as_array().cloned().unwrap_or_default());
    }
    assert_eq!(Value::from(tokens), whole["choices"][0]["logprobs"]["tokens"]);

    let many =
        json!({"prompt": vec![vec![5; 2000]; 32], "n": 2, "echo": true, "logprobs": 20, "max_tokens": 0});
    let refused = post(many).await.unwrap();
    assert_eq!(refused.status(), 400);
    assert_eq!(refused.json::<Value>().await.unwrap()["error"]["param"], "logprobs");
}

/// (T, V) of the demo model with experts as a hub packs them, from `moex logits`.
fn log_softmax(ids: &[u32]) -> Vec<Vec<f64>> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("logits.safetensors");
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    succeed(&["logits", "--experts", "int4", "--ids", &ids.join(","), "--out", file.to_str().unwrap()]);
    let logits = Matrix::read(&file, "logits").unwrap();
    let row = |row: &[f64]| {
        let log_sum = row.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        row.iter().map(|logit| logit - log_sum).collect()
    };
    logits.rows().map(row).collect()
}

/// Anthropic's API counts a prompt's cached tokens separately from the others.
#[tokio::test]
async fn a_message_that_is_asked_again_is_told_what_of_it_was_cached() {
    let hub = Hub::start(&[]).unwrap();
    let http = reqwest::Client::new();
    let text = "Tell me a story about a bear. ".repeat(8);
    let asked = json!({"max_tokens": 2, "temperature": 0, "messages": [{"role": "user", "content": text}]});
    let post = |path: &str| http.post(format!("{}/v1/messages{path}", hub.url)).json(&asked).send();
    let counted: Value = post("/count_tokens").await.unwrap().json().await.unwrap();
    let n_prompt = counted["input_tokens"].as_u64().unwrap();
    for n_cached in [0, n_prompt - 1] {
        let message: Value = post("").await.unwrap().json().await.unwrap();
        let usage = &message["usage"];
        assert_eq!(usage["cache_read_input_tokens"], n_cached, "{usage}");
        assert_eq!(usage["input_tokens"], n_prompt - n_cached, "{usage}");
        assert_eq!(usage["output_tokens"], 2, "{usage}");
    }
}
