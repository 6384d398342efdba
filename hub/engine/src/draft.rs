//! Drafts tokens for speculative decoding without a second model (prompt lookup).
//!
//! Copying and editing repeat parts of the prompt, of the answer so far, or of a prediction. The longest earlier run of
//! tokens that equals the text's end is found by its last three tokens, among the latest places after the same three.

use std::collections::HashMap;

/// Tokens that must match before a draft.
const N_GRAM: usize = 3;
/// Maximum places that are compared.
const MAX_PLACES: usize = 16;
/// Maximum tokens before a place that are compared.
const MAX_COMPARED: usize = 32;
/// Separates the prediction from the text; not a token.
const NONE: u32 = u32::MAX;

/// All tokens so far, indexed.
#[derive(Debug, Default)]
pub(super) struct Drafter {
    /// The prediction, a separator, the prompt, the answer so far.
    said: Vec<u32>,
    /// The tokens of the prediction.
    n_predicted: usize,
    /// Index where the answer begins.
    answer: usize,
    /// Latest place after each run of three tokens.
    last: HashMap<[u32; N_GRAM], u32>,
    /// For each place, the previous place after the same three tokens; 0 if there is none.
    before: Vec<u32>,
}

impl Drafter {
    /// For an answer to `prompt` that probably resembles `prediction`.
    pub(super) fn new(prediction: &[u32], prompt: &[u32]) -> Self {
        let mut drafter = Self { n_predicted: prediction.len(), ..Self::default() };
        let mark: &[u32] = if prediction.is_empty() { &[] } else { &[NONE] };
        for id in prediction.iter().chain(mark).chain(prompt) {
            drafter.push(*id);
        }
        drafter.answer = drafter.said.len();
        drafter
    }

    /// Appends the next token.
    pub(super) fn push(&mut self, id: u32) {
        self.said.push(id);
        let place = self.said.len();
        self.before.push(0);
        if let Some(behind) = self.said.last_chunk::<N_GRAM>()
            && let Some(earlier) = self.last.insert(*behind, place as u32)
        {
            self.before[place - 1] = earlier;
        }
    }

    /// Drafts at most `n` tokens. A repetition up to here is continued.
    pub(super) fn guess(&self, n: usize) -> impl Iterator<Item = u32> + '_ {
        let place = self.place().map(|place| &self.said[place..]);
        place.unwrap_or_default().iter().copied().cycle().take_while(|id| *id != NONE).take(n)
    }

    /// The place after the longest earlier run of tokens that equals the text's end.
    fn place(&self) -> Option<usize> {
        let answered = &self.said[self.answer..];
        if answered.len() < N_GRAM {
            // Too short to look up: the draft starts with the prediction.
            let agrees = self.said[..self.n_predicted].starts_with(answered);
            return (agrees && self.n_predicted > 0).then_some(answered.len());
        }
        let mut place = self.before.last().map_or(0, |place| *place as usize);
        let mut best: Option<(usize, usize)> = None;
        for _ in 0..MAX_PLACES {
            if place == 0 {
                break;
            }
            let n = self.n_common_behind(place);
            if best.is_none_or(|(longest, _)| n > longest) {
                best = Some((n, place));
            }
            place = self.before[place - 1] as usize;
        }
        best.map(|(_, place)| place)
    }

    /// Number of tokens before `place` that equal the text's end.
    fn n_common_behind(&self, place: usize) -> usize {
        let ends = self.said[..place].iter().rev().zip(self.said.iter().rev());
        ends.take(MAX_COMPARED).take_while(|(a, b)| a == b).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(drafter: &Drafter, n: usize) -> Vec<u32> {
        drafter.guess(n).collect()
    }

    fn said(drafter: &mut Drafter, ids: &[u32]) {
        ids.iter().for_each(|id| drafter.push(*id));
    }

    #[test]
    fn a_guess_is_what_followed_the_longest_run_said_before() {
        let mut drafter = Drafter::new(&[], &[1, 2, 3, 4, 50, 60, 9, 2, 3, 4, 70, 80]);
        assert!(guess(&drafter, 4).is_empty());
        said(&mut drafter, &[9, 2, 3]);
        assert_eq!(guess(&drafter, 2), [4, 70]);
        said(&mut drafter, &[4]);
        assert_eq!(guess(&drafter, 2), [70, 80], "the run with a 9");
        said(&mut drafter, &[5, 1, 2, 3, 4]);
        assert_eq!(guess(&drafter, 9), [50, 60, 9, 2, 3, 4, 70, 80, 9], "the run with a 1");
        said(&mut drafter, &[77, 78]);
        assert!(guess(&drafter, 4).is_empty(), "never said");
    }

    #[test]
    fn a_prediction_is_guessed_from_the_first_token_on_and_taken_up_behind_a_change() {
        let mut drafter = Drafter::new(&[1, 2, 3, 4, 5, 6, 7], &[90, 91]);
        assert_eq!(guess(&drafter, 3), [1, 2, 3]);
        said(&mut drafter, &[1]);
        assert_eq!(guess(&drafter, 3), [2, 3, 4]);
        said(&mut drafter, &[99, 3, 4]);
        assert!(guess(&drafter, 3).is_empty(), "two tokens are too few");
        said(&mut drafter, &[5]);
        assert_eq!(guess(&drafter, 9), [6, 7], "to its end");
    }

    #[test]
    fn what_repeats_itself_goes_on() {
        let mut drafter = Drafter::new(&[], &[1]);
        said(&mut drafter, &[5, 6, 5, 6, 5]);
        assert_eq!(guess(&drafter, 3), [6, 5, 6]);
        said(&mut drafter, &[6, 5, 6, 5]);
        assert_eq!(guess(&drafter, 4), [6, 5, 6, 5], "more than once round");
    }
}
