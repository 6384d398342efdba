//! The keys `tokenizer.*`: a vocabulary of byte-level BPE, which llama.cpp calls "gpt2", or of SentencePiece's BPE, which it
//! calls "llama".

use serde::Deserialize;

use super::{Gguf, GgufError, Header, MAX_ELEMENTS, MetaValue, Value};

/// A vocabulary, by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// Each id's token: in the alphabet of byte-level BPE, or with `▁` for a space.
    pub tokens: Vec<String>,
    /// Each id's kind; as many as there are tokens.
    pub kinds: Vec<TokenKind>,
    /// What makes tokens of a text.
    pub merges: Merges,
    /// The token before a text, if there is one.
    pub bos: Option<u32>,
    /// The token that ends an answer.
    pub eos: Option<u32>,
    /// The token that ends a turn, if it is a different one.
    pub eot: Option<u32>,
    /// The padding token.
    pub pad: Option<u32>,
    /// Whether plain text begins with `bos`. In a chat, the template decides.
    pub add_bos: bool,
}

/// Which neighbours are merged into a token, and in which order.
#[derive(Clone, Debug, PartialEq)]
pub enum Merges {
    /// Byte-level BPE.
    Listed {
        /// How a text is cut before merges.
        words: Words,
        /// The two halves of each merge, the earliest first.
        pairs: Vec<(String, String)>,
    },
    /// SentencePiece's BPE: of all neighbours that make a token, those that make the one with the highest score.
    Scored {
        /// Each id's score; as many as tokens.
        scores: Vec<f32>,
        /// Whether a text begins with a space that is not written.
        adds_space: bool,
    },
}

impl Default for Merges {
    fn default() -> Self {
        Self::Listed { words: Words::default(), pairs: Vec::new() }
    }
}

/// How a text is cut into words before merges, by the names of llama.cpp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Words {
    /// Qwen's since Qwen 2: "qwen2".
    #[default]
    Qwen2,
    /// Llama 3's: "llama-bpe".
    Llama3,
    /// GPT-4o's, which GPT-OSS has too: "gpt-4o".
    Gpt4o,
    /// DeepSeek's since V3: "deepseek-v3".
    DeepSeekV3,
    /// GPT-2's, on text in NFC: "olmo".
    Olmo,
}

impl Words {
    /// By their names; the first of several is used for writing.
    const NAMES: [(&'static str, Self); 9] = [
        ("qwen2", Self::Qwen2),
        ("deepseek-r1-qwen", Self::Qwen2),
        ("llama-bpe", Self::Llama3),
        ("llama3", Self::Llama3),
        ("llama-v3", Self::Llama3),
        ("gpt-4o", Self::Gpt4o),
        ("deepseek-v3", Self::DeepSeekV3),
        ("olmo", Self::Olmo),
        ("olmoe", Self::Olmo),
    ];

    /// How a file's text is cut. Files from before the key existed are Qwen's by their architecture.
    fn read(gguf: &Gguf<'_>) -> Result<Self, GgufError> {
        let Some(name) = gguf.text(PRE)? else { return Ok(Self::default()) };
        Self::of(name).ok_or_else(|| GgufError::WrongValue {
            key: PRE.to_owned(),
            expected: "\"qwen2\", \"llama-bpe\", \"gpt-4o\", \"deepseek-v3\" or \"olmo\", whose words are known",
        })
    }

    fn of(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, words)| *words)
    }

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, words)| *words == self).map_or("", |(name, _)| *name)
    }
}

/// The purpose of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text, made by merges.
    Normal = 1,
    /// Stands for what no other token stands for.
    Unknown = 2,
    /// Marks where something begins or ends; never shown.
    Control = 3,
    /// Matched verbatim in the text, and shown.
    UserDefined = 4,
    /// A filler, never generated or matched.
    Unused = 5,
    /// A byte, `<0x0A>`, of a character that no other token stands for.
    Byte = 6,
}

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const EOT: &str = "tokenizer.ggml.eot_token_id";
const PAD: &str = "tokenizer.ggml.padding_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";

impl Vocabulary {
    /// The vocabulary of a file; none if it has no tokenizer.
    ///
    /// # Errors
    /// If its kind is unknown, or it is incomplete.
    pub fn read(gguf: &Gguf<'_>) -> Result<Option<Self>, GgufError> {
        let Some(model) = gguf.text(MODEL)? else { return Ok(None) };
        let wrong = |key: &str, expected| GgufError::WrongValue { key: key.to_owned(), expected };
        let array = |key: &str| {
            let value = gguf.get(key).ok_or_else(|| GgufError::MissingKey(key.to_owned()))?;
            value.as_array().ok_or_else(|| wrong(key, "an array"))
        };
        let text = |key: &str, value: Value<'_>| {
            value.as_str().map(str::to_owned).ok_or_else(|| wrong(key, "an array of texts"))
        };
        let tokens: Vec<String> =
            array(TOKENS)?.iter().map(|value| text(TOKENS, value)).collect::<Result<_, _>>()?;
        let kinds = match gguf.get(KINDS) {
            None => vec![TokenKind::Normal; tokens.len()],
            Some(_) => array(KINDS)?.iter().map(TokenKind::read).collect(),
        };
        if kinds.len() != tokens.len() {
            return Err(wrong(KINDS, "as long as tokenizer.ggml.tokens"));
        }
        let merges = match model {
            "gpt2" => Merges::Listed {
                words: Words::read(gguf)?,
                pairs: array(MERGES)?.iter().map(pair).collect::<Result<_, _>>()?,
            },
            "llama" => {
                let score = |value: Value<'_>| value.as_f64().map(|score| score as f32);
                let scores: Option<Vec<f32>> = array(SCORES)?.iter().map(score).collect();
                let scores = scores.filter(|scores| scores.len() == tokens.len());
                Merges::Scored {
                    scores: scores
                        .ok_or_else(|| wrong(SCORES, "as many numbers as tokenizer.ggml.tokens"))?,
                    adds_space: gguf.get(ADD_SPACE) != Some(Value::Bool(false)),
                }
            }
            _ => {
                return Err(wrong(
                    MODEL,
                    "\"gpt2\" or \"llama\", byte-level or SentencePiece's BPE: no other is supported",
                ));
            }
        };
        let id = |key: &str| {
            let id = gguf.integer(key)?;
            if id.is_some_and(|id| id as usize >= tokens.len()) {
                return Err(wrong(key, "the id of a token"));
            }
            Ok(id)
        };
        // Where nothing is said, as llama.cpp has it.
        let adds_bos = matches!(merges, Merges::Scored { .. });
        Ok(Some(Self {
            merges,
            bos: id(BOS)?,
            eos: id(EOS)?,
            eot: id(EOT)?,
            pad: id(PAD)?,
            add_bos: gguf.get(ADD_BOS).map_or(adds_bos, |value| value == Value::Bool(true)),
            kinds,
            tokens,
        }))
    }

    /// Adds the vocabulary's keys to a header.
    pub fn write(self, header: &mut Header) {
        let (model, how, ranks) = match self.merges {
            Merges::Listed { words, pairs } => {
                let pairs = pairs.iter().map(|(left, right)| format!("{left} {right}")).collect();
                ("gpt2", (PRE, MetaValue::Text(words.name().to_owned())), (MERGES, MetaValue::Texts(pairs)))
            }
            Merges::Scored { scores, adds_space } => {
                ("llama", (ADD_SPACE, MetaValue::Bool(adds_space)), (SCORES, MetaValue::F32s(scores)))
            }
        };
        header.key(MODEL, MetaValue::Text(model.to_owned())).key(how.0, how.1);
        for (key, id) in [(BOS, self.bos), (EOS, self.eos), (EOT, self.eot), (PAD, self.pad)] {
            if let Some(id) = id {
                header.key(key, MetaValue::U32(id));
            }
        }
        header
            .key(ADD_BOS, MetaValue::Bool(self.add_bos))
            .key(KINDS, MetaValue::I32s(self.kinds.iter().map(|kind| *kind as i32).collect()))
            .key(ranks.0, ranks.1)
            .key(TOKENS, MetaValue::Texts(self.tokens));
    }

    /// The vocabulary of a `tokenizer.json`, padded to `n_ids` with unused tokens; without special tokens.
    ///
    /// # Errors
    /// If it is none, or has more ids than [`MAX_ELEMENTS`].
    pub fn from_tokenizer_json(json: &[u8], n_ids: usize) -> serde_json::Result<Self> {
        let TokenizerJson { added_tokens, model } = serde_json::from_slice(json)?;
        let ids = model.vocab.values().copied().chain(added_tokens.iter().map(|token| token.id));
        let n_ids = ids.max().map_or(0, |id| id as usize + 1).max(n_ids);
        if n_ids as u64 > MAX_ELEMENTS {
            return Err(serde::de::Error::custom(format!("{n_ids} ids are too many")));
        }
        let mut tokens: Vec<String> = (0..n_ids).map(|id| format!("[PAD{id}]")).collect();
        let mut kinds = vec![TokenKind::Unused; n_ids];
        for (token, id) in model.vocab {
            (tokens[id as usize], kinds[id as usize]) = (token, TokenKind::Normal);
        }
        for token in added_tokens {
            let kind = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
            (tokens[token.id as usize], kinds[token.id as usize]) = (token.content, kind);
        }
        let pairs = model.merges.into_iter().map(Merge::halves).collect();
        let merges = Merges::Listed { words: Words::default(), pairs };
        Ok(Self { tokens, kinds, merges, ..Self::default() })
    }

    /// The id of a token, by its exact text.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokens.iter().position(|known| known == token).map(|id| id as u32)
    }
}

impl TokenKind {
    fn read(value: Value<'_>) -> Self {
        match value {
            Value::Signed(2) | Value::Unsigned(2) => Self::Unknown,
            Value::Signed(3) | Value::Unsigned(3) => Self::Control,
            Value::Signed(4) | Value::Unsigned(4) => Self::UserDefined,
            Value::Signed(5) | Value::Unsigned(5) => Self::Unused,
            Value::Signed(6) | Value::Unsigned(6) => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// The halves of a merge: no token has a space in it.
fn pair(value: Value<'_>) -> Result<(String, String), GgufError> {
    let halves = value.as_str().and_then(|merge| merge.split_once(' '));
    let (left, right) =
        halves.ok_or(GgufError::WrongValue { key: MERGES.to_owned(), expected: "an array of pairs" })?;
    Ok((left.to_owned(), right.to_owned()))
}

#[derive(Deserialize)]
struct TokenizerJson {
    added_tokens: Vec<AddedToken>,
    model: Model,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    vocab: std::collections::HashMap<String, u32>,
    merges: Vec<Merge>,
}

/// A pair, or in older files a string with a space between its halves.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Text(String),
}

impl Merge {
    fn halves(self) -> (String, String) {
        match self {
            Self::Pair(left, right) => (left, right),
            Self::Text(text) => {
                let (left, right) = text.split_once(' ').unwrap_or((&text, ""));
                (left.to_owned(), right.to_owned())
            }
        }
    }
}
