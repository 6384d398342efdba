//! One fault a test: what it costs, who takes over, and what is counted.

use std::time::Duration;

use half::f16;
use moex_protocol::{ErrorCode, Join, Visibility};

use super::room::*;
use crate::*;

/// Two workers that both hold everything. The job's work items are shared between them.
fn two(config: SwarmConfig) -> (Room, ConnectionId, ConnectionId) {
    let mut room = Room::new(config);
    let (a, b) = (room.join(1), room.join(2));
    (room, a, b)
}

fn assert_right(room: &mut Room, id: JobId) {
    let sum = room.finished.remove(&id).expect("the job has finished").expect("and well");
    assert_eq!(sum, alone(&job()));
}

#[test]
fn silence_costs_one_timeout_and_another_replica_answers() {
    let (mut room, a, b) = two(config());
    room.worker(a).is_frozen = true;
    let id = room.start(job());
    room.answer(b);
    assert!(room.finished.is_empty());
    room.advance_millis(499);
    assert!(room.take(b).is_none());
    room.advance_millis(2);
    room.answer(b);
    assert_right(&mut room, id);
    let totals = room.swarm.status().totals;
    assert_eq!((totals.timeouts, totals.retries, totals.hub_computed), (1, 1, 0));

    room.thaw(a);
    room.answer(a);
    assert_eq!(
        room.worker(a).session.queue_depth(),
        0,
        "the attempt that was not needed any more was cancelled"
    );
}

#[test]
fn an_answer_after_the_timeout_is_still_taken_if_it_is_the_first() {
    let (mut room, a, b) = two(config());
    let id = room.start(job());
    room.answer(b);
    room.advance_millis(600);
    assert!(room.take(b).is_some(), "b was asked again, and hangs");
    room.answer(a);
    assert_right(&mut room, id);
}

#[test]
fn the_hub_is_the_last_replica() {
    let mut room = Room::new(config());
    let a = room.join(1);
    let id = room.start(job());
    assert!(room.computes.is_empty());
    room.advance_millis(600);
    assert_eq!(room.computes.len(), 1, "nobody else holds it");
    room.compute_on_hub();
    assert_right(&mut room, id);
    room.answer(a);
    let status = room.swarm.status();
    assert_eq!((status.totals.hub_computed, status.hub.rows, status.hub.dispatches), (1, 6, 1));
    assert_eq!(status.workers[0].answers, 0);
}

#[test]
fn the_hub_computes_at_once_what_nobody_holds() {
    let mut room = Room::new(config());
    let id = room.start(job());
    assert_eq!(room.computes.len(), 1);
    room.compute_on_hub();
    assert_right(&mut room, id);
}

#[test]
fn the_first_of_two_copies_wins_and_the_other_is_cancelled() {
    let (mut room, a, b) = two(SwarmConfig { hedge: Hedge::Fixed(2), ..config() });
    let id = room.start(job());
    let late = room.take(b).unwrap();
    assert_eq!(late.1.calls.len(), 5, "each was asked for every item");
    room.answer(a);
    assert_right(&mut room, id);
    assert_eq!(room.worker(b).session.queue_depth(), 0, "b was told to forget it");
    let totals = room.swarm.status().totals;
    assert_eq!(
        (totals.hedges, totals.retries, totals.dispatches),
        (2, 0, 2),
        "either message carries copies"
    );
}

#[test]
fn a_preempted_attempt_goes_to_another_without_a_strike() {
    let (mut room, a, b) = two(SwarmConfig { max_failures: 1, ..config() });
    let id = room.start(job());
    room.answer(b);
    room.fail(a, ErrorCode::Preempted);
    room.answer(b);
    assert_right(&mut room, id);
    assert!(room.swarm.status().workers.iter().all(|worker| worker.state == "serving"));
}

#[test]
fn a_block_that_is_not_there_is_asked_of_another_and_loaded_again() {
    let (mut room, a, b) = two(config());
    let id = room.start(job());
    room.answer(b);
    let before = room.worker(a).told_to_hold().len();
    let (_, dispatch) = {
        let (attempt, dispatch) = room.take(a).unwrap();
        let now = room.now;
        room.worker(a).session.fail(now, attempt, ErrorCode::NotResident, "gone");
        room.step();
        (attempt, dispatch)
    };
    let again = room.worker(a).told_to_hold().split_off(before);
    assert_eq!(again.len(), dispatch.calls.len());
    room.answer(b);
    assert_right(&mut room, id);
}

#[test]
fn a_closed_socket_costs_no_time() {
    let (mut room, a, b) = two(config());
    let id = room.start(job());
    let before = room.now;
    room.close(a);
    room.answer(b);
    assert_right(&mut room, id);
    assert_eq!(room.now, before);
    assert_eq!(room.swarm.status().totals.timeouts, 0);
}

/// The placement of a large model takes milliseconds, and each survivor's new share is a long message.
#[test]
fn what_a_closed_socket_leaves_undone_is_asked_of_others_before_the_placement_changes() {
    let mut room = Room::of(config(), catalog(48, 128));
    let budget = |join: &mut Join| join.memory_budget_bytes = 3_500 * BLOCK_BYTES;
    let workers: Vec<_> = (1..=4).map(|id| room.join_with(id, budget, true)).collect();
    room.advance(Duration::from_secs(1));
    room.start(job());
    let gone = workers.into_iter().find(|worker| room.worker(*worker).session.queue_depth() > 0).unwrap();
    room.workers.remove(&gone);
    room.swarm.disconnected(room.now, gone);
    let sent: Vec<usize> = std::iter::from_fn(|| room.swarm.poll_action())
        .map(|action| match action {
            Action::Transmit(_, message) => message.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(!sent.is_empty() && sent.iter().all(|n| *n < 4096), "{sent:?}");
    assert!(room.swarm.poll_timeout() <= Some(room.now), "the placement is due at once");
}

#[test]
fn a_worker_that_leaves_or_freezes_is_not_waited_for() {
    for visibility in [Visibility::Leaving, Visibility::Frozen] {
        let (mut room, a, b) = two(config());
        let id = room.start(job());
        room.answer(b);
        room.show(a, visibility);
        room.answer(b);
        assert_right(&mut room, id);
        let next = room.start(job());
        room.answer(b);
        assert_right(&mut room, next);
        assert!(room.computes.is_empty() && room.take(a).is_none());
    }
}

#[test]
fn a_hidden_worker_finishes_but_gets_no_more() {
    let (mut room, a, b) = two(config());
    let id = room.start(job());
    room.show(a, Visibility::Hidden);
    room.answer(a);
    room.answer(b);
    assert_right(&mut room, id);
    room.start(job());
    assert!(room.take(a).is_none());
    assert_eq!(room.swarm.status().workers[0].state, "paused");
    room.show(a, Visibility::Visible);
    room.start(job());
    assert!(room.take(a).is_some());
}

#[test]
fn an_answer_with_a_nan_is_a_failed_attempt() {
    let (mut room, a, b) = two(config());
    let id = room.start(job());
    room.answer(b);
    let (attempt, dispatch) = room.take(a).unwrap();
    let mut lie = answer(&dispatch);
    let mut payload = lie.parts[0].payload.to_vec();
    payload[2..4].copy_from_slice(&f16::NAN.to_le_bytes());
    lie.parts[0].payload = payload.into();
    room.complete(a, attempt, lie);
    assert!(room.finished.is_empty());
    room.answer(b);
    assert_right(&mut room, id);
    let status = room.swarm.status();
    assert_eq!((status.workers[0].errors, status.totals.errors), (1, 1));
}

#[test]
fn three_timeouts_in_a_row_take_a_worker_out_until_it_answers_when_it_is_tried() {
    let mut room = Room::new(SwarmConfig { heartbeat_interval: Duration::from_secs(10), ..config() });
    let a = room.join(1);
    for strike in 1..=3 {
        let id = room.start(job());
        assert!(room.computes.is_empty(), "still asked, strike {strike}");
        room.advance_millis(501);
        room.compute_on_hub();
        assert_right(&mut room, id);
    }
    assert_eq!(room.swarm.status().workers[0].state, "unhealthy");
    assert_eq!(room.swarm.status().coverage.covered, 0);
    assert!(room.swarm.is_alone(room.now), "as if nobody had joined");
    while room.take(a).is_some() {}
    let id = room.start(job());
    assert_eq!(room.computes.len(), 1, "not asked any more");
    room.compute_on_hub();
    assert_right(&mut room, id);
    assert!(room.take(a).is_none());

    room.advance(Duration::from_secs(10));
    assert_eq!(room.swarm.status().workers[0].state, "unhealthy", "a heartbeat alone heals nothing");
    assert!(!room.swarm.is_alone(room.now), "a layer is needed to try it with");
    let id = room.start(job());
    assert_eq!(room.computes.len(), 1, "the hub does not wait for it");
    let (attempt, dispatch) = room.take(a).expect("it is tried");
    room.compute_on_hub();
    assert_right(&mut room, id);
    room.complete(a, attempt, answer(&dispatch));
    assert_eq!(room.swarm.status().workers[0].state, "serving");
    let id = room.start(job());
    room.answer(a);
    assert_right(&mut room, id);
}

#[test]
fn without_the_hub_a_job_waits_for_a_holder() {
    let mut room = Room::new(SwarmConfig { hub_compute: false, ..config() });
    let id = room.start(job());
    room.advance_millis(4_000);
    let a = room.join(1);
    room.answer(a);
    assert_right(&mut room, id);
}

#[test]
fn without_the_hub_and_without_a_holder_it_fails_in_words() {
    let mut room = Room::new(SwarmConfig { hub_compute: false, ..config() });
    let id = room.start(job());
    room.advance_millis(4_999);
    assert!(room.finished.is_empty());
    room.advance_millis(2);
    let error = room.finished.remove(&id).unwrap().unwrap_err();
    assert_eq!(error, JobError::Uncovered { block: block(1, 0), waited: Duration::from_secs(5) });
    let text = error.to_string();
    assert!(text.contains("layer 1") && text.contains("expert 0") && text.contains("add workers"), "{text}");
    assert_eq!(room.swarm.poll_timeout(), None);
}

#[test]
fn without_the_hub_a_slow_only_holder_is_waited_for() {
    let mut room = Room::new(SwarmConfig { hub_compute: false, ..config() });
    let a = room.join(1);
    let id = room.start(job());
    room.advance_millis(3_000);
    room.answer(a);
    assert_right(&mut room, id);
}

#[test]
fn a_worker_is_not_given_more_than_its_slots() {
    let mut room = Room::new(config());
    let a = room.join_with(1, |join| join.input_slots = 1, true);
    let (first, second) = (room.start(job()), room.start(job()));
    let (attempt, dispatch) = room.take(a).unwrap();
    assert!(room.take(a).is_none(), "the second job waits");
    room.complete(a, attempt, answer(&dispatch));
    assert_right(&mut room, first);
    room.answer(a);
    assert_right(&mut room, second);
    assert_eq!(room.swarm.status().totals.hub_computed, 0);
}

#[test]
fn results_that_are_not_finite_even_on_the_hub_fail_the_job() {
    let mut room = Room::new(config());
    let mut huge = job();
    huge.rows[0] = f32::MAX;
    let id = room.start(huge);
    room.compute_on_hub();
    let error = room.finished.remove(&id).unwrap().unwrap_err();
    assert!(error.to_string().contains("layer 1"), "{error}");
}

#[test]
fn jobs_beyond_the_bound_and_after_the_end_are_refused() {
    let mut room = Room::new(SwarmConfig { hub_compute: false, ..config() });
    for _ in 0..MAX_JOBS {
        room.start(job());
    }
    let id = room.start(job());
    assert_eq!(room.finished.remove(&id), Some(Err(JobError::Busy { max: MAX_JOBS })));
    let now = room.now;
    room.swarm.shut_down(now);
    room.step();
    assert_eq!(room.finished.len(), MAX_JOBS);
    assert!(room.finished.values().all(|result| *result == Err(JobError::ShuttingDown)));
}
