//! How tokens spell the bytes that they stand for.

use std::{collections::HashMap, sync::LazyLock};

use tokenizers::DecoderWrapper;

/// A way to spell bytes as characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// GPT-2's: a character for each byte.
    ByteLevel,
    /// SentencePiece's: the text itself with `▁` for a space, and `<0x0A>` for a byte of a character that no piece has.
    SentencePiece,
}

impl Alphabet {
    /// The alphabet that a decoder reads, if it is one of these.
    pub(super) fn of(decoder: &DecoderWrapper) -> Option<Self> {
        match decoder {
            DecoderWrapper::ByteLevel(_) => Some(Self::ByteLevel),
            DecoderWrapper::Metaspace(_) => Some(Self::SentencePiece),
            DecoderWrapper::Sequence(parts) => {
                let spells = |part: &DecoderWrapper| {
                    matches!(part, DecoderWrapper::ByteFallback(_) | DecoderWrapper::Metaspace(_))
                };
                parts.get_decoders().iter().any(spells).then_some(Self::SentencePiece)
            }
            _ => None,
        }
    }

    /// The bytes of a token.
    pub(super) fn bytes(self, token: String) -> Vec<u8> {
        match self {
            Self::ByteLevel => {
                let byte_of = &*BYTES_OF_CHARACTERS;
                let mapped: Option<Vec<u8>> = token.chars().map(|c| byte_of.get(&c).copied()).collect();
                // A token with a character outside the alphabet stands for itself, as the decoder has it.
                mapped.unwrap_or_else(|| token.into_bytes())
            }
            Self::SentencePiece => match one_byte(&token) {
                Some(byte) => vec![byte],
                None => token.replace('▁', " ").into_bytes(),
            },
        }
    }
}

/// The byte that `<0x0A>` stands for.
fn one_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// GPT-2's alphabet, backwards: printable Latin-1 stands for itself, every other byte for a character from U+0100 on.
static BYTES_OF_CHARACTERS: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let others = (0..=255_u8).filter(|byte| !printable(byte)).zip('\u{100}'..);
    let own = (0..=255_u8).filter(printable).map(|byte| (char::from(byte), byte));
    own.chain(others.map(|(byte, character)| (character, byte))).collect()
});
