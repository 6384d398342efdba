//! `GET /openapi.json`: the API described in OpenAPI 3.1, with schemas from the types in `bodies` and `answers`.
//!
//! Handlers read bodies field by field, for better errors; a test checks that the fields they read and those described
//! here have the same names.

mod answers;
mod bodies;
mod other_bodies;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::state::Api;

/// `GET /openapi.json`
pub(super) async fn openapi(State(api): State<Arc<Api>>) -> Json<Value> {
    Json(document(api.model()))
}

/// The description of a hub that serves `model`.
fn document(model: &str) -> Value {
    let mut writer = Writer::new();
    writer.post::<bodies::ChatCompletion, answers::ChatCompletion>(
        "/v1/chat/completions",
        "Chat completion, whole or as server-sent events.",
        Streams::Yes,
    );
    writer.post::<bodies::Completion, answers::Completion>(
        "/v1/completions",
        "Completions of prompts, whole or as server-sent events.",
        Streams::Yes,
    );
    writer.post::<other_bodies::Response, answers::Response>(
        "/v1/responses",
        "Chat completion in the format of OpenAI's Responses API, whole or as events.",
        Streams::Yes,
    );
    writer.post::<other_bodies::Message, answers::Message>(
        "/v1/messages",
        "Chat completion in the format of Anthropic's Messages API, whole or as events.",
        Streams::Yes,
    );
    writer.post::<other_bodies::CountTokens, answers::TokenCount>(
        "/v1/messages/count_tokens",
        "Number of prompt tokens of such a request.",
        Streams::No,
    );
    writer.post::<bodies::Tokenize, answers::Tokens>("/tokenize", "Tokenises a text.", Streams::No);
    writer.post::<bodies::Detokenize, answers::Content>(
        "/detokenize",
        "Converts tokens to text.",
        Streams::No,
    );
    writer.post::<bodies::ChatCompletion, answers::Prompt>(
        "/apply-template",
        "Renders a conversation with the chat template.",
        Streams::No,
    );
    writer.get::<answers::Models>("/v1/models", "The model that is served.");
    writer.get::<answers::Props>(
        "/props",
        "The model, its chat template, and its default sampling parameters.",
    );
    writer.get::<Vec<answers::Slot>>("/slots", "The slots for concurrent sequences, and which are in use.");
    writer.get::<answers::Health>("/health", "Whether the hub can answer requests now.");
    let mut document = writer.finish();
    let schemas = document["components"]["schemas"].as_object_mut().into_iter().flatten();
    for (_, body) in schemas.filter(|(name, _)| name.ends_with("Body")) {
        if let Some(asked) = body.pointer_mut("/properties/model") {
            asked["enum"] = json!([model, "default", null]);
        }
    }
    document
}

/// Whether `"stream": true` returns events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Streams {
    Yes,
    No,
}

struct Writer {
    schemas: SchemaGenerator,
    paths: Map<String, Value>,
}

impl Writer {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self { schemas: settings.into_generator(), paths: Map::new() }
    }

    fn post<Body: JsonSchema, Answer: JsonSchema>(&mut self, path: &str, summary: &str, streams: Streams) {
        let body = self.schemas.subschema_for::<Body>();
        let mut operation = self.operation::<Answer>(path, summary);
        operation["requestBody"] = json!({ "required": true, "content": json_content(&body) });
        if streams == Streams::Yes {
            operation["responses"]["200"]["content"]["text/event-stream"] =
                // OpenAPI 3.1 cannot describe the single events.
                json!({});
        }
        let errors = [
            ("413", "The body is too large."),
            ("429", "The queue is full: `Retry-After` says when to retry."),
            ("500", "The hub failed."),
            ("504", "The answer exceeded the time limit."),
        ];
        let error = match path.starts_with("/v1/messages") {
            true => self.schemas.subschema_for::<answers::MessageError>(),
            false => self.schemas.subschema_for::<answers::Error>(),
        };
        for (status, description) in [
            ("400", "The request is invalid, or asks for an unsupported feature."),
            ("404", "The model is not served."),
            ("503", "Unavailable: experts have no worker, or the hub is stopping."),
        ]
        .into_iter()
        .chain(errors)
        {
            operation["responses"][status] =
                json!({ "description": description, "content": json_content(&error) });
        }
        self.paths.insert(path.to_owned(), json!({ "post": operation }));
    }

    fn get<Answer: JsonSchema>(&mut self, path: &str, summary: &str) {
        let mut operation = self.operation::<Answer>(path, summary);
        if path == "/health" {
            operation["security"] = json!([]);
            let not_ready = operation["responses"]["200"]["content"].clone();
            operation["responses"]["503"] =
                json!({ "description": "The hub is not ready.", "content": not_ready });
        }
        self.paths.insert(path.to_owned(), json!({ "get": operation }));
    }

    fn operation<Answer: JsonSchema>(&mut self, path: &str, summary: &str) -> Value {
        let answer = self.schemas.subschema_for::<Answer>();
        let error = self.schemas.subschema_for::<answers::Error>();
        let name = path.trim_start_matches("/v1").split(['/', '-']).filter(|part| !part.is_empty());
        json!({
            "operationId": name.collect::<Vec<_>>().join("_"),
            "summary": summary,
            "responses": {
                "200": { "description": "Success.", "content": json_content(&answer) },
                "401": { "description": "The API key is missing or wrong.", "content": json_content(&error) },
                "403": { "description": "The request is from another site's page.", "content": json_content(&error) },
            },
        })
    }

    fn finish(mut self) -> Value {
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "moex",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "A mixture-of-experts model run by a swarm of machines.",
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            },
            "servers": [{ "url": "/" }],
            "security": [{}, { "bearer": [] }],
            "paths": self.paths,
            "components": {
                "schemas": self.schemas.take_definitions(true),
                "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
            },
        })
    }
}

fn json_content(schema: &Schema) -> Value {
    json!({ "application/json": { "schema": schema } })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::parameters::{FieldUse, PARAMETERS};
    use super::*;

    #[test]
    fn every_field_that_is_read_is_described_and_no_other() {
        let document = document("some-model");
        let described: BTreeSet<&str> = document["components"]["schemas"]["ChatCompletionBody"]["properties"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let read: BTreeSet<&str> =
            PARAMETERS.iter().filter(|p| matches!(p.fate, FieldUse::Used)).map(|p| p.name).collect();
        assert_eq!(described, read);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document("some-model");
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
        assert!(document["paths"].as_object().unwrap().len() >= 12);
    }
}
