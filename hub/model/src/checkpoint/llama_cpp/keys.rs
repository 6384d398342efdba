//! Reads a GGUF's keys as the fields of a `config.json`.

use std::borrow::Cow;

use crate::{
    error::ConfigError,
    families::{Family, Fields, FromTensors, GgufForm},
    gguf::{Gguf, GgufError, Value},
    one_or_many::OneOrMany,
    spec::ModelSpec,
};

/// Reads the metadata of a GGUF's first file: its family, its form, and the spec.
///
/// # Errors
/// If the model is not supported; names the first reason.
pub(crate) fn spec(
    gguf: &Gguf<'_>,
    tensors: &FromTensors,
) -> Result<(&'static Family, &'static GgufForm, ModelSpec), ConfigError> {
    let (family, form) = Family::of_gguf(gguf)?;
    let key = |field: Cow<'static, str>| Cow::Owned(form.key(&field));
    let mut raw = Fields::read(gguf, form, tensors)?;
    raw.eos_token_id = ends_of_text(gguf, form)?;
    let spec = (family.spec)(&raw).map_err(|error| match error {
        ConfigError::Missing(field) => ConfigError::Missing(key(field)),
        ConfigError::Invalid { field, value, reason } => {
            ConfigError::Invalid { field: key(field), value, reason }
        }
        other => other,
    })?;
    Ok((family, form, spec))
}

/// The tokens that end an answer: the file's and the family's.
fn ends_of_text(gguf: &Gguf<'_>, form: &GgufForm) -> Result<Option<OneOrMany>, GgufError> {
    let mut ends = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ends.extend(gguf.integer(key)?);
    }
    let tokens = gguf.get("tokenizer.ggml.tokens").and_then(Value::as_array);
    let known = tokens.into_iter().flat_map(|tokens| tokens.iter().zip(0_u32..));
    let is_end = |token: &Value<'_>| token.as_str().is_some_and(|token| form.ends.contains(&token));
    ends.extend(known.filter(|(token, _)| is_end(token)).map(|(_, id)| id));
    let mut distinct = Vec::new();
    for end in ends {
        if !distinct.contains(&end) {
            distinct.push(end);
        }
    }
    Ok(Some(OneOrMany::Many(distinct)))
}
