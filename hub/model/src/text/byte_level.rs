//! Byte-level BPE out of a GGUF's vocabulary.

use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper, Result, SplitDelimiterBehavior, Tokenizer,
    models::bpe::{BPE, Vocab},
    normalizers::NFC,
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::{merges, words::Cuts};
use crate::gguf::Words;

/// Cuts a text into words, and merges `pairs` in them, the earliest first.
pub(super) fn tokenizer(ids: Vocab, pairs: &[(String, String)], words: Words) -> Result<Tokenizer> {
    let halves = pairs.iter().map(|(left, right)| (left.as_str(), right.as_str()));
    merges::check(halves, |token| ids.contains_key(token))?;
    let bpe =
        BPE::builder().vocab_and_merges(ids, pairs.to_vec()).ignore_merges(words == Words::Llama3).build()?;
    let Cuts { patterns, normal_form } = Cuts::of(words);
    let cut = |pattern: &&str| {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map(PreTokenizerWrapper::from)
    };
    let mut cuts: Vec<PreTokenizerWrapper> = patterns.iter().map(cut).collect::<Result<_>>()?;
    cuts.push(ByteLevel::new(false, false, false).into());
    let mut tokenizer = Tokenizer::new(bpe);
    tokenizer
        .with_normalizer(normal_form.then(|| NormalizerWrapper::from(NFC)))?
        .with_pre_tokenizer(Some(PreTokenizerWrapper::from(Sequence::new(cuts))))
        .with_decoder(Some(DecoderWrapper::from(ByteLevel::default())));
    Ok(tokenizer)
}
