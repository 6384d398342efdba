//! Whose turn it is: which sequences run, which wait, and which are set aside since nobody reads them.
//!
//! ```text
//! waiting --room in the KV cache, the oldest of the client with the fewest running--> running --> ended
//!    ^                                                                                  |
//!    +---- preempted: the KV cache is full ---------------------------------------------+
//!    +---- read again ---- unread <---- its reader is far behind, and others wait -------+
//! ```

use super::{Cache, Scheduler};
use crate::request::Failure;
use crate::sequence::Sequence;

/// Last turns that are remembered.
const MAX_TURNS: usize = 64;

impl Scheduler {
    /// Ends what nobody listens to any more.
    pub(super) fn forget_those_left(&mut self) {
        let (kv, prefixes) = (&mut self.kv, &mut self.prefixes);
        for mut left in self.running.extract_if(.., |sequence| sequence.is_left()) {
            Cache { kv, prefixes }.end(&mut left);
        }
        self.waiting.retain(|sequence| !sequence.is_left());
        self.unread.retain(|sequence| !sequence.is_left());
    }

    /// Texts that nobody reads give their places to those that wait, and wait again when they are read.
    pub(super) fn set_unread_aside(&mut self) {
        let read_again = self.unread.extract_if(.., |sequence| sequence.is_read_again());
        self.waiting.extend(read_again);
        let mut n_waiting = self.waiting.len();
        let mut index = 0;
        while n_waiting > 0 && index < self.running.len() {
            if self.running[index].is_unread() {
                let mut unread = self.running.remove(index);
                self.preempt(&mut unread);
                self.unread.push(unread);
                n_waiting -= 1;
            } else {
                index += 1;
            }
        }
    }

    /// The waiting sequence that is next: the oldest of the client with the fewest running ones, of such clients the one whose
    /// turn was the longest ago.
    fn next(&self) -> Option<usize> {
        let n_running = |client| self.running.iter().filter(|sequence| sequence.client == client).count();
        let last_turn = |client| self.turns.iter().rposition(|had| *had == client);
        let rank = |index: &usize| {
            let client = self.waiting[*index].client;
            (n_running(client), last_turn(client))
        };
        (0..self.waiting.len()).min_by_key(rank)
    }

    /// Starts waiting sequences whose tokens fit into the cache.
    pub(super) fn admit(&mut self) {
        while self.running.len() < self.config.max_sequences
            && let Some(index) = self.next()
        {
            let next = &self.waiting[index];
            // Reserves one more block per running sequence, or the next token would preempt the new one.
            let needed = self.kv.pages_of(next.ids.len() + 1, self.config.max_rows)
                + self.running.len() * self.kv.pages_per_block();
            let free = || self.kv.free_pages() + self.kv.idle_pages();
            if !self.running.is_empty() && needed > free() {
                return;
            }
            if self.turns.len() == MAX_TURNS {
                self.turns.pop_front();
            }
            self.turns.push_back(next.client);
            self.running.extend(self.waiting.remove(index));
        }
    }

    /// Fails the only running sequence.
    pub(super) fn give_up(&mut self) {
        if let Some(mut oldest) = self.running.pop() {
            self.kv.release(&mut oldest.table);
            // It ends even if nobody listens.
            let _ = oldest.fail(Failure::NoMemory);
        }
    }

    /// Preempts the youngest running sequence, with nothing cached.
    pub(super) fn send_back(&mut self) {
        if let Some(mut youngest) = self.running.pop() {
            self.preempt(&mut youngest);
            self.waiting.push_front(youngest);
        }
    }

    /// Leaves nothing of a sequence cached but what the prefix cache keeps.
    fn preempt(&mut self, sequence: &mut Sequence) {
        Cache { kv: &mut self.kv, prefixes: &mut self.prefixes }.end(sequence);
        sequence.forget_guesses();
        sequence.cached = 0;
    }
}
