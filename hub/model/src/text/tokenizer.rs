//! Text to ids and ids to bytes, by BPE: byte-level or SentencePiece's, from a `tokenizer.json` or from a GGUF's vocabulary.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::{
    AddedToken, PostProcessorWrapper, Tokenizer as Inner, models::bpe::Vocab,
    processors::template::TemplateProcessing,
};

use super::{Detokenizer, TextError, alphabet::Alphabet, byte_level, merges, sentence_piece};
use crate::gguf::{Merges, TokenKind, Vocabulary};

/// Maximum bytes of a text to tokenise.
pub const MAX_TEXT_BYTES: usize = 16 << 20;

/// Maximum ids of a vocabulary, sixteen times the largest in use. Gaps between ids take memory like tokens.
const MAX_IDS: usize = 1 << 22;

/// A BPE tokenizer.
pub struct Tokenizer {
    inner: Inner,
    /// The bytes of each id; empty for gaps in the vocabulary.
    bytes: Vec<Vec<u8>>,
    special: Vec<bool>,
}

/// How special tokens are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// They are included.
    Keep,
    /// They are omitted.
    Skip,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// If it is none, or its tokens are neither byte-level nor SentencePiece's.
    pub fn from_json(json: &[u8]) -> Result<Self, TextError> {
        let unread = |error: serde_json::Error| TextError::Tokenizer(error.to_string());
        // By way of a value: a file cut short inside its decoder makes the crate panic.
        let value = serde_json::from_slice(json).map_err(unread)?;
        merges::check_json(&value).map_err(TextError::Tokenizer)?;
        let inner: Inner = serde_json::from_value(value).map_err(unread)?;
        let alphabet = inner.get_decoder().and_then(Alphabet::of).ok_or_else(|| {
            TextError::Tokenizer(
                "its decoder is neither ByteLevel nor SentencePiece's, and no other is supported".to_owned(),
            )
        })?;
        Self::of(inner, alphabet).map_err(TextError::Tokenizer)
    }

    /// Builds the tokenizer of a GGUF. It equals the model's `tokenizer.json`, whose normaliser and pre-tokenizer GGUF
    /// only names.
    ///
    /// # Errors
    /// If a merge's result is not in the vocabulary.
    pub fn from_vocabulary(vocabulary: &Vocabulary) -> Result<Self, TextError> {
        let failed = |error: tokenizers::Error| TextError::Vocabulary(error.to_string());
        let tokens = || vocabulary.tokens.iter().zip(&vocabulary.kinds).zip(0_u32..);
        let used = tokens().filter(|((_, kind), _)| **kind != TokenKind::Unused);
        let ids: Vocab = used.map(|((token, _), id)| (token.clone(), id)).collect();
        let (mut inner, alphabet) = match &vocabulary.merges {
            Merges::Listed { words, pairs } => {
                (byte_level::tokenizer(ids, pairs, *words).map_err(failed)?, Alphabet::ByteLevel)
            }
            Merges::Scored { scores, adds_space } => {
                let inner = sentence_piece::tokenizer(vocabulary, ids, scores, *adds_space);
                (inner.map_err(failed)?, Alphabet::SentencePiece)
            }
        };
        let added = |is_wanted: fn(TokenKind) -> bool, is_special| {
            let found = tokens().filter(move |((_, kind), _)| is_wanted(**kind));
            found.map(move |((token, _), _)| AddedToken::from(token.clone(), is_special).normalized(false))
        };
        let is_special = |kind| matches!(kind, TokenKind::Control | TokenKind::Unknown);
        inner.add_special_tokens(added(is_special, true)).map_err(failed)?;
        inner.add_tokens(added(|kind| kind == TokenKind::UserDefined, false)).map_err(failed)?;
        if let Some(bos) = vocabulary.bos.filter(|_| vocabulary.add_bos) {
            inner.with_post_processor(Some(begins_with(&vocabulary.tokens[bos as usize], bos)?));
        }
        Self::of(inner, alphabet).map_err(TextError::Vocabulary)
    }

    /// The error is a reason.
    fn of(inner: Inner, alphabet: Alphabet) -> Result<Self, String> {
        let added = inner.get_added_tokens_decoder();
        let vocab = inner.get_vocab(true);
        let n_ids = vocab.values().max().map_or(0, |id| *id as usize + 1);
        if n_ids > MAX_IDS {
            return Err(format!("the id {} is too large, ids are below {MAX_IDS}", n_ids - 1));
        }
        let (mut bytes, mut special) = (vec![Vec::new(); n_ids], vec![false; n_ids]);
        for (token, id) in vocab {
            special[id as usize] = added.get(&id).is_some_and(|added| added.special);
            bytes[id as usize] = alphabet.bytes(token);
        }
        Ok(Self { inner, bytes, special })
    }

    /// Tokenises `text`; special tokens in it are parsed, and none is added.
    ///
    /// # Errors
    /// If the text is longer than [`MAX_TEXT_BYTES`], or the tokenizer fails on it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.ids(text, false)
    }

    /// The ids of a text that no template made: with the token that the model's texts begin with, where there is one.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.ids(text, true)
    }

    fn ids(&self, text: &str, adds_special: bool) -> Result<Vec<u32>, TextError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(TextError::Tokenizer(format!("a text of {} bytes is too long", text.len())));
        }
        // The crate panics on normalisers that no model has, such as a pattern that matches an empty text.
        let encoded = catch_unwind(AssertUnwindSafe(|| self.inner.encode(text, adds_special)))
            .unwrap_or_else(|_| Err("it cannot tokenise this text".into()));
        let encoding = encoded.map_err(|error| TextError::Tokenizer(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Decodes `ids`; invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32], special: Special) -> String {
        let mut stream = Detokenizer::new(special);
        let mut text: String = ids.iter().map(|id| stream.push(self, *id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// The id of a token, by its exact text.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Entries of the vocabulary; a model may have more rows than this.
    pub fn n_ids(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of `id`, not always whole characters; empty if there is no such token.
    pub fn bytes(&self, id: u32, special: Special) -> &[u8] {
        match (self.bytes.get(id as usize), special, self.special.get(id as usize)) {
            (Some(_), Special::Skip, Some(true)) | (None, ..) => &[],
            (Some(bytes), ..) => bytes,
        }
    }
}

/// Puts a token before a text.
fn begins_with(token: &str, id: u32) -> Result<PostProcessorWrapper, TextError> {
    let template = TemplateProcessing::builder()
        .try_single(vec![token, "$A"])
        .map_err(TextError::Vocabulary)?
        .special_tokens(vec![(token, id)])
        .build();
    template.map(PostProcessorWrapper::from).map_err(|error| TextError::Vocabulary(error.to_string()))
}
