//! Calls of tools as rules of a grammar, in the form in which the model writes them.

use moex_model::text::{CallForm, Tags};
use serde_json::{Value, json};

use super::{quoted, schema_source};
use crate::api::request::{ChatRequest, ToolChoice};

/// Rules for `calls`, one or several, and without their opening tag for `calls_rest`, and for `call_rest`, one alone.
pub(super) fn rules(request: &ChatRequest, tags: Tags) -> String {
    let [begin, end] = tags.call;
    let name =
        |tool: &Value| tool.pointer("/function/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let offered = request.tools.iter().filter(|tool| match &request.tool_choice {
        ToolChoice::Named(named) => name(tool) == *named,
        _ => true,
    });
    let mut rules = String::new();
    let mut alternatives = Vec::new();
    for (i, tool) in offered.enumerate() {
        let parameters = match tool.pointer("/function/parameters") {
            Some(parameters) if !parameters.is_null() => parameters.clone(),
            _ => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        };
        for [head, tail] in around_arguments(tags.form, &name(tool)) {
            alternatives.push(format!("{} arguments_{i} {}", quoted(&head), quoted(&format!("{tail}{end}"))));
        }
        rules += &format!("arguments_{i}: %json {}\n", schema_source(&parameters));
    }
    let several = request.parallel_tool_calls && !matches!(request.tool_choice, ToolChoice::Named(_));
    let (begin, bodies) = (quoted(begin), alternatives.join(" | "));
    match tags.form {
        CallForm::Json => {
            let more = if several { " (\"\\n\" call)*" } else { "" };
            format!("calls: call{more}\ncall: {begin} call_rest\ncall_rest: {bodies}\n{rules}")
        }
        CallForm::Separated { list, .. } => {
            let more = if several { " (\"\\n\"? call)*" } else { "" };
            let [list, list_end] = list.map(quoted);
            format!(
                "calls: {list} calls_rest\ncalls_rest: call{more} {list_end}\ncall_rest: call {list_end}\n\
                 call: {begin} ({bodies})\n{rules}"
            )
        }
    }
}

/// What may stand before and after the arguments of a call.
fn around_arguments(form: CallForm, name: &str) -> Vec<[String; 2]> {
    match form {
        CallForm::Json => {
            vec![[format!("\n{{\"name\": {}, \"arguments\": ", json!(name)), "}\n".to_owned()]]
        }
        CallForm::Separated { separator, .. } => vec![
            [format!("{name}{separator}"), String::new()],
            [format!("function{separator}{name}\n```json\n"), "\n```".to_owned()],
        ],
    }
}

#[cfg(test)]
mod tests {
    use moex_model::Checkpoint;
    use moex_model::text::{OutputFormat, Text};

    use super::*;
    use crate::api::grammar::{Grammars, Thinking, source};

    /// Whether the grammar of a request takes a text to its end.
    fn takes(tool_choice: &str, strict: bool, answer: &str) -> bool {
        let body = json!({
            "messages": [{"role": "user", "content": "Rome?"}],
            "tool_choice": tool_choice,
            "tools": [{"type": "function", "function": {"name": "look", "strict": strict, "parameters": {
                "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false
            }}}],
        });
        let request = ChatRequest::parse(body.to_string().as_bytes()).unwrap();
        let text = Text::load(&Checkpoint::demo().unwrap()).unwrap();
        let source = source(&request, Thinking::Over, OutputFormat::DEEPSEEK_TAGS).unwrap().unwrap();
        let mut position = Grammars::default().compile(&text, source).unwrap().begin();
        let ids = text.tokenizer.encode(answer).unwrap();
        let mut logits = vec![0.0; text.tokenizer.n_ids()];
        ids.iter().all(|id| position.accept(*id).is_ok())
            && position.allow(&mut logits).is_ok()
            && text.eos.iter().any(|eos| logits[*eos as usize] == 0.0)
    }

    #[test]
    fn deepseeks_calls_in_both_spellings_and_nothing_else() {
        let call = |inside: &str| format!("<｜tool▁call▁begin｜>{inside}<｜tool▁call▁end｜>");
        let list = |calls: &str| format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>");
        let new = call("look<｜tool▁sep｜>{\"n\": 1}");
        let old = call("function<｜tool▁sep｜>look\n```json\n{\"n\": 2}\n```");
        assert!(takes("required", false, &list(&new)) && takes("required", false, &list(&old)));
        assert!(takes("required", false, &list(&format!("{new}\n{old}"))));
        assert!(!takes("required", false, "Rome."));
        assert!(!takes("required", false, &list(&call("look<｜tool▁sep｜>{\"m\": 1}"))));
        assert!(takes("auto", true, "Rome.") && takes("auto", true, &format!("So: {}", list(&new))));
        assert!(!takes("auto", true, &list(&call("look<｜tool▁sep｜>{}"))));
    }
}
