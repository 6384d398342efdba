//! What the tokenizers crate takes for granted of merges: it panics on one whose token is longer than all that there are.

use serde_json::Value;

/// Checks that each of `pairs` makes a token. The error is a reason.
pub(super) fn check<'a>(
    mut pairs: impl Iterator<Item = (&'a str, &'a str)>,
    is_token: impl Fn(&str) -> bool,
) -> Result<(), String> {
    let unknown = pairs.find(|(left, right)| !is_token(&format!("{left}{right}")));
    unknown.map_or(Ok(()), |(left, right)| Err(format!("the merge of {left:?} and {right:?} makes no token")))
}

/// Checks the merges of a `tokenizer.json`. The error is a reason.
pub(super) fn check_json(json: &Value) -> Result<(), String> {
    let model = &json["model"];
    if model["continuing_subword_prefix"].as_str().is_some_and(|prefix| !prefix.is_empty()) {
        return Err("a continuing_subword_prefix is not supported".to_owned());
    }
    let merges = model["merges"].as_array().into_iter().flatten();
    check(merges.filter_map(halves), |token| model["vocab"].get(token).is_some())
}

/// The halves of a merge. Whatever else stands there is left to the crate, which refuses it or knows it as a comment.
fn halves(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(text) if text.starts_with("#version") => None,
        Value::String(text) => text.split_once(' '),
        _ => Some((merge.get(0)?.as_str()?, merge.get(1)?.as_str()?)),
    }
}
