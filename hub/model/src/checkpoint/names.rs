//! Maps shared tensor names to llama.cpp's names in a GGUF.

use crate::families::GgufForm;

pub(crate) const TOKEN_EMBEDDING: &str = "token_embd.weight";
pub(crate) const HEAD: &str = "output.weight";
/// Divisors of RoPE's frequencies, (C/2).
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The tensor's name in a GGUF, and the expert within it; none if a GGUF has no such tensor.
pub(crate) fn of_gguf(form: &GgufForm, name: &str) -> Option<(String, Option<usize>)> {
    let Some(InLayer { layer, part, suffix, expert }) = InLayer::of(name) else {
        let name = match name {
            "model.embed_tokens.weight" => TOKEN_EMBEDDING,
            "model.norm.weight" => "output_norm.weight",
            "lm_head.weight" => HEAD,
            _ => return None,
        };
        return Some((name.to_owned(), None));
    };
    Some((format!("blk.{layer}.{}", form.own_part(&part, suffix)?), expert))
}

/// A tensor of a layer by its shared name.
pub(crate) struct InLayer<'a> {
    pub(crate) layer: &'a str,
    /// Without suffix and expert number: `mlp.experts.up_proj`.
    pub(crate) part: String,
    /// The last part of the name: usually `weight` or `bias`.
    pub(crate) suffix: &'a str,
    pub(crate) expert: Option<usize>,
}

impl<'a> InLayer<'a> {
    pub(crate) fn of(name: &'a str) -> Option<Self> {
        let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (part, suffix) = part.rsplit_once('.')?;
        let (part, expert) = match part.strip_prefix("mlp.experts.") {
            Some(rest) => {
                let (expert, part) = rest.split_once('.')?;
                (format!("mlp.experts.{part}"), Some(expert.parse().ok()?))
            }
            None => (part.to_owned(), None),
        };
        Some(Self { layer, part, suffix, expert })
    }
}
