//! What workers say of themselves, and what they leave undone, costs nobody time.

use std::time::Duration;

use moex_protocol::AttemptId;

use super::room::*;
use crate::*;

fn assert_right(room: &mut Room, id: JobId) {
    let sum = room.finished.remove(&id).expect("the job has finished").expect("and well");
    assert_eq!(sum, alone(&job()));
}

#[test]
fn silent_workers_that_say_they_are_slow_are_waited_for_by_nobody() {
    let mut room = Room::new(config());
    let silent: Vec<_> = (1..=3).map(|id| room.join_new(id, |join| join.teraflops = 1e-9, true)).collect();
    for _ in 0..200 {
        let before = room.now;
        let id = room.start(job());
        assert!(!room.computes.is_empty(), "the hub is asked at once");
        room.advance_millis(5);
        room.compute_on_hub();
        assert_right(&mut room, id);
        assert_eq!(room.now, before + Duration::from_millis(5));
        room.advance_millis(95);
        silent.iter().for_each(|worker| while room.take(*worker).is_some() {});
    }
    let status = room.swarm.status();
    let mut asked = status.workers.iter().filter(|worker| worker.dispatches > 0);
    assert!(asked.all(|worker| worker.state == "unhealthy"), "{:?}", status.workers);
    assert!(status.totals.probes < 40, "{} messages in 20 s to three who answer none", status.totals.probes);
}

#[test]
fn a_new_worker_gets_its_part_beside_the_hub_until_it_is_known() {
    let mut room = Room::new(SwarmConfig { check_every: 0, ..config() });
    let a = room.join_new(1, |_| {}, true);
    for n in 0..8 {
        let id = room.start(job());
        assert_eq!(room.computes.len(), 1, "answer {n} may never come");
        room.advance_millis(2);
        if n % 2 == 0 {
            room.answer(a);
            assert_right(&mut room, id);
            room.compute_on_hub();
        } else {
            room.compute_on_hub();
            assert_right(&mut room, id);
            room.answer(a);
        }
    }
    let totals = room.swarm.status().totals;
    assert_eq!((totals.probes, totals.answers, totals.timeouts, totals.mismatches), (8, 4, 0, 0));
    let id = room.start(job());
    assert!(room.computes.is_empty(), "it is known now");
    room.answer(a);
    assert_right(&mut room, id);
}

#[test]
fn a_new_worker_gets_its_part_beside_a_known_one() {
    let mut room = Room::new(SwarmConfig { hub_compute: false, ..config() });
    let known = room.join(1);
    let new = room.join_new(2, |_| {}, true);
    for _ in 0..8 {
        let id = room.start(job());
        assert!(room.worker(new).session.queue_depth() > 0, "it is tried");
        room.answer(known);
        assert_right(&mut room, id);
        room.answer(new);
    }
    let id = room.start(job());
    room.answer(known);
    assert!(room.finished.is_empty(), "a part is the new one's alone now");
    room.answer(new);
    assert_right(&mut room, id);
}

#[test]
fn where_nobody_else_is_a_new_worker_is_waited_for() {
    let mut room = Room::new(SwarmConfig { hub_compute: false, ..config() });
    let a = room.join_new(1, |_| {}, true);
    let id = room.start(job());
    room.advance_millis(400);
    room.answer(a);
    assert_right(&mut room, id);
    assert_eq!(room.swarm.status().totals.probes, 0);
}

#[test]
fn whoever_answers_heartbeats_and_nothing_else_is_left_alone_for_longer_each_time() {
    let mut room = Room::new(SwarmConfig { check_every: 0, ..config() });
    let silent = room.join(1);
    let (mut n_asked, mut n_alone) = (0, 0);
    for _ in 0..600 {
        n_alone += u32::from(room.swarm.is_alone(room.now));
        let id = room.start(job());
        room.advance_millis(501);
        room.compute_on_hub();
        assert_right(&mut room, id);
        while room.take(silent).is_some() {
            n_asked += 1;
        }
    }
    assert!((4..=12).contains(&n_asked), "asked {n_asked} times in five minutes");
    assert!(n_alone > 550, "the hub computes as if it were alone {n_alone} times of 600");
    assert_eq!(room.swarm.status().workers[0].state, "unhealthy");
}

#[test]
fn without_the_hub_whoever_is_out_and_alive_is_better_than_nobody() {
    let mut room = Room::new(SwarmConfig { hub_compute: false, max_failures: 1, ..config() });
    let a = room.join(1);
    room.start(job());
    room.advance_millis(600);
    while room.take(a).is_some() {}
    assert_eq!(room.swarm.status().workers[0].state, "unhealthy");
    // Two heartbeats: after the first one it is tried, and fails again.
    room.advance_millis(3_500);
    let id = room.start(job());
    room.answer(a);
    assert_right(&mut room, id);
    assert_eq!(room.swarm.status().workers[0].state, "serving");
}

#[test]
fn ids_of_attempts_may_wrap_in_the_middle_of_a_conversation() {
    let mut room = Room::new(SwarmConfig { hedge: Hedge::Fixed(2), check_every: 0, ..config() });
    room.swarm.dispatcher().start_attempts_after(AttemptId(u32::MAX - 20));
    let (a, b) = (room.join(1), room.join(2));
    for _ in 0..40 {
        let id = room.start(job());
        let late = room.take(b);
        room.worker(b).is_frozen = true;
        if let Some((attempt, dispatch)) = late {
            room.complete(b, attempt, answer(&dispatch));
        }
        room.answer(a);
        assert_right(&mut room, id);
        room.thaw(b);
    }
    let totals = room.swarm.status().totals;
    assert_eq!((totals.late, totals.mismatches, totals.sessions_ended, totals.timeouts), (40, 0, 0, 0));
    assert_eq!(totals.compared, 40 * 5, "each late answer was compared with the one that won");
}
