//! Workers that lie, and what it takes to find out.

use moex_protocol::{Answer, Beat, Compression, Dispatch, ErrorCode, Heartbeat, WorkerId, tensor};

use super::room::*;
use crate::*;

fn assert_right(room: &mut Room, id: JobId) {
    let sum = room.finished.remove(&id).expect("the job has finished").expect("and well");
    assert_eq!(sum, alone(&job()));
}

/// Twice what is true.
pub(super) fn lie(dispatch: &Dispatch) -> Answer {
    scaled(dispatch, 2.0)
}

/// What is true, times `factor`.
pub(super) fn scaled(dispatch: &Dispatch, factor: f32) -> Answer {
    let mut lie = answer(dispatch);
    for part in &mut lie.parts {
        let mut rows = tensor::decode_rows(dispatch.dtype, &part.payload, HIDDEN).unwrap();
        rows.iter_mut().for_each(|value| *value *= factor);
        let mut payload = Vec::new();
        tensor::encode_rows(dispatch.dtype, &rows, HIDDEN, &mut payload);
        part.payload = payload.into();
    }
    lie
}

fn lie_once(room: &mut Room, worker: ConnectionId) {
    if let Some((attempt, dispatch)) = room.take(worker) {
        room.complete(worker, attempt, lie(&dispatch));
    }
}

/// Both are at the same job: the liar wins it, and the honest one's answer has left before it hears of that.
fn lie_first(room: &mut Room, liar: ConnectionId, honest: &[ConnectionId]) {
    room.start(job());
    for worker in honest {
        let (attempt, dispatch) = room.take(*worker).unwrap();
        room.worker(*worker).is_frozen = true;
        room.complete(*worker, attempt, answer(&dispatch));
    }
    lie_once(room, liar);
    honest.iter().for_each(|worker| room.thaw(*worker));
    room.compute_on_hub();
}

fn quarantined(room: &Room) -> Vec<WorkerId> {
    room.swarm.status().quarantined.iter().map(|quarantined| quarantined.id).collect()
}

#[test]
fn checking_every_answer_lets_no_lie_through_and_quarantines_the_liar() {
    let mut room = Room::new(SwarmConfig { check_every: 1, ..config() });
    let a = room.join(1);
    for _ in 0..2 {
        let id = room.start(job());
        lie_once(&mut room, a);
        assert!(room.finished.is_empty(), "not used before it is checked");
        room.compute_on_hub();
        assert_right(&mut room, id);
    }
    assert_eq!(room.closed, [(a, 1008)]);
    let status = room.swarm.status();
    assert_eq!(status.totals.mismatches, 2);
    assert_eq!((status.workers.len(), status.quarantined.len()), (0, 1));
    let evidence = &status.quarantined[0].evidence;
    assert_eq!((evidence[0].layer, evidence[0].against), (block(1, 0).layer, None));
    assert!((evidence[0].nmse - 1.0).abs() < 1e-2, "{evidence:?}");

    let again = room.join(1);
    assert_eq!(room.worker(again).rejected, Some(ErrorCode::SelfTest));
    let honest = room.join(2);
    assert!(room.swarm.status().workers.len() == 1 && room.worker(honest).rejected.is_none());
}

#[test]
fn an_honest_worker_that_is_always_checked_is_used() {
    let mut room = Room::new(SwarmConfig { check_every: 1, ..config() });
    let (a, b) = (room.join(1), room.join(2));
    let id = room.start(job());
    room.answer(a);
    room.answer(b);
    for _ in 0..2 {
        room.compute_on_hub();
    }
    assert_right(&mut room, id);
    let totals = room.swarm.status().totals;
    assert_eq!((totals.mismatches, totals.timeouts, totals.retries), (0, 0, 0));
    assert!(totals.answers >= 1 && totals.checks >= 1 && totals.compared > 0);
}

/// Three per cent more than what is true: within the tolerance.
fn noise(dispatch: &Dispatch) -> Answer {
    scaled(dispatch, 1.03)
}

#[test]
fn what_the_hub_computes_is_used_and_not_a_workers_answer_within_the_tolerance() {
    let mut room = Room::new(SwarmConfig { check_every: 1, ..config() });
    let a = room.join(1);
    let id = room.start(job());
    let (attempt, dispatch) = room.take(a).unwrap();
    room.complete(a, attempt, noise(&dispatch));
    room.compute_on_hub();
    assert_right(&mut room, id);
    let totals = room.swarm.status().totals;
    assert_eq!((totals.mismatches, totals.answers), (0, 1), "it is no lie, and it counts");
}

#[test]
fn an_answer_checked_by_chance_in_time_is_replaced_by_the_hubs_own() {
    let mut n_replaced = 0;
    for seed in 0..8 {
        let mut room = Room::new(SwarmConfig { check_every: 2, seed, ..config() });
        let (noisy, honest) = (room.join(1), room.join(2));
        let id = room.start(job());
        let (attempt, dispatch) = room.take(noisy).unwrap();
        room.complete(noisy, attempt, noise(&dispatch));
        if room.computes.is_empty() {
            continue;
        }
        n_replaced += 1;
        room.compute_on_hub();
        room.answer(honest);
        assert_right(&mut room, id);
    }
    assert!(n_replaced > 0, "no seed had the answer checked");
}

#[test]
fn two_answers_that_are_not_finite_are_a_quarantine() {
    let mut room = Room::new(SwarmConfig { check_every: 0, ..config() });
    let (a, honest) = (room.join(1), room.join(2));
    let mut n_jobs = 0;
    while quarantined(&room).is_empty() {
        n_jobs += 1;
        assert!(n_jobs < 20, "never found out");
        let id = room.start(job());
        if let Some((attempt, dispatch)) = room.take(a) {
            room.complete(a, attempt, scaled(&dispatch, f32::NAN));
        }
        room.answer(honest);
        room.compute_on_hub();
        assert_right(&mut room, id);
    }
    assert_eq!(quarantined(&room), [WorkerId(1)]);
    let status = room.swarm.status();
    assert_eq!(status.quarantined[0].evidence.len(), 2);
    assert_eq!((status.quarantined[0].evidence[0].nmse, status.totals.mismatches), (f64::MAX, 2));
}

#[test]
fn an_answer_that_is_late_and_not_finite_counts_too() {
    let mut room = Room::new(SwarmConfig { hedge: Hedge::Fixed(2), check_every: 0, ..config() });
    let (a, honest) = (room.join(1), room.join(2));
    for _ in 0..2 {
        let id = room.start(job());
        let (attempt, dispatch) = room.take(a).unwrap();
        room.worker(a).is_frozen = true;
        room.complete(a, attempt, scaled(&dispatch, f32::INFINITY));
        room.answer(honest);
        assert_right(&mut room, id);
        room.thaw(a);
    }
    assert_eq!(quarantined(&room), [WorkerId(1)]);
}

#[test]
fn a_wrong_answer_puts_those_in_doubt_that_its_worker_gave_before_even_if_it_was_not_used() {
    let mut room = Room::new(SwarmConfig { hedge: Hedge::Fixed(2), check_every: 0, ..config() });
    let (liar, honest) = (room.join(1), room.join(2));
    let mut n_doubts = 0;
    for n_found in 1..=2 {
        let id = room.start(job());
        let (attempt, dispatch) = room.take(liar).unwrap();
        room.worker(liar).is_frozen = true;
        room.complete(liar, attempt, scaled(&dispatch, f32::NAN));
        room.answer(honest);
        assert_right(&mut room, id);
        assert_eq!(room.swarm.n_doubts(), n_doubts);
        room.thaw(liar);
        n_doubts = room.swarm.n_doubts();
        assert_eq!(n_doubts, n_found);
    }
    let mut checked = Room::new(SwarmConfig { check_every: 1, ..config() });
    let liar = checked.join(1);
    checked.start(job());
    lie_once(&mut checked, liar);
    checked.compute_on_hub();
    assert_eq!(checked.swarm.status().totals.mismatches, 1);
    assert_eq!(checked.swarm.n_doubts(), 0, "nothing of its was used unchecked");
}

#[test]
fn a_check_by_chance_finds_the_liar_in_time() {
    let mut room = Room::new(SwarmConfig { check_every: 8, seed: 7, ..config() });
    let a = room.join(1);
    let mut n_jobs = 0;
    while quarantined(&room).is_empty() {
        n_jobs += 1;
        assert!(n_jobs < 200, "never found out");
        room.start(job());
        lie_once(&mut room, a);
        room.compute_on_hub();
    }
    assert_eq!(room.finished.len(), n_jobs, "every job has finished");
    assert_eq!(quarantined(&room), [WorkerId(1)]);
}

#[test]
fn a_lie_found_out_while_its_layer_is_in_flight_is_taken_back() {
    let mut n_found = 0;
    for seed in 0..8 {
        let mut room = Room::new(SwarmConfig { check_every: 2, seed, ..config() });
        let (liar, honest) = (room.join(1), room.join(2));
        let id = room.start(job());
        lie_once(&mut room, liar);
        if room.computes.is_empty() {
            continue;
        }
        n_found += 1;
        room.compute_on_hub();
        room.answer(honest);
        assert_right(&mut room, id);
        assert_eq!(room.swarm.status().totals.mismatches, 1);
    }
    assert!(n_found > 0, "no seed had the answer checked");
}

#[test]
fn checks_by_chance_leave_the_honest_alone() {
    let mut room = Room::new(SwarmConfig { check_every: 2, ..config() });
    let a = room.join(1);
    for _ in 0..50 {
        let id = room.start(job());
        room.answer(a);
        assert_right(&mut room, id);
        room.compute_on_hub();
    }
    let totals = room.swarm.status().totals;
    assert!((10..40).contains(&totals.checks), "{totals:?}");
    assert_eq!((totals.mismatches, totals.quarantined, totals.answers), (0, 0, 50));
}

#[test]
fn when_two_disagree_the_hub_decides() {
    let mut room = Room::new(SwarmConfig { hedge: Hedge::Fixed(2), check_every: 0, ..config() });
    let (liar, honest) = (room.join(1), room.join(2));
    lie_first(&mut room, liar, &[honest]);
    let totals = room.swarm.status().totals;
    assert_eq!((totals.late, totals.checks, totals.mismatches), (1, 1, 2), "seen, and decided");
    assert!(quarantined(&room).is_empty(), "once may be a cosmic ray");
    lie_first(&mut room, liar, &[honest]);
    assert_eq!(quarantined(&room), [WorkerId(1)]);
    let id = room.start(job());
    room.answer(honest);
    assert_right(&mut room, id);
}

#[test]
fn without_the_hub_the_one_that_disagrees_with_two_goes() {
    let mut room =
        Room::new(SwarmConfig { hedge: Hedge::Fixed(3), replicas: 3, hub_compute: false, ..config() });
    let (liar, b, c) = (room.join(1), room.join(2), room.join(3));
    lie_first(&mut room, liar, &[b, c]);
    assert_eq!(quarantined(&room), [WorkerId(1)]);
    assert_eq!(room.swarm.status().workers.len(), 2);
}

#[test]
fn duplicates_that_agree_are_compared_and_nothing_else() {
    let mut room = Room::new(SwarmConfig { hedge: Hedge::Fixed(2), check_every: 0, ..config() });
    let (a, b) = (room.join(1), room.join(2));
    let id = room.start(job());
    let (attempt, dispatch) = room.take(b).unwrap();
    room.worker(b).is_frozen = true;
    room.complete(b, attempt, answer(&dispatch));
    room.answer(a);
    assert_right(&mut room, id);
    room.thaw(b);
    let totals = room.swarm.status().totals;
    assert_eq!((totals.late, totals.compared, totals.mismatches, totals.checks), (1, 5, 0, 0));
}

#[test]
fn what_passes_a_limit_is_told_so_and_let_go() {
    let mut room = Room::new(config());
    for id in 0..MAX_CONNECTIONS_PER_ADDRESS as u64 {
        room.swarm.connected(room.now, ConnectionId(id), format!("10.0.0.7:{id}"));
    }
    assert!(room.swarm.poll_action().is_none());
    let one_more = ConnectionId(u64::MAX);
    room.swarm.connected(room.now, one_more, "10.0.0.7:1");
    assert!(matches!(room.swarm.poll_action(), Some(Action::Transmit(to, _)) if to == one_more));
    assert!(matches!(room.swarm.poll_action(), Some(Action::Close(id, 1008)) if id == one_more));
    room.swarm.connected(room.now, ConnectionId(u64::MAX - 1), "10.0.0.8:1");
    assert!(room.swarm.poll_action().is_none(), "another address");
    assert_eq!(room.swarm.status().totals.limited, 1);
}

#[test]
fn a_flood_of_messages_ends_its_session_alone() {
    let mut room = Room::new(config());
    let (a, b) = (room.join(1), room.join(2));
    let beat = Heartbeat::Beat(Beat::default()).encode(Compression::Off);
    for _ in 0..49_000 {
        room.swarm.handle_message(room.now, a, beat.clone());
    }
    assert!(room.closed.is_empty());
    for _ in 0..1_100 {
        room.swarm.handle_message(room.now, a, beat.clone());
    }
    room.step();
    assert_eq!(room.closed, [(a, 1008)]);
    assert_eq!(room.swarm.status().totals.limited, 1);
    let id = room.start(job());
    room.answer(b);
    assert_right(&mut room, id);
}
