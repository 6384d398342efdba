//! Who is asked first, when a second copy leaves, and what that may cost.

use std::time::Duration;

use super::room::*;
use crate::*;

const N_WARM: usize = 60;

fn assert_right(room: &mut Room, id: JobId) {
    let sum = room.finished.remove(&id).expect("the job has finished").expect("and well");
    assert_eq!(sum, alone(&job()));
}

/// Jobs of which each worker answers its part after so many milliseconds, so that all are known to take that long.
fn warm(room: &mut Room, workers: &[(ConnectionId, u64)]) {
    let mut workers = workers.to_vec();
    workers.sort_by_key(|(_, millis)| *millis);
    for _ in 0..N_WARM {
        let id = room.start(job());
        let mut passed = 0;
        for (worker, millis) in &workers {
            room.advance_millis(millis - passed);
            passed = *millis;
            room.answer(*worker);
        }
        room.compute_on_hub();
        assert_right(room, id);
    }
}

fn adaptive(budget: f64) -> SwarmConfig {
    SwarmConfig { hedge: Hedge::Adaptive { budget }, check_every: 0, ..config() }
}

#[test]
fn what_is_later_than_usual_is_asked_of_another_and_the_first_answer_wins() {
    let mut room = Room::new(adaptive(0.05));
    let (a, b) = (room.join(1), room.join(2));
    warm(&mut room, &[(a, 10), (b, 10)]);
    assert_eq!(room.swarm.status().totals.hedges, 0, "nothing was late");
    let id = room.start(job());
    room.advance_millis(10);
    room.answer(b);
    room.advance_millis(9);
    assert!(room.take(b).is_none(), "within two medians");
    room.advance_millis(2);
    room.answer(b);
    assert_right(&mut room, id);
    assert_eq!(room.worker(a).session.queue_depth(), 0, "the first one was told to forget it");
    let totals = room.swarm.status().totals;
    assert_eq!((totals.hedges, totals.hedge_wins, totals.timeouts, totals.retries), (1, 1, 0, 0));
    assert!(totals.duplicate_bytes > 0 && totals.bytes_sent > 0 && totals.bytes_received > 0);
}

#[test]
fn without_a_budget_it_takes_the_timeout() {
    let mut room = Room::new(adaptive(0.0));
    let (a, b) = (room.join(1), room.join(2));
    warm(&mut room, &[(a, 10), (b, 10)]);
    let id = room.start(job());
    room.advance_millis(10);
    room.answer(b);
    room.advance_millis(480);
    assert!(room.take(b).is_none() && room.finished.is_empty());
    room.advance_millis(11);
    room.answer(b);
    assert_right(&mut room, id);
    let totals = room.swarm.status().totals;
    assert_eq!((totals.hedges, totals.hedges_denied, totals.timeouts, totals.duplicate_bytes), (0, 1, 1, 0));
}

#[test]
fn what_no_other_worker_holds_is_hedged_by_the_hub() {
    let mut room = Room::new(adaptive(0.0));
    let a = room.join(1);
    warm(&mut room, &[(a, 10)]);
    let id = room.start(job());
    room.advance_millis(31);
    assert_eq!(room.computes.len(), 1);
    room.compute_on_hub();
    assert_right(&mut room, id);
    let totals = room.swarm.status().totals;
    assert_eq!((totals.hedges, totals.hedge_wins, totals.duplicate_bytes, totals.timeouts), (1, 1, 0, 0));
}

#[test]
fn copies_stay_within_their_part_of_the_bytes() {
    let mut room = Room::new(adaptive(0.05));
    let (a, b) = (room.join(1), room.join(2));
    warm(&mut room, &[(a, 10), (b, 10)]);
    for _ in 0..100 {
        let id = room.start(job());
        room.advance_millis(10);
        room.answer(b);
        room.advance_millis(30);
        room.answer(b);
        room.answer(a);
        assert_right(&mut room, id);
        // Its heartbeat answers meanwhile, so that the next job asks it again.
        room.advance(room.swarm.config().heartbeat_interval);
    }
    let totals = room.swarm.status().totals;
    assert!(totals.hedges > 0 && totals.hedges_denied > 0, "{totals:?}");
    // What is counted as sent and received also has heartbeats in it: a little more than what the budget is a part of.
    assert!(20 * totals.duplicate_bytes <= totals.bytes_sent + totals.bytes_received, "{totals:?}");
}

#[test]
fn the_slow_one_is_passed_over_and_the_status_says_so() {
    let mut room = Room::new(adaptive(0.0));
    let (a, b) = (room.join(1), room.join(2));
    warm(&mut room, &[(a, 60), (b, 5)]);
    let id = room.start(job());
    assert!(room.take(a).is_none());
    room.answer(b);
    assert_right(&mut room, id);
    let status = room.swarm.status();
    assert_eq!((status.workers[0].tier, status.workers[1].tier), (Tier::Fallback, Tier::Decode));
    assert!(status.workers[0].reason.as_ref().unwrap().contains("slower than the others"));
    assert_eq!(status.coverage.covered, status.coverage.blocks);
}

#[test]
fn a_worker_that_is_fast_again_finds_its_way_back() {
    let mut room = Room::new(adaptive(0.0));
    let (a, b) = (room.join(1), room.join(2));
    warm(&mut room, &[(a, 60), (b, 5)]);
    room.advance(Duration::from_secs(11));
    let id = room.start(job());
    let (attempt, dispatch) = room.take(a).expect("a probe");
    assert_eq!(dispatch.calls.len(), 1);
    room.advance_millis(4);
    room.answer(b);
    assert_right(&mut room, id);
    room.complete(a, attempt, answer(&dispatch));
    assert_eq!(room.swarm.status().totals.probes, 1);
    room.start(job());
    assert!(room.take(a).is_some(), "asked like any other");
}

/// Probes that an idle worker gets in twenty jobs, of which it answers the first after 40 ms and the others after `awake`.
fn probe(room: &mut Room, idle: ConnectionId, other: ConnectionId, awake: u64) -> u64 {
    room.advance(Duration::from_secs(11));
    let before = room.swarm.status().totals.probes;
    let mut takes = 40;
    for _ in 0..20 {
        let id = room.start(job());
        let asked = room.take(idle);
        room.answer(other);
        if let Some((attempt, dispatch)) = asked {
            room.advance_millis(std::mem::replace(&mut takes, awake));
            room.complete(idle, attempt, answer(&dispatch));
        }
        assert_right(room, id);
    }
    room.swarm.status().totals.probes - before
}

#[test]
fn a_worker_that_wakes_slowly_finds_its_way_back() {
    let mut room = Room::new(adaptive(0.0));
    let (a, b) = (room.join(1), room.join(2));
    warm(&mut room, &[(a, 60), (b, 5)]);
    assert_eq!(probe(&mut room, a, b, 50), 4, "as slow awake as asleep");
    assert_eq!(room.swarm.status().workers[0].tier, Tier::Fallback);
    assert!(probe(&mut room, a, b, 4) > 2);
    assert_eq!(room.swarm.status().workers[0].tier, Tier::Decode);
}

#[test]
fn slower_than_the_hub_alone_is_a_fallback() {
    let mut room = Room::new(adaptive(0.0));
    // Before anybody joins the hub computes, in no time.
    for _ in 0..10 {
        let id = room.start(job());
        room.compute_on_hub();
        assert_right(&mut room, id);
    }
    let a = room.join_new(1, |_| {}, true);
    let mut n_asked = 0;
    for _ in 0..20 {
        let id = room.start(job());
        room.advance_millis(80);
        n_asked += usize::from(room.worker(a).session.queue_depth() > 0);
        room.answer(a);
        room.compute_on_hub();
        assert_right(&mut room, id);
    }
    assert!((1..20).contains(&n_asked), "{n_asked}");
    let status = room.swarm.status();
    assert_eq!(status.workers[0].tier, Tier::Fallback);
    assert!(status.workers[0].reason.as_ref().unwrap().contains("than the hub"));
}

#[test]
fn a_slow_sync_takes_prompts_and_no_single_tokens() {
    let mut room = Room::new(adaptive(0.0));
    let firefox = room.join_with(1, |join| join.sync_latency_micros = 103_000, true);
    let id = room.start(job());
    assert!(room.take(firefox).is_none());
    room.compute_on_hub();
    assert_right(&mut room, id);
    let mut prompt = job();
    prompt.rows = prompt.rows.repeat(6)[..16 * HIDDEN].to_vec();
    prompt.routing.experts = prompt.routing.experts.repeat(6)[..32].to_vec();
    prompt.routing.gates = prompt.routing.gates.repeat(6)[..32].to_vec();
    let id = room.start(prompt);
    assert!(room.computes.is_empty());
    room.answer(firefox);
    assert!(room.finished[&id].is_ok());
    let status = room.swarm.status();
    assert_eq!(status.workers[0].tier, Tier::Prefill);
    assert!(status.workers[0].reason.as_ref().unwrap().contains("103.0 ms"));
}

#[test]
fn a_slow_sync_is_better_than_nobody() {
    let mut room = Room::new(SwarmConfig { hub_compute: false, ..adaptive(0.0) });
    let firefox = room.join_with(1, |join| join.sync_latency_micros = 103_000, true);
    let id = room.start(job());
    room.answer(firefox);
    assert_right(&mut room, id);
}
