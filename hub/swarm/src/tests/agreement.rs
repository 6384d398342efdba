//! Two workers at different addresses have to agree before an answer is used.

use moex_protocol::{AttemptId, Dispatch, ErrorCode, Reply, WorkerId};

use super::room::*;
use super::trust::{lie, scaled};
use crate::*;

fn exact() -> SwarmConfig {
    SwarmConfig { verify: Verify::Exact, check_every: 0, replicas: 3, ..config() }
}

/// Workers with these ids, each at an address of its own.
fn room(ids: &[u128]) -> (Room, Vec<ConnectionId>) {
    let mut room = Room::new(exact());
    let workers = ids.iter().map(|id| join_at(&mut room, *id, &format!("10.0.0.{id}:7"))).collect();
    (room, workers)
}

fn join_at(room: &mut Room, id: u128, address: &str) -> ConnectionId {
    room.address = address.to_owned();
    room.join(id)
}

#[test]
fn one_answer_is_none_and_two_that_agree_are_one() {
    let (mut room, workers) = room(&[1, 2]);
    let id = room.start(job());
    room.answer(workers[0]);
    assert!(!room.finished.contains_key(&id), "one address has answered");
    room.answer(workers[1]);
    assert_eq!(room.finished[&id], Ok(alone(&job())));
    assert!(room.computes.is_empty(), "the hub has computed nothing");
    let status = room.swarm.status();
    let rows: Vec<u64> = status.workers.iter().map(|worker| worker.rows).collect();
    assert_eq!(rows, [6, 6], "both are credited with what they agreed about");
    assert_eq!((status.totals.hedge_wins, status.totals.retries, status.totals.mismatches), (0, 0, 0));
    assert!(status.workers.iter().all(|worker| worker.reason.is_none()), "{:?}", status.workers);
}

#[test]
fn two_workers_at_one_address_are_one() {
    let mut room = Room::new(exact());
    let pair = [1, 2].map(|id| join_at(&mut room, id, &format!("10.0.0.1:{id}")));
    let reason = room.swarm.status().workers[0].reason.clone().unwrap();
    assert!(reason.contains("a worker at another address"), "{reason}");
    let id = room.start(job());
    for worker in pair {
        room.answer(worker);
    }
    assert!(!room.finished.contains_key(&id));
    room.compute_on_hub();
    assert_eq!(room.finished[&id], Ok(alone(&job())));
    // With a third at another address, nothing is asked of both.
    let other = join_at(&mut room, 3, "10.0.0.2:1");
    let id = room.start(job());
    let asked: usize = pair.iter().map(|worker| asked_pairs(&mut room, *worker)).sum();
    assert_eq!(asked, 6);
    room.answer(other);
    assert_eq!(room.finished[&id], Ok(alone(&job())));
}

/// Answers what a worker is asked; how many pairs that were.
fn asked_pairs(room: &mut Room, worker: ConnectionId) -> usize {
    let mut n_pairs = 0;
    while let Some((attempt, dispatch)) = room.take(worker) {
        n_pairs += dispatch.n_pairs();
        room.complete(worker, attempt, answer(&dispatch));
    }
    n_pairs
}

#[test]
fn what_they_disagree_about_is_computed_by_the_hub_and_the_liar_is_caught() {
    let (mut room, workers) = room(&[1, 2]);
    for (n, liar) in workers.iter().enumerate() {
        let id = room.start(job());
        let (attempt, dispatch) = room.take(*liar).unwrap();
        // Below what honest kernels differ by: no proof of anything, and not used.
        room.complete(*liar, attempt, scaled(&dispatch, 1.001));
        room.answer(*liar);
        room.answer(workers[1 - n]);
        assert!(!room.finished.contains_key(&id));
        room.compute_on_hub();
        assert_eq!(room.finished[&id], Ok(alone(&job())));
    }
    assert_eq!(room.swarm.status().totals.mismatches, 0);

    let id = room.start(job());
    room.answer(workers[0]);
    while let Some((attempt, dispatch)) = room.take(workers[1]) {
        room.complete(workers[1], attempt, lie(&dispatch));
    }
    room.compute_on_hub();
    assert_eq!(room.finished[&id], Ok(alone(&job())));
    let status = room.swarm.status();
    assert_eq!((status.quarantined.len(), status.quarantined[0].id), (1, WorkerId(2)));
}

#[test]
fn who_fails_or_leaves_is_replaced_by_another_address_or_else_by_the_hub() {
    let (mut room, workers) = room(&[1, 2, 3]);
    let id = room.start(job());
    let failing: Vec<_> = workers.iter().copied().filter(|worker| is_asked(&mut room, *worker)).collect();
    assert!(failing.len() > 1, "{failing:?}");
    room.fail(failing[0], ErrorCode::OutOfMemory);
    for worker in &workers {
        room.answer(*worker);
    }
    for worker in &workers {
        room.answer(*worker);
    }
    assert_eq!(room.finished[&id], Ok(alone(&job())));
    assert!(room.computes.is_empty(), "the third address took its place");

    let id = room.start(job());
    room.answer(workers[0]);
    room.close(workers[1]);
    room.close(workers[2]);
    room.answer(workers[0]);
    room.compute_on_hub();
    assert_eq!(room.finished[&id], Ok(alone(&job())));
    assert_eq!(room.swarm.status().totals.mismatches, 0);
}

/// Whether a worker has something to answer.
fn is_asked(room: &mut Room, worker: ConnectionId) -> bool {
    room.worker(worker).session.queue_depth() > 0
}

/// Where honest workers give the same bits, one of two is asked for digests.
fn with_digests() -> SwarmConfig {
    let mut config = exact();
    config.model.activations = "int8".to_owned();
    config
}

fn digest_room(config: SwarmConfig, ids: &[u128]) -> (Room, Vec<ConnectionId>) {
    let mut room = Room::new(config);
    let workers = ids.iter().map(|id| join_at(&mut room, *id, &format!("10.0.0.{id}:7"))).collect();
    (room, workers)
}

/// What each of these workers is asked, which is one message: who is to answer with rows first.
fn asked(room: &mut Room, workers: &[ConnectionId]) -> Vec<(ConnectionId, AttemptId, Dispatch)> {
    let mut asked: Vec<_> = workers
        .iter()
        .map(|worker| {
            let (attempt, dispatch) = room.take(*worker).unwrap();
            assert!(room.take(*worker).is_none(), "one message");
            (*worker, attempt, dispatch)
        })
        .collect();
    asked.sort_by_key(|(.., dispatch)| dispatch.reply == Reply::Digests);
    let replies: Vec<_> = asked.iter().map(|(.., dispatch)| dispatch.reply).collect();
    assert_eq!(
        (replies[0], &replies[1..]),
        (Reply::RowsAndProducts, &vec![Reply::Digests; workers.len() - 1][..])
    );
    asked
}

fn complete(room: &mut Room, (worker, attempt, dispatch): &(ConnectionId, AttemptId, Dispatch)) {
    room.complete(*worker, *attempt, answer(dispatch));
}

#[test]
fn rows_and_a_digest_of_them_agree_whichever_comes_first() {
    let (mut room, workers) = digest_room(with_digests(), &[1, 2]);
    for digest_is_first in [false, true] {
        let id = room.start(job());
        let [rows, digests] = asked(&mut room, &workers).try_into().unwrap();
        let (first, second) = if digest_is_first { (digests, rows) } else { (rows, digests) };
        complete(&mut room, &first);
        assert!(!room.finished.contains_key(&id), "one address has answered");
        complete(&mut room, &second);
        assert_eq!(room.finished[&id], Ok(alone(&job())));
        let answers = room.results[&id].unchecked();
        assert!(
            answers.map(|part| part.products.len()).all(|n_bytes| n_bytes > 0),
            "rows with products are used"
        );
    }
    assert!(room.computes.is_empty(), "the hub has computed nothing");
    let status = room.swarm.status();
    let rows: Vec<u64> = status.workers.iter().map(|worker| worker.rows).collect();
    assert_eq!(rows, [12, 12], "both are credited with what they agreed about");
    assert_eq!((status.totals.hedge_wins, status.totals.retries, status.totals.mismatches), (0, 0, 0));
}

#[test]
fn a_false_digest_or_false_rows_are_a_dispute_and_the_liar_is_caught() {
    for (liar, liar_is_first) in [(0, true), (0, false), (1, true), (1, false)] {
        let (mut room, workers) = digest_room(with_digests(), &[1, 2]);
        let id = room.start(job());
        let asked = asked(&mut room, &workers);
        if !liar_is_first {
            complete(&mut room, &asked[1 - liar]);
        }
        let (worker, attempt, dispatch) = &asked[liar];
        // By less than honest kernels differ in f32: with int8 activations a bit is proof.
        room.complete(*worker, *attempt, scaled(dispatch, 1.001));
        if liar_is_first {
            complete(&mut room, &asked[1 - liar]);
        }
        assert!(!room.finished.contains_key(&id));
        room.compute_on_hub();
        assert_eq!(room.finished[&id], Ok(alone(&job())));
        let status = room.swarm.status();
        let is_liar = |quarantined: &WorkerId| workers[quarantined.0 as usize - 1] == *worker;
        let caught: Vec<_> = status.quarantined.iter().map(|worker| worker.id).collect();
        assert!(caught.len() == 1 && is_liar(&caught[0]), "{caught:?}");
    }
}

#[test]
fn rows_that_are_lost_are_asked_for_again_or_computed_by_the_hub() {
    for has_third in [false, true] {
        let (mut room, workers) = digest_room(with_digests(), &[1, 2]);
        let id = room.start(job());
        let [rows, digests] = asked(&mut room, &workers).try_into().unwrap();
        let third = has_third.then(|| join_at(&mut room, 3, "10.0.0.3:7"));
        complete(&mut room, &digests);
        room.close(rows.0);
        if let Some(third) = third {
            let again = asked(&mut room, &[third]);
            assert!(room.computes.is_empty(), "the third address took its place");
            complete(&mut room, &again[0]);
        }
        assert_eq!(room.finished.contains_key(&id), has_third);
        room.compute_on_hub();
        assert_eq!(room.finished[&id], Ok(alone(&job())));
        assert_eq!(room.swarm.status().totals.mismatches, 0);
    }
}

#[test]
fn a_digest_that_is_lost_is_asked_for_again_while_the_rows_are_here() {
    let (mut room, workers) = digest_room(with_digests(), &[1, 2]);
    let id = room.start(job());
    let [rows, digests] = asked(&mut room, &workers).try_into().unwrap();
    let third = join_at(&mut room, 3, "10.0.0.3:7");
    complete(&mut room, &rows);
    room.close(digests.0);
    let (attempt, dispatch) = room.take(third).unwrap();
    assert_eq!(dispatch.reply, Reply::Digests);
    complete(&mut room, &(third, attempt, dispatch));
    assert_eq!(room.finished[&id], Ok(alone(&job())));
    assert!(room.computes.is_empty());
}

#[test]
fn two_digests_settle_nothing() {
    let config = SwarmConfig { hedge: Hedge::Fixed(3), ..with_digests() };
    let (mut room, workers) = digest_room(config, &[1, 2, 3]);
    let id = room.start(job());
    let asked = asked(&mut room, &workers);
    complete(&mut room, &asked[1]);
    room.close(asked[0].0);
    complete(&mut room, &asked[2]);
    assert!(!room.finished.contains_key(&id), "nobody has sent rows");
    room.compute_on_hub();
    assert_eq!(room.finished[&id], Ok(alone(&job())));
    assert_eq!(room.swarm.status().totals.mismatches, 0);
}

#[test]
fn a_late_false_digest_is_compared_with_what_was_used() {
    let config = SwarmConfig { hedge: Hedge::Fixed(3), ..with_digests() };
    let (mut room, workers) = digest_room(config, &[1, 2, 3]);
    let id = room.start(job());
    let asked = asked(&mut room, &workers);
    // It reads nothing meanwhile, neither the cancellation.
    room.worker(asked[2].0).is_frozen = true;
    complete(&mut room, &asked[0]);
    complete(&mut room, &asked[1]);
    assert_eq!(room.finished[&id], Ok(alone(&job())));
    let (worker, attempt, dispatch) = &asked[2];
    let now = room.now;
    room.worker(*worker).session.complete(now, *attempt, scaled(dispatch, 1.001)).unwrap();
    room.thaw(*worker);
    room.compute_on_hub();
    let status = room.swarm.status();
    let liar = WorkerId(workers.iter().position(|id| id == worker).unwrap() as u128 + 1);
    assert_eq!(status.quarantined.iter().map(|worker| worker.id).collect::<Vec<_>>(), [liar]);
}

#[test]
fn who_gives_no_digests_or_other_bits_is_asked_for_rows() {
    let edits: [fn(&mut moex_protocol::Join); 2] =
        [|join| join.gives_digests = false, |join| join.backend = "vulkan".to_owned()];
    for edit in edits {
        let mut room = Room::new(with_digests());
        let workers = [1, 2].map(|id| {
            room.address = format!("10.0.0.{id}:7");
            room.join_with(
                id,
                |join| {
                    if id == 1 {
                        edit(join);
                    }
                },
                true,
            )
        });
        let id = room.start(job());
        let asked = asked(&mut room, &workers);
        assert_eq!(asked[0].0, workers[0]);
        asked.iter().for_each(|asked| complete(&mut room, asked));
        assert_eq!(room.finished[&id], Ok(alone(&job())));
    }
    // With f32 activations kernels differ in the last bits.
    let (mut room, workers) = room(&[1, 2]);
    room.start(job());
    let replies = workers.iter().map(|worker| room.take(*worker).unwrap().1.reply);
    assert_eq!(replies.collect::<Vec<_>>(), [Reply::RowsAndProducts; 2]);
}
