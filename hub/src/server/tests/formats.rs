//! Answers that keep to a JSON schema, and calls that are forced.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::*;

/// A schema of at most this nesting.
fn schema(rng: &mut Xoshiro256PlusPlus, depth: u32) -> Value {
    let kinds = if depth == 0 { 6 } else { 9 };
    match rng.random_range(0..kinds) {
        0 => json!({"type": "string", "maxLength": rng.random_range(0..12)}),
        1 => json!({"type": "integer", "minimum": -5, "maximum": rng.random_range(0..1000)}),
        2 => json!({"type": "boolean"}),
        3 => json!({"type": "null"}),
        4 => json!({"enum": ["red", "gr\"een", 7, null, true]}),
        5 => json!({"const": format!("é{}", rng.random_range(0..100))}),
        6 => {
            json!({"type": "array", "items": schema(rng, depth - 1), "minItems": rng.random_range(0..2), "maxItems": 3})
        }
        7 => json!({"anyOf": [schema(rng, depth - 1), schema(rng, depth - 1)]}),
        _ => {
            let n = rng.random_range(0..4);
            let properties: serde_json::Map<String, Value> =
                (0..n).map(|i| (format!("field_{i}"), schema(rng, depth - 1))).collect();
            let required: Vec<String> =
                properties.keys().filter(|_| rng.random_range(0..2) == 0).cloned().collect();
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        }
    }
}

/// Whether a value keeps to one of those schemas.
fn keeps(value: &Value, schema: &Value) -> bool {
    if let Some(options) = schema["enum"].as_array() {
        return options.contains(value);
    }
    if let Some(options) = schema["anyOf"].as_array() {
        return options.iter().any(|schema| keeps(value, schema));
    }
    match schema["type"].as_str() {
        None => *value == schema["const"],
        Some("string") => value
            .as_str()
            .is_some_and(|text| text.chars().count() as u64 <= schema["maxLength"].as_u64().unwrap()),
        Some("integer") => {
            value.as_i64().is_some_and(|n| (-5..=schema["maximum"].as_i64().unwrap()).contains(&n))
        }
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("array") => value.as_array().is_some_and(|list| {
            (schema["minItems"].as_u64().unwrap()..=3).contains(&(list.len() as u64))
                && list.iter().all(|item| keeps(item, &schema["items"]))
        }),
        Some(_) => value.as_object().is_some_and(|map| {
            let required = schema["required"].as_array().unwrap();
            required.iter().all(|name| map.contains_key(name.as_str().unwrap()))
                && map.iter().all(|(name, value)| {
                    schema["properties"].get(name).is_some_and(|schema| keeps(value, schema))
                })
        }),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_keep_to_any_schema_however_hot_they_are_drawn() {
    let hub = TestHub::start().await;
    let (mut whole, mut cut) = (0, 0);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(13);
    for seed in 0..120 {
        let schema = schema(&mut rng, 4);
        let body = with(
            ask("Tell me about a bear."),
            &json!({
                "temperature": 1, "top_p": 1, "top_k": 0, "seed": seed, "max_tokens": 500,
                "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": true}},
            }),
        );
        let answer = hub.complete(&body).await;
        if answer["choices"][0]["finish_reason"] == "length" {
            cut += 1;
            continue;
        }
        let value: Value = serde_json::from_str(content(&answer))
            .unwrap_or_else(|error| panic!("{error} in {} for {schema}", content(&answer)));
        assert!(keeps(&value, &schema), "{value} for {schema}");
        whole += 1;
    }
    assert!(whole > 110, "{whole} whole, {cut} cut");
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_json_object_is_one_and_comes_after_thinking() {
    let hub = TestHub::start().await;
    let format =
        json!({"response_format": {"type": "json_object"}, "temperature": 1, "seed": 3, "max_tokens": 400});
    let answer = hub.complete(&with(ask("Name a capital."), &format)).await;
    if answer["choices"][0]["finish_reason"] == "stop" {
        assert!(serde_json::from_str::<Value>(content(&answer)).unwrap().is_object(), "{answer}");
    }
    assert!(content(&answer).starts_with(['{', ' ', '\n']), "{answer}");

    let schema = json!({"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 2000}}, "required": ["sum"], "additionalProperties": false});
    let body = json!({
        "messages": [{"role": "user", "content": "509 + 798 = ?"}], "temperature": 0, "max_tokens": 200,
        "response_format": {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}},
    });
    let answer = hub.complete(&body).await;
    let message = &answer["choices"][0]["message"];
    assert!(message["reasoning_content"].as_str().unwrap().starts_with("ones: 9 + 8 = 17"), "{answer}");
    assert!(serde_json::from_str::<Value>(content(&answer)).unwrap()["sum"].is_i64(), "{answer}");
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_cannot_be_kept_to_is_refused_by_what_it_has() {
    let hub = TestHub::start().await;
    for (schema, named) in [
        (json!({"type": "string", "contentEncoding": "base64", "not": {"const": "a"}}), "not"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "banana"}), "banana"),
        (json!({"$ref": "https://example.com/schema.json"}), "ref"),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
        let refused = hub.post(&with(ask("Hi"), &json!({"response_format": format}))).await;
        let said = assert_error(refused, 400, "invalid_value").await;
        assert!(said.contains("response_format") && said.contains(named), "{said}");
    }
    // More than a step may take is found while the answer is written.
    let large = json!({"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"});
    let large = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": large}});
    let said = assert_error(
        hub.post(&with(ask("Hi"), &json!({"response_format": large}))).await,
        400,
        "invalid_value",
    );
    assert!(said.await.contains("too large"));
    let endless = json!({"response_format": {"type": "json_object"}, "ignore_eos": true});
    assert_error(hub.post(&with(ask("Hi"), &endless)).await, 400, "invalid_value").await;
    hub.stop().await;
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "description": "Get weather.", "parameters": {
            "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"],
            "additionalProperties": false}}},
        {"type": "function", "function": {"name": "roll", "parameters": {
            "type": "object", "properties": {"sides": {"type": "integer", "minimum": 2, "maximum": 20}},
            "required": ["sides"], "additionalProperties": false}}},
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_is_called_when_it_must_be_and_a_stream_calls_the_same() {
    let hub = TestHub::start().await;
    let named = json!({"type": "function", "function": {"name": "roll"}});
    for (choice, thinks) in [(json!("required"), false), (named.clone(), false), (named.clone(), true)] {
        for seed in 0..4 {
            let body = json!({
                "messages": [{"role": "user", "content": "What is 2 + 2?"}], "temperature": 1, "seed": seed,
                "tools": tools(), "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 600,
                "chat_template_kwargs": {"enable_thinking": thinks},
            });
            let answer = hub.complete(&body).await;
            if answer["choices"][0]["finish_reason"] == "length" {
                assert!(thinks, "{answer}");
                continue;
            }
            assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
            let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 1, "{answer}");
            let function = &calls[0]["function"];
            let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
            match function["name"].as_str().unwrap() {
                "roll" => assert!((2..=20).contains(&arguments["sides"].as_i64().unwrap())),
                "get_weather" => assert!(choice == "required" && arguments["city"].is_string()),
                other => panic!("{other}"),
            }
            let streamed = hub.stream(&body).await;
            let mut streamed = streamed.iter().filter_map(|c| c["choices"][0]["delta"].get("tool_calls"));
            assert_eq!(&streamed.next().unwrap()[0]["function"], function);
        }
    }
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_model_chooses_it_answers_as_it_would_and_calls_by_the_schema() {
    let hub = TestHub::start().await;
    for question in ["What is the weather in Dublin?", "49 + 34 = ?"] {
        let tools = json!([tools()[0]]);
        let free = hub.complete(&with(ask(question), &json!({"tools": tools}))).await;
        let held = json!({"tools": tools, "parallel_tool_calls": false});
        let held = hub.complete(&with(ask(question), &held)).await;
        let said = |answer: &Value| {
            let message = &answer["choices"][0]["message"];
            (message["content"].clone(), message["tool_calls"][0]["function"].clone())
        };
        assert_eq!(said(&held), said(&free));
    }
    hub.stop().await;
}
