//! Several choices, log probabilities, texts that go on, and what answers say of themselves.

use super::*;

fn joined(chunks: &[Value], index: usize, field: &str) -> String {
    let of = |chunk: &Value| -> String {
        let choices = chunk["choices"].as_array().into_iter().flatten();
        choices.filter(|c| c["index"] == index).filter_map(|c| c["delta"][field].as_str()).collect()
    };
    chunks.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_are_told_of_each_token_and_a_stream_tells_the_same() {
    let hub = TestHub::start().await;
    let body = with(ask("Count from 15 to 22."), &json!({"logprobs": true, "top_logprobs": 3}));
    let answer = hub.complete(&body).await;
    let told = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    // All but the one that ends the text.
    assert_eq!(told.len() as u64, answer["usage"]["completion_tokens"].as_u64().unwrap() - 1);
    let text: String = told.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, content(&answer));
    for token in &told {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(
            (top.len(), &top[0]["token"], &top[0]["logprob"]),
            (3, &token["token"], &token["logprob"])
        );
        assert!(token["logprob"].as_f64().unwrap() <= 0.0 && token["bytes"].is_array(), "{token}");
    }
    let streamed: Vec<Value> = hub
        .stream(&body)
        .await
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(streamed, told);
    let without = hub.complete(&with(ask("Count from 15 to 22."), &json!({"logprobs": false}))).await;
    assert_eq!(without["choices"][0]["logprobs"], Value::Null);
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_are_texts_of_their_own_seed_and_a_stream_gives_the_same() {
    let hub = TestHub::start().await;
    let hot = json!({"temperature": 1.5, "top_p": 1, "top_k": 0, "seed": 7, "max_tokens": 30, "n": 3});
    let body = with(ask(STORY), &hot);
    let answer = hub.complete(&body).await;
    let texts: Vec<&str> = answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["message"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(texts.len(), 3);
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    assert_eq!(answer["choices"][2]["index"], 2);
    assert_eq!(texts[0], content(&hub.complete(&with(body.clone(), &json!({"n": 1}))).await));
    let chunks = hub.stream(&body).await;
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(joined(&chunks, index, "content"), *text);
    }
    let ends = chunks.iter().filter(|chunk| chunk["choices"][0]["finish_reason"].is_string()).count();
    assert_eq!((ends, counts(chunks.last().unwrap())), (3, counts(&answer)));
    // The prompt counts once, the choices all.
    let one = hub.complete(&with(body, &json!({"n": 1}))).await;
    assert_eq!(answer["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
    assert!(answer["usage"]["completion_tokens"].as_u64() > one["usage"]["completion_tokens"].as_u64());
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_is_counted_apart() {
    let hub = TestHub::start().await;
    let body = json!({"messages": [{"role": "user", "content": "509 + 798 = ?"}], "temperature": 0});
    let usage = hub.complete(&body).await["usage"].clone();
    let thought = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!(thought > 10 && thought < usage["completion_tokens"].as_u64().unwrap(), "{usage}");
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_answer_goes_on_exactly_where_it_stopped() {
    let hub = TestHub::start().await;
    let whole = hub.complete(&ask(STORY)).await;
    for max_tokens in [1, 7, 20] {
        let cut = hub.complete(&with(ask(STORY), &json!({"max_tokens": max_tokens}))).await;
        let mut body = with(ask(STORY), &json!({"continue_final_message": true}));
        body["messages"].as_array_mut().unwrap().push(cut["choices"][0]["message"].clone());
        let rest = hub.complete(&body).await;
        assert_eq!(format!("{}{}", content(&cut), content(&rest)), content(&whole), "after {max_tokens}");
    }
    let nothing = with(
        ask(STORY),
        &json!({"continue_final_message": true, "messages": [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}]}),
    );
    let said = assert_error(hub.post(&nothing).await, 400, "invalid_value").await;
    assert!(said.contains("continue_final_message"), "{said}");
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_names_its_request_its_server_and_what_it_ignored() {
    let hub = TestHub::start().await;
    let short = with(ask("Hi"), &json!({"max_tokens": 1, "something_new": 1, "another": null, "user": "me"}));
    let response =
        hub.request(Method::POST, "/v1/chat/completions").header("x-request-id", "mine-1").json(&short);
    let response = response.send().await.unwrap();
    assert_eq!(response.headers()["x-request-id"], "mine-1");
    assert_eq!(response.headers()["x-moex-ignored"], "something_new, another");
    let answer: Value = response.json().await.unwrap();
    assert!(answer["system_fingerprint"].as_str().unwrap().starts_with("fp_"), "{answer}");
    let refused = hub.post(&json!({})).await;
    assert!(refused.headers()["x-request-id"].to_str().unwrap().starts_with("req_"));
    assert!(!refused.headers().contains_key("x-moex-ignored"));
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_takes_longer_than_it_may_is_ended_in_words() {
    let hub = TestHub::with(|config| config.request_timeout = Some(Duration::from_millis(1))).await;
    let said = assert_error(hub.post(&ask(STORY)).await, 504, "request_timeout").await;
    assert!(said.contains("--request-timeout"), "{said}");
    hub.stop().await;
}
