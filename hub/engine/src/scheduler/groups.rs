//! The rows of a step in groups, and what is wanted of their logits.

use moex_model::{Draw, Span, WantedLogits};
use smallvec::{SmallVec, smallvec};

use super::Sequence;

/// Steps with at most this many sequences, in few groups, allocate nothing.
const FEW_SEQUENCES: usize = 4;
/// See [`FEW_SEQUENCES`].
pub(super) const FEW_GROUPS: usize = 2;

/// Rows that go through the layers together.
#[derive(Default)]
pub(super) struct Group<'a> {
    /// By sequence.
    pub(super) spans: SmallVec<[Span<'a>; FEW_SEQUENCES]>,
    /// (W), how tokens are drawn from all logits of the rows that want any; empty if none is.
    pub(super) draws: SmallVec<[Draw; FEW_SEQUENCES]>,
}

/// How many of each row's best logits are enough for all sequences that want logits of the step; 0 if some need all.
pub(super) fn n_best(running: &[Sequence], chunks: &[usize]) -> usize {
    let wants = |(sequence, n): &(&Sequence, &usize)| {
        **n > 0 && (**n >= sequence.n_pending() || sequence.tells_prompt())
    };
    let wanting = running.iter().zip(chunks).filter(wants);
    let most = wanting.map(|(sequence, _)| sequence.n_best()).try_fold(0, |most, n| Some(most.max(n?)));
    most.unwrap_or(0)
}

/// Splits the step's rows into groups of at most `max_rows`, in the order of the sequences.
pub(super) fn groups<'a>(
    running: &'a [Sequence],
    chunks: &[usize],
    max_rows: usize,
) -> SmallVec<[Group<'a>; FEW_GROUPS]> {
    let mut groups: SmallVec<[Group<'a>; FEW_GROUPS]> = smallvec![Group::default()];
    let mut n_rows = 0;
    for (sequence, &n) in running.iter().zip(chunks) {
        let mut done = 0;
        let mut draws = sequence.draws();
        while done < n {
            if n_rows == max_rows {
                groups.push(Group::default());
                n_rows = 0;
            }
            let part = (n - done).min(max_rows - n_rows);
            let start = sequence.cached + done;
            done += part;
            n_rows += part;
            // The last token's logits belong to the next token.
            let (wanted, n_wanted) = match done == n && n >= sequence.n_pending() {
                _ if sequence.n_guesses() > 0 || sequence.tells_prompt() => (WantedLogits::All, part),
                true => (WantedLogits::Last, 1),
                false => (WantedLogits::Nothing, 0),
            };
            let span = Span { ids: &sequence.ids[start..][..part], start, table: &sequence.table, wanted };
            if let Some(group) = groups.last_mut() {
                group.spans.push(span);
                group.draws.extend(draws.by_ref().take(n_wanted));
            }
        }
    }
    for group in &mut groups {
        if group.draws.iter().all(|draw| *draw == Draw::NOTHING) {
            group.draws.clear();
        }
    }
    groups
}
