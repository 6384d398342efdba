//! Completions, what a text becomes, and what the hub says of itself to programs.

use super::*;

impl TestHub {
    async fn ask(&self, path: &str, body: &Value) -> Response {
        self.request(Method::POST, path).json(body).send().await.unwrap()
    }

    async fn answer(&self, path: &str, body: &Value) -> Value {
        let response = self.ask(path, body).await;
        let status = response.status();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_of_a_rendered_prompt_is_the_chats_answer() {
    let hub = TestHub::start().await;
    let chat = hub.complete(&ask(STORY)).await;
    let prompt = hub.answer("/apply-template", &ask(STORY)).await["prompt"].clone();
    let ids = hub.answer("/tokenize", &json!({"content": prompt})).await["tokens"].clone();
    assert_eq!(ids.as_array().unwrap().len() as u64, chat["usage"]["prompt_tokens"].as_u64().unwrap());
    assert_eq!(hub.answer("/detokenize", &json!({"tokens": ids})).await["content"], prompt);
    for prompt in [prompt.clone(), ids.clone(), json!([prompt]), json!([ids])] {
        let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 200});
        let answer = hub.answer("/v1/completions", &body).await;
        assert_eq!(answer["object"], "text_completion");
        assert_eq!(answer["choices"][0]["text"], content(&chat));
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert_eq!(answer["usage"]["completion_tokens"], chat["usage"]["completion_tokens"]);
    }
    let pieces = hub.answer("/tokenize", &json!({"content": "49 + 34", "with_pieces": true})).await;
    let joined: String =
        pieces["tokens"].as_array().unwrap().iter().map(|t| t["piece"].as_str().unwrap()).collect();
    assert_eq!(joined, "49 + 34");
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_prompts_and_texts_are_echoed_told_and_streamed_alike() {
    let hub = TestHub::start().await;
    let body = json!({
        "prompt": ["Once there was", "A bear named"], "n": 2, "temperature": 1, "seed": 5, "logprobs": 2,
    });
    let answer = hub.answer("/v1/completions", &body).await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    assert!(
        (4..=64).contains(&answer["usage"]["completion_tokens"].as_u64().unwrap()),
        "16 tokens each at most"
    );
    for choice in choices {
        let told = &choice["logprobs"];
        let tokens: Vec<&str> =
            told["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
        assert!(tokens.concat().starts_with(choice["text"].as_str().unwrap()), "{choice}");
        assert_eq!(told["text_offset"][0], 0);
        assert_eq!(told["text_offset"][1], tokens[0].chars().count());
        assert!(told["top_logprobs"][0].as_object().unwrap().len() >= 2);
    }
    let response = hub.ask("/v1/completions", &with(body.clone(), &json!({"stream": true}))).await;
    let text = response.text().await.unwrap();
    let mut streamed = vec![(String::new(), Vec::new()); 4];
    for event in
        text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|event| *event != "[DONE]")
    {
        let chunk: Value = serde_json::from_str(event).unwrap();
        let choice = &chunk["choices"][0];
        let (text, told) = &mut streamed[usize::try_from(choice["index"].as_u64().unwrap()).unwrap()];
        text.push_str(choice["text"].as_str().unwrap());
        told.extend(choice["logprobs"]["token_logprobs"].as_array().into_iter().flatten().cloned());
    }
    for (choice, (text, told)) in choices.iter().zip(&streamed) {
        assert_eq!((&choice["text"], &choice["logprobs"]["token_logprobs"]), (&json!(text), &json!(told)));
    }
    let echo = json!({"prompt": "Once there was", "echo": true, "temperature": 0, "max_tokens": 3});
    let echoed = hub.answer("/v1/completions", &echo).await["choices"][0]["text"].clone();
    assert!(echoed.as_str().unwrap().starts_with("Once there was"), "{echoed}");
    let stop = json!({"prompt": "Once there was", "temperature": 0, "stop": "e", "max_tokens": 50});
    assert_eq!(hub.answer("/v1/completions", &stop).await["choices"][0]["finish_reason"], "stop");
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_done_is_said_in_openais_shape() {
    let hub = TestHub::start().await;
    assert_error(hub.ask("/v1/embeddings", &json!({"input": "a"})).await, 501, "not_supported").await;
    for (path, body, code) in [
        ("/v1/completions", json!({"prompt": "a", "suffix": "b"}), "unsupported_parameter"),
        ("/v1/completions", json!({"prompt": [4_000_000]}), "invalid_value"),
        ("/v1/completions", json!({"prompt": "word ".repeat(5000)}), "context_length_exceeded"),
        ("/tokenize", json!({}), "invalid_value"),
        ("/detokenize", json!({"tokens": [4_000_000]}), "invalid_value"),
        ("/detokenize", json!({"tokens": "a"}), "invalid_value"),
        ("/apply-template", json!({"messages": []}), "invalid_value"),
    ] {
        assert_error(hub.ask(path, &body).await, 400, code).await;
    }
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn props_slots_and_metrics_tell_what_the_engine_did() {
    let hub = TestHub::start().await;
    let props: Value = hub.get("/props").await.json().await.unwrap();
    assert_eq!(
        (&props["model_alias"], &props["default_generation_settings"]["n_ctx"]),
        (&json!("moex-demo"), &json!(2048))
    );
    assert!(props["chat_template"].as_str().unwrap().contains("messages"));
    let slots: Value = hub.get("/slots").await.json().await.unwrap();
    assert_eq!(slots.as_array().unwrap().len() as u64, props["total_slots"].as_u64().unwrap());
    assert!(slots.as_array().unwrap().iter().all(|slot| slot["is_processing"] == false));

    let answers = [hub.complete(&ask("49 + 34 = ?")).await, hub.complete(&ask(STORY)).await];
    let sum = |field: &str| -> u64 { answers.iter().map(|a| a["usage"][field].as_u64().unwrap()).sum() };
    let metrics = hub.get("/metrics").await.text().await.unwrap();
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    };
    assert_eq!(value("vllm:prompt_tokens_total"), sum("prompt_tokens") as f64);
    assert_eq!(value("vllm:generation_tokens_total"), sum("completion_tokens") as f64);
    assert_eq!((value("vllm:num_requests_running"), value("vllm:num_requests_waiting")), (0.0, 0.0));
    assert_eq!(value("vllm:kv_cache_usage_perc"), 0.0);
    assert_eq!(value("vllm:time_to_first_token_seconds_count"), 2.0);
    assert_eq!(value("vllm:time_to_first_token_seconds_bucket{le=\"+Inf\"}"), 2.0);
    assert!(value("vllm:inter_token_latency_seconds_count") > 10.0);
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_an_allowed_site_may_use_the_api_and_nothing_else() {
    let hub =
        TestHub::with(|config| config.cors_origins.0 = vec!["https://chat.example".parse().unwrap()]).await;
    let from = |origin: &'static str, method: Method, path: &str| {
        hub.request(method, path).header(header::ORIGIN, origin)
    };
    let asked = from("https://chat.example", Method::OPTIONS, "/v1/chat/completions")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization, content-type")
        .send()
        .await
        .unwrap();
    assert_eq!(asked.status(), 204);
    assert_eq!(asked.headers()["access-control-allow-headers"], "authorization, content-type");
    let short = with(ask("Hi"), &json!({"max_tokens": 1}));
    let answer = from("https://chat.example", Method::POST, "/v1/chat/completions").json(&short).send();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["access-control-allow-origin"], "https://chat.example");
    let other = from("https://evil.example", Method::POST, "/v1/chat/completions").json(&short).send();
    assert_error(other.await.unwrap(), 403, "forbidden").await;
    for path in ["/api/join", "/api/swarm", "/"] {
        let response = from("https://chat.example", Method::GET, path).send().await.unwrap();
        assert!(!response.headers().contains_key("access-control-allow-origin"), "{path}");
    }
    hub.stop().await;
}
