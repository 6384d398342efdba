//! How much of the model a worker gets whose key has not proven itself.

use std::time::Duration;

use super::room::*;
use super::trust::lie;
use crate::*;

const N_BLOCKS: usize = (N_LAYERS * N_EXPERTS) as usize;

/// Answers are checked before they are used, and a key is proven by ten true ones.
fn blocking() -> SwarmConfig {
    let probation = Probation { items: 10, ..Probation::default() };
    SwarmConfig { verify: Verify::Blocking, check_every: 0, replicas: 2, probation, ..config() }
}

fn on_probation(room: &Room) -> Vec<u128> {
    room.swarm.status().workers.iter().filter(|w| w.is_on_probation).map(|w| w.id.0).collect()
}

fn assigned(room: &Room, ids: impl Fn(u128) -> bool) -> usize {
    room.swarm.status().workers.iter().filter(|w| ids(w.id.0)).map(|w| w.blocks_assigned).sum()
}

/// The workers answer layer after layer.
fn work(room: &mut Room, workers: &[ConnectionId]) {
    for _ in 0..8 {
        room.start(job());
        workers.iter().for_each(|worker| room.answer(*worker));
        room.compute_on_hub();
    }
}

/// A worker that is alone proves itself and leaves. Its id.
fn proven(room: &mut Room, id: u128) -> u128 {
    let worker = room.join_new(id, |_| {}, true);
    work(room, &[worker]);
    room.close(worker);
    id
}

#[test]
fn in_a_room_just_opened_nobody_is_bounded_and_proving_oneself_moves_nothing() {
    let mut room = Room::new(blocking());
    let workers: Vec<_> = (1..=3).map(|id| room.join(id)).collect();
    assert!(on_probation(&room).is_empty());
    let told = |room: &mut Room| {
        let n = |w: &ConnectionId| {
            let worker = room.worker(*w);
            worker.told_to_hold().len() + worker.told_to_drop().len()
        };
        workers.iter().map(n).sum::<usize>()
    };
    let before = told(&mut room);
    work(&mut room, &workers);
    room.advance(Duration::from_secs(2));
    assert_eq!(told(&mut room), before);
}

#[test]
fn new_keys_together_hold_one_replica_of_a_fourth_until_each_has_proven_itself() {
    let mut room = Room::new(blocking());
    let known = [proven(&mut room, 1), proven(&mut room, 2)].map(|id| room.join(id));
    assert!(on_probation(&room).is_empty(), "a key that has proven itself comes back as it left");
    let new: Vec<_> = (11..=15).map(|id| room.join(id)).collect();
    assert_eq!(on_probation(&room), [11, 12, 13, 14, 15]);
    let share = assigned(&room, |id| id > 10);
    assert!((1..=N_BLOCKS / 4).contains(&share), "{share}");
    assert_eq!(assigned(&room, |_| true), 2 * N_BLOCKS);
    // The others leave: what was bounded is not any more.
    known.iter().for_each(|worker| room.close(*worker));
    assert_eq!(assigned(&room, |id| id > 10), 2 * N_BLOCKS);
    work(&mut room, &new);
    assert!(on_probation(&room).len() < 5, "who answered has proven itself");
}

#[test]
fn a_worker_found_wrong_has_to_prove_itself_again_when_it_comes_back() {
    let mut room = Room::new(SwarmConfig { verify: Verify::Audit, check_every: 1, ..blocking() });
    let (liar, honest) = (proven(&mut room, 1), proven(&mut room, 2));
    let connection = room.join_new(liar, |_| {}, true);
    room.start(job());
    let (attempt, dispatch) = room.take(connection).unwrap();
    room.complete(connection, attempt, lie(&dispatch));
    room.compute_on_hub();
    assert_eq!(room.swarm.status().totals.mismatches, 1);
    room.close(connection);
    room.join(honest);
    assert!(on_probation(&room).is_empty());
    room.join(liar);
    assert_eq!(on_probation(&room), [liar]);
}

#[test]
fn where_nobody_checks_nobody_is_bounded() {
    let mut room = Room::new(SwarmConfig { verify: Verify::Audit, check_every: 0, ..blocking() });
    let first = [room.join(1), room.join(2)];
    work(&mut room, &first);
    room.join(3);
    assert!(on_probation(&room).is_empty());
    assert_eq!(assigned(&room, |_| true), 2 * N_BLOCKS);
}
