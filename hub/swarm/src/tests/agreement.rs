//! Two workers at different addresses have to agree before an answer is used.

use moex_protocol::{ErrorCode, WorkerId};

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
