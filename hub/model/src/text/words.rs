//! Pre-tokenizers of the families, as in their `tokenizer.json`: a GGUF only names them.

use crate::gguf::Words;

/// Text processing before merges.
pub(super) struct Cuts {
    /// Patterns, each applied to the parts from the one before.
    pub(super) patterns: &'static [&'static str],
    /// Whether the text is normalised to NFC first.
    pub(super) normal_form: bool,
}

impl Cuts {
    /// The pre-tokenizer with this name.
    pub(super) fn of(words: Words) -> Self {
        let (patterns, normal_form): (&[&str], _) = match words {
            Words::Qwen2 => (&[QWEN], true),
            Words::Llama3 => (&[LLAMA], false),
            Words::Gpt4o => (&[GPT_4O], false),
            Words::DeepSeekV3 => {
                (&[r"\p{N}{1,3}", "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+", DEEPSEEK], false)
            }
            Words::Olmo => (&[GPT_2], true),
        };
        Self { patterns, normal_form }
    }
}

const QWEN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const LLAMA: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const GPT_4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const DEEPSEEK: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

#[cfg(test)]
mod tests {
    use crate::{
        gguf::{Merges, Vocabulary, Words},
        text::{Special, Tokenizer},
    };

    /// A vocabulary of single bytes and one pair of digits: words show in which digits are merged.
    fn ids_of_digits(words: Words) -> usize {
        let tokens: Vec<String> = ('!'..='~').map(String::from).chain(["11".to_owned()]).collect();
        let kinds = vec![crate::gguf::TokenKind::Normal; tokens.len()];
        let merges = Merges::Listed { words, pairs: vec![("1".to_owned(), "1".to_owned())] };
        let vocabulary = Vocabulary { tokens, kinds, merges, ..Vocabulary::default() };
        let tokenizer = Tokenizer::from_vocabulary(&vocabulary).unwrap();
        let ids = tokenizer.encode("1111,a").unwrap();
        assert_eq!(tokenizer.decode(&ids, Special::Keep), "1111,a");
        ids.len()
    }

    #[test]
    fn every_pattern_is_one_and_cuts_digits_as_its_family_does() {
        // Digits one by one; by three from the left; all at once. Then the comma and the letter.
        assert_eq!(ids_of_digits(Words::Qwen2), 4 + 2);
        for words in [Words::Llama3, Words::Gpt4o, Words::DeepSeekV3] {
            assert_eq!(ids_of_digits(words), 3 + 2, "{words:?}");
        }
        assert_eq!(ids_of_digits(Words::Olmo), 2 + 2);
    }
}
