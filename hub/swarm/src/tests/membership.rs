//! Who may join, who holds what, and how blocks move.

use std::collections::BTreeSet;
use std::time::Duration;

use moex_protocol::ErrorCode;

use super::room::*;
use crate::*;

const N_BLOCKS: usize = (N_LAYERS * N_EXPERTS) as usize;

#[test]
fn without_the_token_there_is_no_joining() {
    let mut room = Room::new(config());
    let a = room.join_with(1, |join| join.token = "guess".to_owned(), true);
    assert_eq!(room.worker(a).rejected, Some(ErrorCode::Unauthorized));
    assert_eq!(room.closed, [(a, 1008)]);
    assert!(room.swarm.status().workers.is_empty());
}

#[test]
fn a_hub_is_alone_until_a_worker_has_joined() {
    let mut room = Room::new(config());
    assert!(room.swarm.is_alone(room.now));
    let stranger = room.join_with(1, |join| join.token = "guess".to_owned(), true);
    assert!(room.swarm.is_alone(room.now), "a stranger's connection changes nothing");
    room.close(stranger);
    let worker = room.join(2);
    assert!(!room.swarm.is_alone(room.now));
    room.close(worker);
    assert!(room.swarm.is_alone(room.now));
}

#[test]
fn a_failed_self_test_and_a_budget_of_nothing_are_turned_away() {
    let mut room = Room::new(config());
    let a = room.join_with(1, |join| join.self_test.passed = false, true);
    let b = room.join_with(2, |join| join.memory_budget_bytes = BLOCK_BYTES - 1, true);
    assert_eq!(room.worker(a).rejected, Some(ErrorCode::SelfTest));
    assert_eq!(room.worker(b).rejected, Some(ErrorCode::OutOfMemory));
    assert_eq!(room.closed.len(), 2);
}

#[test]
fn the_budget_is_a_hard_bound() {
    let mut room = Room::new(config());
    let a = room.join_with(1, |join| join.memory_budget_bytes = 5 * BLOCK_BYTES + 1, true);
    assert_eq!(room.worker(a).told_to_hold().len(), 5);
    let status = room.swarm.status();
    assert_eq!((status.coverage.covered, status.coverage.blocks), (5, N_BLOCKS));
    assert_eq!(status.workers[0].bytes_resident, 5 * BLOCK_BYTES);
}

#[test]
fn first_replicas_are_loaded_first() {
    let mut room = Room::new(config());
    let a = room.join_with(1, |_| {}, false);
    room.join(2);
    let all: BTreeSet<_> = room.worker(a).told_to_hold().into_iter().collect();
    assert_eq!(all.len(), N_BLOCKS, "with two workers and two replicas each holds all");
    assert_eq!(room.swarm.status().coverage.covered, N_BLOCKS, "by the one that loads");
}

#[test]
fn a_join_moves_blocks_behind_the_traffic() {
    let mut room = Room::new(SwarmConfig { replicas: 1, hub_compute: false, ..config() });
    let a = room.join(1);
    let b = room.join_with(2, |_| {}, false);
    let moving = room.worker(b).told_to_hold();
    assert!(!moving.is_empty() && moving.len() < N_BLOCKS);
    assert!(room.worker(a).told_to_drop().is_empty(), "nothing is dropped before the new holder has it");
    room.report(b, moving[..1].to_vec());
    assert_eq!(room.worker(a).told_to_drop(), moving[..1]);
    room.report(b, moving[1..].to_vec());
    assert_eq!(room.worker(a).told_to_drop().len(), moving.len());
    assert_eq!(room.swarm.status().coverage.covered, N_BLOCKS);
}

#[test]
fn a_leave_moves_blocks_and_a_return_brings_them_back() {
    let mut room = Room::new(SwarmConfig { replicas: 1, ..config() });
    let (a, b) = (room.join(1), room.join(2));
    let of_b: BTreeSet<_> = room.worker(b).told_to_hold().into_iter().collect();
    room.close(b);
    assert_eq!(room.swarm.status().coverage.covered, N_BLOCKS, "the first one took them over");
    let dropped = room.worker(a).told_to_drop().len();
    let b = room.join(2);
    let again: BTreeSet<_> = room.worker(b).told_to_hold().into_iter().collect();
    assert_eq!(again, of_b);
    assert_eq!(room.worker(a).told_to_drop().len(), dropped + of_b.len());
}

#[test]
fn a_worker_id_that_joins_again_replaces_its_old_connection() {
    let mut room = Room::new(config());
    let old = room.join(1);
    let id = room.start(job());
    let new = room.join(1);
    assert_eq!(room.closed, [(old, close_code::REPLACED)]);
    assert_eq!(room.swarm.status().workers.len(), 1);
    room.answer(new);
    room.compute_on_hub();
    assert!(room.finished[&id].is_ok());
}

#[test]
fn blocks_that_fail_to_load_go_to_another_worker() {
    let mut room = Room::new(SwarmConfig { replicas: 1, ..config() });
    let (a, b) = (room.join_with(1, |_| {}, false), room.join(2));
    let of_b = room.worker(b).told_to_hold();
    let of_a = room.worker(a).told_to_hold();
    let stuck = of_a.into_iter().find(|block| !of_b.contains(block)).unwrap();
    for failure in 1..=3 {
        let n_asked = room.worker(a).told_to_hold().iter().filter(|block| **block == stuck).count();
        assert_eq!(n_asked, failure, "again, after a while");
        let now = room.now;
        let failed = vec![(stuck, "hash mismatch".to_owned())];
        let report = moex_protocol::BlockReport { failed, ..Default::default() };
        room.worker(a).session.report_blocks(now, report);
        room.advance(Duration::from_secs(7));
    }
    assert!(room.worker(b).told_to_hold().contains(&stuck));
}

#[test]
fn a_worker_that_fails_every_load_moves_nobody_elses_blocks() {
    let mut room = Room::of(config(), catalog(24, 64));
    let budget = 900 * BLOCK_BYTES;
    let honest: Vec<_> =
        (1..=4).map(|id| room.join_with(id, |join| join.memory_budget_bytes = budget, true)).collect();
    room.advance(Duration::from_secs(1));
    let moves = |room: &mut Room| -> usize {
        let told = |worker: &ConnectionId| {
            let worker = room.worker(*worker);
            worker.told_to_hold().len() + worker.told_to_drop().len()
        };
        honest.iter().map(told).sum()
    };
    let before = moves(&mut room);
    let bad = room.join_with(9, |_| {}, false);
    room.worker(bad).fails_loads = true;
    let failed = room.worker(bad).told_to_hold().into_iter().map(|block| (block, "no".to_owned())).collect();
    let report = moex_protocol::BlockReport { failed, ..Default::default() };
    let now = room.now;
    room.worker(bad).session.report_blocks(now, report);
    room.step();
    for _ in 0..120 {
        room.advance(Duration::from_secs(1));
        assert_eq!(room.swarm.status().coverage.covered, 24 * 64);
    }
    let (moved, n_asked) = (moves(&mut room) - before, room.worker(bad).told_to_hold().len());
    // Some come and go with the join itself, of the 3,072 copies that are held.
    assert!(moved < 200, "{moved} blocks of the others were moved");
    assert!(n_asked < 4 * 600, "the worker was asked for {n_asked} blocks within two minutes");
}

#[test]
fn placement_is_not_recomputed_more_often_than_its_pace() {
    let mut room = Room::of(config(), catalog(4, 16));
    room.join(1);
    for id in 0..500 {
        let worker = room.join(1_000 + id);
        room.close(worker);
    }
    assert!(room.swarm.poll_timeout().is_some_and(|at| at <= room.now + Duration::from_millis(126)));
    room.advance(Duration::from_secs(1));
    assert_eq!(room.swarm.status().coverage.covered, 64);
}

#[test]
fn a_silent_worker_is_let_go() {
    let mut room = Room::new(config());
    let a = room.join(1);
    room.worker(a).is_frozen = true;
    room.advance_millis(60_000);
    assert_eq!(room.closed.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [a]);
    assert!(room.swarm.status().workers.is_empty());
    assert_eq!(room.swarm.poll_timeout(), None, "nothing is left of it");
}

/// What a thousand joins one after another cost is the time that the runner prints for it.
#[test]
fn a_thousand_workers_join_a_catalog_of_6144() {
    let mut room = Room::of(config(), catalog(48, 128));
    for id in 1..=1_000 {
        room.join_with(id, |join| join.memory_budget_bytes = 1_000 * BLOCK_BYTES, true);
    }
    room.advance(Duration::from_secs(1));
    let status = room.swarm.status();
    assert_eq!((status.workers.len(), status.coverage.covered), (1_000, 6_144));
}
