//! Fields of a request, through the built hub: what is done, and what is refused by its name.

use moex_tests::hub::Hub;
use reqwest::StatusCode;
use serde_json::{Value, json};

struct Asked {
    hub: Hub,
    http: reqwest::Client,
}

impl Asked {
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
    let asked = Asked::start();
    for (name, value) in [
        ("functions", json!([{"name": "f"}])),
        ("reasoning_effort", json!("high")),
        ("min_tokens", json!(4)),
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
    let asked = Asked::start();
    let (_, plain) = asked.with("logit_bias", json!({})).await;
    assert_eq!(plain["choices"][0]["message"]["content"], "83");
    // So much is added that nothing else can come.
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
    let asked = Asked::start();
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
