//! Tokenizer and chat template against what transformers made of the same input.

use std::{fs, path::PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::*;
use crate::gguf::{Merges, TokenKind, Vocabulary};

fn data(name: &str) -> Vec<u8> {
    fs::read(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/")).join(name)).unwrap()
}

fn tiny() -> Text {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-qwen3-moe"));
    Text::load(&Checkpoint::open(&folder).unwrap()).unwrap()
}

#[derive(Deserialize)]
struct TokenizerCase {
    text: String,
    ids: Vec<u32>,
    decoded: String,
    decoded_skip_special: String,
}

#[test]
fn every_tokenizer_case_is_transformers() {
    let cases: Vec<TokenizerCase> =
        serde_json::from_slice(&data("tiny-qwen3-moe/reference/tokenizer_cases.json")).unwrap();
    assert!(cases.len() >= 10);
    for file in ["tokenizer.json", "tokenizer.legacy-merges.json"] {
        let tokenizer = Tokenizer::from_json(&data(&format!("tiny-qwen3-moe/{file}"))).unwrap();
        for case in &cases {
            assert_eq!(tokenizer.encode(&case.text).unwrap(), case.ids, "{file}: {:?}", case.text);
            assert_eq!(tokenizer.decode(&case.ids, Special::Keep), case.decoded, "{file}");
            assert_eq!(tokenizer.decode(&case.ids, Special::Skip), case.decoded_skip_special, "{file}");
        }
    }
}

#[derive(Deserialize)]
struct ChatCase {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    #[serde(default)]
    add_generation_prompt: bool,
    enable_thinking: Option<bool>,
    rendered: Option<String>,
    ids: Vec<u32>,
}

fn input<'a>(case: &'a ChatCase, variables: &'a Map<String, Value>) -> ChatInput<'a> {
    ChatInput {
        messages: &case.messages,
        tools: case.tools.as_deref(),
        generation_prompt: case.add_generation_prompt,
        variables,
        unix_seconds: 0,
    }
}

fn thinking(case: Option<bool>) -> Map<String, Value> {
    case.map(|on| ("enable_thinking".to_owned(), Value::from(on))).into_iter().collect()
}

#[test]
fn every_chat_case_is_transformers() {
    let text = tiny();
    let cases: Vec<ChatCase> =
        serde_json::from_slice(&data("tiny-qwen3-moe/reference/chat_cases.json")).unwrap();
    assert!(cases.len() >= 5);
    for case in &cases {
        let variables = thinking(case.enable_thinking);
        let input = input(case, &variables);
        assert_eq!(&text.template.as_ref().unwrap().render(&input).unwrap(), case.rendered.as_ref().unwrap());
        assert_eq!(text.prompt(&input).unwrap(), case.ids);
    }
}

#[test]
fn every_demo_prompt_is_transformers() {
    #[derive(Deserialize)]
    struct DemoCase {
        messages: Vec<Value>,
        tools: Option<Vec<Value>>,
        enable_thinking: Option<bool>,
        prompt_ids: Vec<u32>,
        reference_ids: Vec<u32>,
        reference: String,
    }
    let text = Text::load(&Checkpoint::demo().unwrap()).unwrap();
    let lines = String::from_utf8(data("demo-cases.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 300);
    for line in lines.lines() {
        let case: DemoCase = serde_json::from_str(line).unwrap();
        let variables = thinking(case.enable_thinking);
        let ids = text.prompt(&ChatInput {
            messages: &case.messages,
            tools: case.tools.as_deref(),
            generation_prompt: true,
            variables: &variables,
            unix_seconds: 0,
        });
        assert_eq!(ids.unwrap(), case.prompt_ids);
        assert_eq!(text.tokenizer.decode(&case.reference_ids, Special::Skip), case.reference);
    }
}

#[test]
fn eos_comes_from_the_generation_config_first() {
    assert_eq!(tiny().eos, [482, 480]);
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-qwen3-moe"));
    let mut checkpoint = Checkpoint::open(&folder).unwrap();
    checkpoint.text.generation_config = None;
    assert_eq!(Text::load(&checkpoint).unwrap().eos, [482], "config.json's");
    checkpoint.spec.eos.clear();
    assert_eq!(Text::load(&checkpoint).unwrap().eos, [482], "the tokenizer's <|im_end|>");
}

#[test]
fn pieces_of_a_text_are_never_half_a_character() {
    let tokenizer = tiny().tokenizer;
    let text = "naïve 你好 🙂🙂 Привет";
    let ids = tokenizer.encode(text).unwrap();
    let mut stream = Detokenizer::new(Special::Skip);
    let pieces: Vec<String> = ids.iter().map(|id| stream.push(&tokenizer, *id)).collect();
    assert!(pieces.iter().any(String::is_empty), "some tokens end inside a character");
    assert!(pieces.iter().all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER)));
    assert_eq!(pieces.concat(), text);
    assert_eq!(stream.finish(), "");
}

#[test]
fn bytes_that_are_no_text_become_the_replacement_character() {
    let tokenizer = tiny().tokenizer;
    let ids = tokenizer.encode("🙂a").unwrap();
    assert_eq!(tokenizer.decode(&ids[1..], Special::Skip), format!("{}a", "\u{FFFD}".repeat(3)));
    assert_eq!(tokenizer.decode(&ids[..2], Special::Skip), "\u{FFFD}", "a character cut off at the end");
    assert_eq!(tokenizer.decode(&[511, 9_999_999], Special::Keep), "", "ids without a token");
}

#[test]
fn templates_are_contained() {
    let render = |source: &str| {
        let template = ChatTemplate::new(source.to_owned(), vec![("eos_token", "<end>".to_owned())])?;
        let message = serde_json::json!({"role": "user", "content": "hi"});
        let variables = Map::new();
        template.render(&ChatInput {
            messages: &[message],
            tools: None,
            generation_prompt: true,
            variables: &variables,
            unix_seconds: 1_709_210_096,
        })
    };
    assert_eq!(render("{{ eos_token }}{{ strftime_now('%d %b %Y') }}").unwrap(), "<end>29 Feb 2024");
    let refused = render("{{ raise_exception('only users here') }}").unwrap_err();
    assert!(matches!(&refused, TextError::Refused(words) if words == "only users here"), "{refused}");
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}";
    assert!(render(endless).unwrap_err().to_string().contains("fuel"));
    let long = format!("{{% for a in range(9999) %}}{}{{% endfor %}}", "x".repeat(10_000));
    assert_eq!(
        render(&long).unwrap_err().to_string(),
        "the chat template failed: the prompt is longer than 16777216 bytes"
    );
    let shown = |why: TextError| why.to_string();
    let many = "{% set ns.of = namespace() %}".repeat(999);
    let many = format!("{{% set ns = namespace() %}}{{% for a in range(999) %}}{many}{{% endfor %}}");
    assert!(shown(render(&many).unwrap_err()).contains("over 100000 namespaces"));
    // Each has crashed by its depth: while it was parsed, compiled, or freed.
    #[cfg(target_os = "linux")]
    for deep in [
        format!("{{{{ a{} }}}}", "+a".repeat(99_999)),
        format!("{{{{ a{} }}}}", ".a".repeat(99_999)),
        format!("{{{{ {}a }}}}", "not ".repeat(99_999)),
        format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(79_999)),
        "{% set ns = namespace() %}{% for a in range(999) %}{% for b in range(999) %}\
         {% set ns.l = [ns.l] %}{% endfor %}{% endfor %}"
            .to_owned(),
    ] {
        let failed = "the chat template failed: it takes more than 512 MiB of memory, or all of the stack, and is not used again";
        assert_eq!(shown(render(&deep).unwrap_err()), failed, "{deep:.60}");
    }
    assert!(matches!(render("{% if %}"), Err(TextError::Template(_))));
    assert!(matches!(render(&"x".repeat(2 << 20)), Err(TextError::Template(_))));
}

#[test]
fn what_is_no_tokenizer_is_one_sentence() {
    let error = |json: &[u8]| Tokenizer::from_json(json).err().unwrap().to_string();
    assert!(error(b"{}").starts_with("tokenizer.json: "));
    let words = br#"{"version":"1.0","added_tokens":[],"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}"#;
    assert!(error(words).contains("neither ByteLevel nor SentencePiece"));
    // An id alone would take gigabytes of gaps.
    let far = r#"{"version":"1.0","added_tokens":[],"decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true},
        "model":{"type":"BPE","vocab":{"a":0,"b":400000000},"merges":[]}}"#;
    assert_eq!(error(far.as_bytes()), "tokenizer.json: the id 400000000 is too large, ids are below 4194304");
    let with = |model: &str| error(far.replace("\"merges\":[]", model).as_bytes());
    for merges in ["[[\"a\",\"b\"]]", "[\"a b\"]"] {
        let merged = with(&format!("\"merges\":{merges}"));
        assert_eq!(merged, "tokenizer.json: the merge of \"a\" and \"b\" makes no token");
    }
    let prefixed = with("\"merges\":[],\"continuing_subword_prefix\":\"##\"");
    assert_eq!(prefixed, "tokenizer.json: a continuing_subword_prefix is not supported");
    for end in 0..far.len() {
        assert!(error(&far.as_bytes()[..end]).contains("EOF"), "cut after {end} bytes");
    }
}

#[test]
fn a_tokenizer_that_fails_on_a_text_says_so() {
    let json = r#"{"version":"1.0","added_tokens":[],
        "normalizer":{"type":"Replace","pattern":{"String":""},"content":"\u2581"},
        "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
        "decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true},
        "model":{"type":"BPE","vocab":{"a":0},"merges":[]}}"#;
    let tokenizer = Tokenizer::from_json(json.as_bytes()).unwrap();
    let error = tokenizer.encode("{}").unwrap_err().to_string();
    assert_eq!(error, "tokenizer.json: it cannot tokenise this text");
}

/// A vocabulary of SentencePiece, and the ids that it makes of texts itself.
#[derive(serde::Deserialize)]
struct SentencePieces {
    tokens: Vec<String>,
    scores: Vec<f32>,
    kinds: Vec<u8>,
    cases: Vec<(String, Vec<u32>)>,
    #[serde(rename = "tokenizer.json")]
    json: Value,
}

#[test]
fn sentence_pieces_are_those_of_their_maker_from_a_folder_and_from_a_gguf() {
    let text = include_str!("../../tests/fixtures/sentencepiece.json");
    let mut found: std::collections::HashMap<String, Value> = serde_json::from_str(text).unwrap();
    for (name, adds_space) in [("llama", true), ("gemma", false)] {
        let pieces: SentencePieces = serde_json::from_value(found.remove(name).unwrap()).unwrap();
        let kind = |kind: &u8| match kind {
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            6 => TokenKind::Byte,
            _ => TokenKind::Normal,
        };
        let vocabulary = Vocabulary {
            kinds: pieces.kinds.iter().map(kind).collect(),
            tokens: pieces.tokens,
            merges: Merges::Scored { scores: pieces.scores, adds_space },
            bos: Some(1),
            add_bos: true,
            ..Vocabulary::default()
        };
        let from_gguf = Tokenizer::from_vocabulary(&vocabulary).unwrap();
        let from_folder = Tokenizer::from_json(pieces.json.to_string().as_bytes()).unwrap();
        for (text, ids) in &pieces.cases {
            assert_eq!(from_gguf.encode(text).unwrap(), *ids, "{name} {text:?}");
            assert_eq!(from_folder.encode(text).unwrap(), *ids, "{name} {text:?}");
            let written = if adds_space && !text.is_empty() { format!(" {text}") } else { text.clone() };
            assert_eq!(from_gguf.decode(ids, Special::Skip), written, "{name}");
            assert_eq!(from_folder.decode(ids, Special::Skip), written, "{name}");
        }
        let plain = from_gguf.encode_plain("moe").unwrap();
        assert_eq!((plain[0], &plain[1..]), (1, from_gguf.encode("moe").unwrap().as_slice()), "{name}");
    }
}
