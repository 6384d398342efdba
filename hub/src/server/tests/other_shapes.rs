//! The same answers in the shapes of OpenAI's Responses and Anthropic's Messages.

use super::*;

const THINKS: &str = "509 + 798 = ?";
const WEATHER: &str = "What is the weather in Dublin?";

/// The named events of a stream.
async fn events(hub: &TestHub, path: &str, body: &Value) -> Vec<(String, Value)> {
    let body = with(body.clone(), &json!({"stream": true}));
    let response = hub.request(Method::POST, path).json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    let event = |block: &str| {
        let (name, data) = block.split_once('\n')?;
        let name = name.strip_prefix("event: ")?.to_owned();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ")?).unwrap();
        assert_eq!(data["type"], name);
        Some((name, data))
    };
    text.split("\n\n").filter_map(event).collect()
}

async fn whole(hub: &TestHub, path: &str, body: &Value) -> Value {
    let response = hub.request(Method::POST, path).json(body).send().await.unwrap();
    let status = response.status();
    let answer: Value = response.json().await.unwrap();
    assert_eq!(status, 200, "{answer}");
    answer
}

fn without(mut value: Value, names: &[&str]) -> Value {
    fn strip(value: &mut Value, names: &[&str]) {
        match value {
            Value::Object(map) => {
                names.iter().for_each(|name| {
                    map.shift_remove(*name);
                });
                map.values_mut().for_each(|value| strip(value, names));
            }
            Value::Array(list) => list.iter_mut().for_each(|value| strip(value, names)),
            _ => {}
        }
    }
    strip(&mut value, names);
    value
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_says_what_a_chat_completion_says_and_its_events_add_up_to_it() {
    let hub = TestHub::start().await;
    let tools = json!([{"type": "function", "name": "get_weather", "description": "Get weather.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]);
    let quiet = json!({"enable_thinking": false});
    let bodies = [
        json!({"input": THINKS, "temperature": 0}),
        json!({"input": STORY, "temperature": 0, "chat_template_kwargs": quiet}),
        json!({"input": [{"role": "user", "content": WEATHER}], "temperature": 0, "tools": tools, "chat_template_kwargs": quiet}),
        json!({"input": STORY, "temperature": 0, "chat_template_kwargs": quiet, "max_output_tokens": 4}),
    ];
    for body in &bodies {
        let answer = whole(&hub, "/v1/responses", body).await;
        let told = events(&hub, "/v1/responses", body).await;
        let (last, data) = told.last().unwrap();
        let is_cut = body["max_output_tokens"] == 4;
        assert_eq!(last, if is_cut { "response.incomplete" } else { "response.completed" });
        let same = ["id", "call_id", "created_at", "input_tokens_details"];
        assert_eq!(without(data["response"].clone(), &same), without(answer.clone(), &same));
        let numbers: Vec<u64> =
            told.iter().map(|(_, data)| data["sequence_number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..told.len() as u64).collect::<Vec<_>>());
        let deltas: String = told
            .iter()
            .filter(|(name, _)| name == "response.output_text.delta")
            .map(|(_, data)| data["delta"].as_str().unwrap())
            .collect();
        let messages = answer["output"].as_array().unwrap().iter().filter(|item| item["type"] == "message");
        let said: String = messages.map(|item| item["content"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(deltas, said);
    }
    let thought = whole(&hub, "/v1/responses", &bodies[0]).await;
    assert_eq!(
        (&thought["output"][0]["type"], &thought["output"][1]["content"][0]["text"]),
        (&json!("reasoning"), &json!("1307"))
    );
    let called = whole(&hub, "/v1/responses", &bodies[2]).await;
    let call = &called["output"][0];
    assert_eq!(
        (&call["type"], &call["arguments"]),
        (&json!("function_call"), &json!("{\"city\": \"Dublin\"}"))
    );
    let story = whole(&hub, "/v1/responses", &bodies[1]).await;
    assert_eq!(story["output"][0]["content"][0]["text"], content(&hub.complete(&ask(STORY)).await));
    // And its items are a history.
    let history = json!({"input": [
        {"role": "user", "content": WEATHER}, call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}], "temperature": 0, "tools": tools,
        "chat_template_kwargs": quiet});
    assert_eq!(whole(&hub, "/v1/responses", &history).await["status"], "completed");
    let kept =
        hub.request(Method::POST, "/v1/responses").json(&json!({"input": "a", "previous_response_id": "b"}));
    assert_error(kept.send().await.unwrap(), 400, "unsupported_parameter").await;
    hub.stop().await;
}

/// Tokens of a message's prompt, whether they were cached or not, and of what it says.
fn usage(message: &Value) -> (u64, u64) {
    let [plain, cached, said] = ["input_tokens", "cache_read_input_tokens", "output_tokens"]
        .map(|name| message["usage"][name].as_u64().unwrap());
    (plain + cached, said)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_says_what_a_chat_completion_says_and_its_events_add_up_to_it() {
    let hub = TestHub::start().await;
    let says = |text: &str| json!([{"role": "user", "content": text}]);
    let tools = json!([{"name": "get_weather", "description": "Get weather.", "input_schema": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]);
    let base = json!({"max_tokens": 200, "temperature": 0});
    let bodies = [
        with(
            base.clone(),
            &json!({"messages": says(THINKS), "thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ),
        with(base.clone(), &json!({"messages": says(STORY)})),
        with(base.clone(), &json!({"messages": says(WEATHER), "tools": tools})),
        with(base.clone(), &json!({"messages": says(STORY), "stop_sequences": ["nowhere", "near"]})),
        with(base.clone(), &json!({"messages": says(STORY), "max_tokens": 4})),
    ];
    let mut reasons = Vec::new();
    for body in &bodies {
        let answer = whole(&hub, "/v1/messages", body).await;
        let told = events(&hub, "/v1/messages", body).await;
        assert_eq!((told[0].0.as_str(), told.last().unwrap().0.as_str()), ("message_start", "message_stop"));
        let end = &told[told.len() - 2].1;
        assert_eq!(end["delta"]["stop_reason"], answer["stop_reason"]);
        assert_eq!(usage(end), usage(&answer));
        let mut texts = vec![String::new(); answer["content"].as_array().unwrap().len()];
        for (_, data) in told.iter().filter(|(name, _)| name == "content_block_delta") {
            let delta = &data["delta"];
            let text =
                delta["text"].as_str().or(delta["thinking"].as_str()).or(delta["partial_json"].as_str());
            texts[usize::try_from(data["index"].as_u64().unwrap()).unwrap()].push_str(text.unwrap());
        }
        for (block, text) in answer["content"].as_array().unwrap().iter().zip(&texts) {
            match block["type"].as_str().unwrap() {
                "tool_use" => assert_eq!(block["input"], serde_json::from_str::<Value>(text).unwrap()),
                kind => assert_eq!(block[if kind == "text" { "text" } else { "thinking" }], *text),
            }
        }
        reasons.push(answer["stop_reason"].as_str().unwrap().to_owned());
    }
    assert_eq!(reasons, ["end_turn", "end_turn", "tool_use", "stop_sequence", "max_tokens"]);
    let thought = whole(&hub, "/v1/messages", &bodies[0]).await;
    assert_eq!(
        (&thought["content"][0]["type"], &thought["content"][1]["text"]),
        (&json!("thinking"), &json!("1307"))
    );
    let stopped = whole(&hub, "/v1/messages", &bodies[3]).await;
    assert_eq!(stopped["stop_sequence"], "near");
    let story = whole(&hub, "/v1/messages", &bodies[1]).await;
    assert_eq!(story["content"][0]["text"], content(&hub.complete(&ask(STORY)).await));
    let counted = whole(&hub, "/v1/messages/count_tokens", &json!({"messages": says(STORY)})).await;
    assert_eq!(counted["input_tokens"], usage(&story).0);

    let refused =
        hub.request(Method::POST, "/v1/messages").json(&json!({"messages": says("a")})).send().await.unwrap();
    assert_eq!(refused.status(), 400);
    let refused: Value = refused.json().await.unwrap();
    assert_eq!(
        (&refused["type"], &refused["error"]["type"]),
        (&json!("error"), &json!("invalid_request_error"))
    );
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_the_key_is_refused_in_its_own_shape() {
    let hub = TestHub::with(|config| config.api_key = Some("key".to_owned())).await;
    let body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]});
    let ask = |key: &'static str| {
        hub.request(Method::POST, "/v1/messages").header("x-api-key", key).json(&body).send()
    };
    assert_eq!(ask("key").await.unwrap().status(), 200);
    let refused = ask("kez").await.unwrap();
    assert_eq!(refused.status(), 401);
    assert_eq!(refused.json::<Value>().await.unwrap()["error"]["type"], "authentication_error");
    hub.stop().await;
}
