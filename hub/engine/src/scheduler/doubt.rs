//! What happens when a worker is found to answer wrong after answers of its were used unchecked: nobody knows which of them were
//! wrong, so all that was computed with workers is in doubt.

use std::collections::VecDeque;

use super::Scheduler;
use crate::sequence::Sequence;
use moex_model::Experts;

impl Scheduler {
    /// Whether such an answer was found since the last call. Then nothing stays cached, texts of which nobody has seen anything
    /// begin again, and the others fail.
    pub(super) fn is_in_doubt(&mut self, experts: &dyn Experts) -> bool {
        let n = experts.n_doubts();
        if std::mem::replace(&mut self.n_doubts, n) == n {
            return false;
        }
        self.prefixes.clear(&mut self.kv);
        for sequence in &mut self.running {
            self.kv.release(&mut sequence.table);
        }
        let (context, special) = (self.limits.context, self.text.output.special());
        let again = |sequence: Sequence| match sequence.has_begun() {
            true => sequence.again(context, special),
            false => Some(sequence),
        };
        let all = self.running.drain(..).chain(self.unread.drain(..)).chain(self.waiting.drain(..));
        let again: VecDeque<Sequence> = all.filter_map(again).collect();
        self.waiting = again;
        true
    }
}
