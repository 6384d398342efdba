//! Chooses who answers with rows and who with a digest of them, where two workers have to give the same bits.
//!
//! An item's rows are asked of one worker, unless they are here or under way, and of whoever gives no digests. A worker
//! answers a whole layer one way where that can be: each way takes a message of its own.

use std::collections::BTreeSet;

use moex_protocol::Reply;

use super::Dispatcher;
use super::job::Job;
use crate::ConnectionId;

impl Dispatcher {
    /// Items with their workers and what each is to answer, rows before digests. `has_rows`: whether an item's rows are here or
    /// under way.
    pub(super) fn replies(
        &self,
        job: &Job,
        items: Vec<(usize, Vec<ConnectionId>)>,
        has_rows: impl Fn(usize) -> bool,
    ) -> Vec<(usize, Vec<(ConnectionId, Reply)>)> {
        let gives_digests = |id| self.workers.get(id).is_some_and(|worker| worker.gives_digests);
        choose(items, has_rows, gives_digests, job.layer.reply())
    }
}

fn choose(
    items: Vec<(usize, Vec<ConnectionId>)>,
    has_rows: impl Fn(usize) -> bool,
    gives_digests: impl Fn(ConnectionId) -> bool,
    rows: Reply,
) -> Vec<(usize, Vec<(ConnectionId, Reply)>)> {
    let mut of_rows: BTreeSet<ConnectionId> = BTreeSet::new();
    let mut of_digests = BTreeSet::new();
    let reply = |(item, workers): (usize, Vec<ConnectionId>)| {
        let find = |is_one: &dyn Fn(&ConnectionId) -> bool| workers.iter().copied().find(is_one);
        let with_rows = match has_rows(item) {
            true => None,
            false => find(&|id| !gives_digests(*id))
                .or_else(|| find(&|id| of_rows.contains(id)))
                .or_else(|| find(&|id| !of_digests.contains(id)))
                .or_else(|| workers.first().copied()),
        };
        let reply_of = |id| match Some(id) == with_rows || !gives_digests(id) {
            true => rows,
            false => Reply::Digests,
        };
        let mut replies: Vec<_> = workers.iter().map(|id| (*id, reply_of(*id))).collect();
        for (id, reply) in &replies {
            if *reply == Reply::Digests { &mut of_digests } else { &mut of_rows }.insert(*id);
        }
        replies.sort_by_key(|(_, reply)| *reply == Reply::Digests);
        (item, replies)
    };
    items.into_iter().map(reply).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);
    const C: ConnectionId = ConnectionId(3);
    const ROWS: Reply = Reply::RowsAndProducts;

    #[test]
    fn a_worker_answers_a_layer_one_way_where_that_can_be() {
        let items = vec![(0, vec![A, B]), (1, vec![B, A]), (2, vec![B, C]), (3, vec![A, C])];
        let chosen = choose(items, |_| false, |_| true, ROWS);
        let expected = [
            (0, vec![(A, ROWS), (B, Reply::Digests)]),
            (1, vec![(A, ROWS), (B, Reply::Digests)]),
            (2, vec![(C, ROWS), (B, Reply::Digests)]),
            (3, vec![(A, ROWS), (C, Reply::Digests)]),
        ];
        assert_eq!(chosen, expected);
    }

    #[test]
    fn rows_that_are_here_are_not_asked_for_and_who_gives_no_digests_gives_rows() {
        let digests = Reply::Digests;
        assert_eq!(choose(vec![(4, vec![A])], |_| true, |_| true, ROWS), [(4, vec![(A, digests)])]);
        assert_eq!(choose(vec![(4, vec![A])], |_| false, |_| true, ROWS), [(4, vec![(A, ROWS)])]);
        assert_eq!(choose(vec![(4, vec![A])], |_| true, |_| false, ROWS), [(4, vec![(A, ROWS)])]);
        let chosen = choose(vec![(4, vec![A, B])], |_| false, |id| id == A, ROWS);
        assert_eq!(chosen, [(4, vec![(B, ROWS), (A, digests)])]);
    }
}
