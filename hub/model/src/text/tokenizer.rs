//! Byte-level BPE, from a `tokenizer.json` or from a GGUF's vocabulary: text to ids and ids to bytes.

use std::collections::HashMap;

use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    Tokenizer as Inner,
    models::bpe::BPE,
    normalizers::NFC,
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::{Detokenizer, TextError, words::Cuts};
use crate::gguf::{TokenKind, Vocabulary, Words};

/// Maximum bytes of a text to tokenise.
pub const MAX_TEXT_BYTES: usize = 16 << 20;

/// A byte-level BPE tokenizer.
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
    /// If it is none, or not byte-level, as every Qwen3's is.
    pub fn from_json(json: &[u8]) -> Result<Self, TextError> {
        let inner = Inner::from_bytes(json).map_err(|error| TextError::Tokenizer(error.to_string()))?;
        if !matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Err(TextError::Tokenizer(
                "its decoder is not ByteLevel, and only that is supported".to_owned(),
            ));
        }
        Ok(Self::of(inner))
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
        let bpe = BPE::builder()
            .vocab_and_merges(
                used.map(|((token, _), id)| (token.clone(), id)).collect::<tokenizers::models::bpe::Vocab>(),
                vocabulary.merges.clone(),
            )
            .ignore_merges(vocabulary.words == Words::Llama3)
            .build()
            .map_err(failed)?;
        let Cuts { patterns, normal_form } = Cuts::of(vocabulary.words);
        let cut = |pattern: &&str| {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map(PreTokenizerWrapper::from)
        };
        let mut words: Vec<PreTokenizerWrapper> =
            patterns.iter().map(cut).collect::<Result<_, _>>().map_err(failed)?;
        words.push(ByteLevel::new(false, false, false).into());
        let mut inner = Inner::new(bpe);
        inner
            .with_normalizer(normal_form.then(|| NormalizerWrapper::from(NFC)))
            .map_err(failed)?
            .with_pre_tokenizer(Some(PreTokenizerWrapper::from(Sequence::new(words))))
            .with_decoder(Some(DecoderWrapper::from(ByteLevel::default())));
        let added = |wanted: TokenKind| {
            let found = tokens().filter(move |((_, kind), _)| **kind == wanted);
            let special = wanted == TokenKind::Control;
            found.map(move |((token, _), _)| AddedToken::from(token.clone(), special).normalized(false))
        };
        inner.add_special_tokens(added(TokenKind::Control)).map_err(failed)?;
        inner.add_tokens(added(TokenKind::UserDefined)).map_err(failed)?;
        Ok(Self::of(inner))
    }

    fn of(inner: Inner) -> Self {
        let byte_of = bytes_of_characters();
        let added = inner.get_added_tokens_decoder();
        let vocab = inner.get_vocab(true);
        let n_ids = vocab.values().max().map_or(0, |id| *id as usize + 1);
        let (mut bytes, mut special) = (vec![Vec::new(); n_ids], vec![false; n_ids]);
        for (token, id) in vocab {
            // A token with a character outside the byte alphabet stands for itself, as the decoder has it.
            let mapped: Option<Vec<u8>> = token.chars().map(|c| byte_of.get(&c).copied()).collect();
            bytes[id as usize] = mapped.unwrap_or_else(|| token.into_bytes());
            special[id as usize] = added.get(&id).is_some_and(|added| added.special);
        }
        Self { inner, bytes, special }
    }

    /// Tokenises `text`; special tokens in it are parsed, and none is added.
    ///
    /// # Errors
    /// If the text is longer than [`MAX_TEXT_BYTES`], or the tokenizer fails on it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(TextError::Tokenizer(format!("a text of {} bytes is too long", text.len())));
        }
        let encoding =
            self.inner.encode(text, false).map_err(|error| TextError::Tokenizer(error.to_string()))?;
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

/// GPT-2's alphabet, backwards: printable Latin-1 stands for itself, every other byte for a character from U+0100 on.
fn bytes_of_characters() -> HashMap<char, u8> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let others = (0..=255_u8).filter(|byte| !printable(byte)).zip('\u{100}'..);
    let own = (0..=255_u8).filter(printable).map(|byte| (char::from(byte), byte));
    own.chain(others.map(|(byte, character)| (character, byte))).collect()
}
