//! SentencePiece's BPE out of a GGUF's vocabulary (Kudo and Richardson, <https://arxiv.org/abs/1808.06226>).
//!
//! Of all neighbours that make a piece, those merge first that make the one with the highest score. As a list of pairs, the
//! highest score first, that is BPE like any other: the list is made as transformers makes it for `tokenizer.json`.

use tokenizers::{
    NormalizerWrapper, Result, Tokenizer,
    models::bpe::{BPE, Vocab},
    normalizers::{Prepend, Replace, Sequence},
};

use crate::gguf::{TokenKind, Vocabulary};

/// Turns spaces into `▁` and merges pieces by their scores; a text may begin with a space that is not written.
pub(super) fn tokenizer(
    vocabulary: &Vocabulary,
    ids: Vocab,
    scores: &[f32],
    adds_space: bool,
) -> Result<Tokenizer> {
    let pairs = pairs(vocabulary, &ids, scores);
    let unknown = vocabulary.kinds.iter().position(|kind| *kind == TokenKind::Unknown);
    let mut bpe = BPE::builder().vocab_and_merges(ids, pairs).fuse_unk(true).byte_fallback(true);
    if let Some(unknown) = unknown {
        bpe = bpe.unk_token(vocabulary.tokens[unknown].clone());
    }
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if adds_space {
        steps.push(Prepend::new("▁".to_owned()).into());
    }
    steps.push(Replace::new(" ", "▁")?.into());
    let mut tokenizer = Tokenizer::new(bpe.build()?);
    tokenizer.with_normalizer(Some(NormalizerWrapper::from(Sequence::new(steps))))?;
    Ok(tokenizer)
}

/// Every pair of pieces that make a piece: by its score, of pieces with the same score the longest halves first.
fn pairs(vocabulary: &Vocabulary, ids: &Vocab, scores: &[f32]) -> Vec<(String, String)> {
    let is_merged = |kind: &TokenKind| matches!(kind, TokenKind::Normal);
    let pieces = vocabulary.tokens.iter().zip(&vocabulary.kinds).zip(scores);
    let mut found: Vec<(f32, (&str, &str))> = Vec::new();
    for ((piece, _), score) in pieces.filter(|((_, kind), _)| is_merged(kind)) {
        let cuts = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        let known = cuts.filter_map(|(left, right)| Some(((ids.get(left)?, ids.get(right)?), (left, right))));
        let mut known: Vec<_> = known.collect();
        known.sort_unstable_by_key(|(ids, _)| *ids);
        found.extend(known.into_iter().map(|(_, pair)| (*score, pair)));
    }
    let length = |text: &str| text.chars().count();
    found.sort_by(|(score, (left, right)), (other, (other_left, other_right))| {
        // A score may be anything; + 0.0, since the two zeros are equal here.
        let by_score = (other + 0.0).total_cmp(&(score + 0.0));
        by_score
            .then_with(|| length(other_left).cmp(&length(left)))
            .then_with(|| length(other_right).cmp(&length(right)))
    });
    found.into_iter().map(|(_, (left, right))| (left.to_owned(), right.to_owned())).collect()
}
