//! Which attempts a hub session has sent, and which still owe an answer: bounded memory of [`MAX_REMEMBERED_ATTEMPTS`],
//! enough to tell a late answer from one to an attempt that was never sent.

use std::collections::VecDeque;

use crate::frame::result::AnswerShape;
use crate::id::AttemptId;
use crate::limits::{MAX_OUTSTANDING_ATTEMPTS, MAX_REMEMBERED_ATTEMPTS};

/// The attempts of one session, in the order of their ids.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// `Some` while the answer is owed.
    sent: VecDeque<(AttemptId, Option<AnswerShape>)>,
    outstanding: usize,
    /// The newest attempt that was forgotten: older ids are taken for settled.
    forgotten: Option<AttemptId>,
}

/// The state of an attempt that the peer names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The answer was owed, in this shape; it no longer is.
    Settled(AnswerShape),
    /// It was answered, cancelled or forgotten before.
    Late,
    /// This session never sent it.
    NeverSent,
}

impl Attempts {
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    pub(super) fn is_full(&self) -> bool {
        self.outstanding >= MAX_OUTSTANDING_ATTEMPTS
    }

    /// The last attempt sent.
    pub(super) fn last(&self) -> Option<AttemptId> {
        self.sent.back().map(|(attempt, _)| *attempt)
    }

    /// Forgets everything if nothing is owed: ids have gone on so far that they count as earlier ones.
    pub(super) fn start_over(&mut self) {
        if self.outstanding == 0 {
            *self = Self::default();
        }
    }

    /// Remembers an attempt after [`Attempts::last`], forgetting the oldest if there are too many.
    pub(super) fn insert(&mut self, attempt: AttemptId, shape: AnswerShape) {
        debug_assert!(self.last().is_none_or(|last| attempt.is_after(last)), "ids ascend");
        if self.sent.len() == MAX_REMEMBERED_ATTEMPTS
            && let Some((oldest, owed)) = self.sent.pop_front()
        {
            self.outstanding -= usize::from(owed.is_some());
            self.forgotten = Some(oldest);
        }
        self.sent.push_back((attempt, Some(shape)));
        self.outstanding += 1;
    }

    /// Settles `attempt`: whatever answers it after this is late.
    pub(super) fn settle(&mut self, attempt: AttemptId) -> Lookup {
        // Sorted by distance from the oldest, which wrapping ids do not disturb.
        let Some(oldest) = self.sent.front().map(|(oldest, _)| *oldest) else { return Lookup::NeverSent };
        let distance = |id: AttemptId| id.0.wrapping_sub(oldest.0);
        match self.sent.binary_search_by_key(&distance(attempt), |(id, _)| distance(*id)) {
            Ok(index) => match self.sent[index].1.take() {
                Some(shape) => {
                    self.outstanding -= 1;
                    Lookup::Settled(shape)
                }
                None => Lookup::Late,
            },
            Err(_) if self.forgotten.is_some_and(|newest| !attempt.is_after(newest)) => Lookup::Late,
            Err(_) => Lookup::NeverSent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::frame::reply::Reply;
    use crate::id::{ExpertId, LayerId};

    fn shape() -> AnswerShape {
        AnswerShape {
            layer: LayerId(0),
            hidden: 1,
            dtype: Dtype::F16,
            parts: vec![(ExpertId(0), 1)],
            reply: Reply::Rows,
        }
    }

    #[test]
    fn gaps_were_never_sent_and_forgotten_ones_are_late_across_the_wrap() {
        let mut attempts = Attempts::default();
        assert_eq!(attempts.settle(AttemptId(0)), Lookup::NeverSent);
        let start = u32::MAX - 100;
        let id = |index: usize| AttemptId(start.wrapping_add(2 * index as u32));
        for index in 0..MAX_REMEMBERED_ATTEMPTS + 10 {
            attempts.insert(id(index), shape());
            if index > 20 {
                assert_eq!(attempts.settle(id(index)), Lookup::Settled(shape()));
                assert_eq!(attempts.settle(id(index)), Lookup::Late);
            }
        }
        assert_eq!(attempts.outstanding(), 11, "ten of the 21 that were owed are forgotten");
        assert_eq!(attempts.settle(id(3)), Lookup::Late, "forgotten");
        assert_eq!(attempts.settle(id(10)), Lookup::Settled(shape()), "the oldest still known");
        assert_eq!(attempts.settle(AttemptId(id(200).0.wrapping_add(1))), Lookup::NeverSent, "a gap");
        assert_eq!(attempts.settle(id(MAX_REMEMBERED_ATTEMPTS + 10)), Lookup::NeverSent, "beyond the last");
    }
}
