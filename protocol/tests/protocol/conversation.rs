//! Hub and worker against each other while all goes well: joining, serving, preemption, pausing, leaving.

use std::time::Duration;

use moex_protocol::session::worker::SILENT_BEATS;
use moex_protocol::{
    Answer, Beat, CloseReason, Compression, Dispatch, ErrorCode, Form, HubEvent, Reply, SendError, State,
    Visibility, WeightSync, WorkerEvent, digests,
};

use crate::pair::{LATENCY, Pair};
use crate::samples::{accepted, answer_to, block, dispatch, join, report};

/// The codes of the attempts that failed, in order.
fn failures(pair: &Pair) -> Vec<(u32, ErrorCode)> {
    let failed = |event: &HubEvent| match event {
        HubEvent::Failed { attempt, error } => Some((attempt.0, error.code)),
        _ => None,
    };
    pair.hub_events.iter().filter_map(failed).collect()
}

fn answers(pair: &Pair) -> Vec<(u32, &Answer)> {
    let answered = |event| match event {
        &HubEvent::Answered { attempt, ref answer } => Some((attempt.0, answer)),
        _ => None,
    };
    pair.hub_events.iter().filter_map(answered).collect()
}

fn beat(visibility: Visibility) -> Beat {
    Beat { visibility, memory_used_bytes: 99, ..Beat::default() }
}

#[test]
fn a_worker_joins_loads_serves_and_answers() {
    let mut pair = Pair::new();
    assert_eq!((pair.hub.state(), pair.worker.state()), (State::Joining, State::Joining));
    pair.drive_for(LATENCY);
    assert_eq!(pair.hub_events, [HubEvent::Joined(join())]);
    assert_eq!(pair.hub.poll_timeout(), None, "the verdict is the owner's");

    pair.hub.accept(pair.now, accepted());
    let sync = WeightSync { epoch: 1, hold: Vec::new(), drop: vec![block(1, 1)] };
    pair.hub.sync_weights(pair.now, sync.clone()).unwrap();
    pair.drive_for(LATENCY);
    assert_eq!(pair.worker_events, [WorkerEvent::Accepted(accepted()), WorkerEvent::Sync(sync)]);
    assert_eq!((pair.hub.state(), pair.worker.state()), (State::Syncing, State::Syncing));
    let refused = pair.hub.dispatch(pair.now, moex_protocol::AttemptId(1), &dispatch(Form::Plain, &[3]));
    assert_eq!(refused, Err(SendError::State(State::Syncing)));

    pair.worker.report_blocks(pair.now, report());
    pair.drive_for(LATENCY);
    assert_eq!(pair.hub_events.last(), Some(&HubEvent::Blocks(report())));

    for form in [Form::Plain, Form::RowsOnce] {
        let asked = dispatch(form, &[1, 3]);
        let attempt = pair.dispatch_this(&asked);
        pair.drive_for(LATENCY);
        let (started, work) = pair.worker.next_work(pair.now).unwrap();
        assert_eq!((started, work.form, work.answer_shape()), (attempt, form, asked.answer_shape()));
        pair.worker.complete(pair.now, started, answer_to(&work)).unwrap();
        pair.drive_for(LATENCY);
        assert_eq!(answers(&pair).last(), Some(&(attempt.0, &answer_to(&asked))));
        assert_eq!(pair.hub.outstanding(), 0);
    }
}

#[test]
fn digests_are_of_the_answer_that_would_have_been_sent() {
    let mut pair = Pair::serving(2);
    let asked = Dispatch { reply: Reply::Digests, ..dispatch(Form::RowsOnce, &[1, 3]) };
    let attempt = pair.dispatch_this(&asked);
    pair.drive_for(LATENCY);
    let (started, work) = pair.worker.next_work(pair.now).unwrap();
    pair.worker.complete(pair.now, started, answer_to(&work)).unwrap();
    pair.drive_for(LATENCY);
    let digests = answer_to(&asked).digests(attempt);
    assert_eq!(digests.len(), 2);
    assert_eq!(pair.hub_events, [HubEvent::Digested { attempt, digests }]);
    assert_eq!(pair.hub.outstanding(), 0);
}

#[test]
fn who_was_asked_for_digests_sends_digests_and_nobody_else() {
    let mut pair = Pair::serving(2);
    let rows = dispatch(Form::Plain, &[1, 3]);
    let asked = Dispatch { reply: Reply::Digests, ..rows.clone() };
    let sent = |attempt, n: usize| digests::encode(attempt, &answer_to(&rows).digests(attempt)[..n]);
    let attempt = pair.dispatch_this(&asked);
    pair.inject_to_hub(answer_to(&rows).encode(attempt, Compression::Off).unwrap());
    let attempt = pair.dispatch_this(&rows);
    pair.inject_to_hub(sent(attempt, 2));
    let attempt = pair.dispatch_this(&asked);
    pair.inject_to_hub(sent(attempt, 1));
    pair.drive_for(LATENCY);
    assert_eq!(failures(&pair), [1, 2, 3].map(|attempt| (attempt, ErrorCode::BadFrame)));

    // What comes late is only counted, what was never asked for ends the session.
    pair.inject_to_hub(sent(attempt, 1));
    pair.drive_for(LATENCY);
    assert!(matches!(pair.hub_events.last(), Some(HubEvent::Digested { .. })));
    assert_eq!(pair.hub.late_answers(), 1);
    pair.inject_to_hub(sent(attempt.next(), 1));
    pair.drive_for(LATENCY);
    assert_eq!(pair.hub.state(), State::Closed);
}

#[test]
fn a_dispatch_beyond_the_slots_preempts_the_oldest_not_started() {
    let mut pair = Pair::serving(2);
    for _ in 0..3 {
        pair.dispatch();
        pair.drive_for(LATENCY);
    }
    pair.drive_for(LATENCY);
    assert_eq!(failures(&pair), [(1, ErrorCode::Preempted)]);
    assert_eq!(pair.worker.next_work(pair.now).unwrap().0.0, 2, "the oldest left");
    // 2 is started: 4 fits beside 3, and 5 takes 3's slot, not 2's.
    pair.dispatch();
    pair.dispatch();
    pair.drive_for(2 * LATENCY);
    assert_eq!(failures(&pair), [(1, ErrorCode::Preempted), (3, ErrorCode::Preempted)]);
    assert_eq!(pair.worker.queue_depth(), 3);
}

#[test]
fn cancelled_attempts_owe_nothing_and_late_answers_are_counted() {
    let mut pair = Pair::serving(2);
    let (started, queued) = (pair.dispatch(), pair.dispatch());
    pair.drive_for(LATENCY);
    let (_, work) = pair.worker.next_work(pair.now).unwrap();
    pair.hub.cancel(pair.now, started);
    pair.hub.cancel(pair.now, queued);
    // Finished before the cancellation arrives: the answer crosses it.
    pair.worker.complete(pair.now, started, answer_to(&work)).unwrap();
    pair.drive_for(LATENCY);
    assert_eq!(pair.hub_events, [HubEvent::Late { attempt: started, answer: answer_to(&work) }]);
    assert_eq!((pair.hub.late_answers(), pair.worker.queue_depth()), (1, 0));

    let third = pair.dispatch();
    pair.drive_for(LATENCY);
    let (_, work) = pair.worker.next_work(pair.now).unwrap();
    pair.hub.cancel(pair.now, third);
    pair.drive_for(LATENCY);
    assert_eq!(pair.worker_events, [WorkerEvent::Cancelled(third)]);
    pair.worker.complete(pair.now, third, answer_to(&work)).unwrap();
    pair.worker.fail(pair.now, third, ErrorCode::DeviceLost, "too late to matter");
    pair.drive_for(LATENCY);
    assert_eq!(pair.hub_events.len(), 1, "nothing is sent for what was cancelled");
}

#[test]
fn dispatches_that_cannot_be_served_are_answered_at_once() {
    let mut pair = Pair::serving(4);
    let mut elsewhere = dispatch(Form::Plain, &[3]);
    elsewhere.layer = moex_protocol::LayerId(1);
    pair.dispatch_this(&elsewhere);

    let mut wide = dispatch(Form::Plain, &[3]);
    wide.hidden *= 2;
    wide.calls[0].pairs.truncate(1);
    pair.dispatch_this(&wide);

    let mut many = dispatch(Form::RowsOnce, &[3]);
    many.rows = many.rows.repeat(9).into();
    pair.dispatch_this(&many);

    let dropped_while_queued = pair.dispatch();
    let sync = WeightSync { epoch: 2, hold: Vec::new(), drop: vec![block(0, 3)] };
    pair.hub.sync_weights(pair.now, sync).unwrap();
    pair.drive_for(LATENCY);
    assert_eq!(pair.worker.next_work(pair.now), None);
    pair.drive_for(LATENCY);
    let expected = [
        (1, ErrorCode::NotResident),
        (2, ErrorCode::BadFrame),
        (3, ErrorCode::TooLarge),
        (dropped_while_queued.0, ErrorCode::NotResident),
    ];
    assert_eq!(failures(&pair), expected);
    assert_eq!(pair.hub.state(), State::Serving, "each ends an attempt and no more");
}

#[test]
fn answers_of_another_shape_or_with_non_finite_values_fail_their_attempt() {
    let mut pair = Pair::serving(4);
    let asked = dispatch(Form::Plain, &[3]);
    let attempts: Vec<_> = (0..3).map(|_| pair.dispatch_this(&asked)).collect();
    pair.drive_for(LATENCY);
    let (first, work) = pair.worker.next_work(pair.now).unwrap();

    let mut other = answer_to(&work);
    other.parts[0].expert = moex_protocol::ExpertId(4);
    let refused = pair.worker.complete(pair.now, first, other.clone());
    assert_eq!(refused, Err(SendError::AnswerShape(first)), "an honest worker cannot send it");
    pair.worker.fail(pair.now, first, ErrorCode::OutOfMemory, "no room");
    pair.inject_to_hub(other.encode(attempts[1], Compression::Off).unwrap());

    let mut infinite = answer_to(&work);
    infinite.parts[0].payload = [0x00, 0x7C].repeat(8).into();
    pair.inject_to_hub(infinite.encode(attempts[2], Compression::Off).unwrap());
    pair.drive_for(LATENCY);
    let mut failed = failures(&pair);
    failed.sort_by_key(|(attempt, _)| *attempt);
    assert_eq!(failed, [(1, ErrorCode::OutOfMemory), (2, ErrorCode::BadFrame)]);
    let not_finite = HubEvent::NotFinite { attempt: attempts[2] };
    assert!(pair.hub_events.contains(&not_finite), "no honest worker sends it: {:?}", pair.hub_events);
    assert_eq!((pair.hub.state(), pair.hub.outstanding()), (State::Serving, 0));
}

#[test]
fn pings_measure_the_round_trip_and_bring_the_workers_state() {
    let mut pair = Pair::serving(2);
    pair.dispatch();
    pair.worker.report_beat(pair.now, beat(Visibility::Visible));
    pair.drive_for(Duration::from_millis(1100));
    let Some(HubEvent::Beat { beat, round_trip }) = pair.hub_events.last() else { panic!("a beat") };
    assert_eq!(*round_trip, Some(2 * LATENCY));
    assert_eq!((beat.queue_depth, beat.blocks_resident, beat.memory_used_bytes), (1, 8, 99));
    pair.hub_events.clear();
    pair.drive_for(Duration::from_secs(60));
    assert_eq!(pair.hub_events.len(), 60, "one each interval, and nobody falls silent");
}

#[test]
fn a_way_longer_than_the_interval_is_measured_all_the_same() {
    let mut pair = Pair::serving(2);
    pair.latency = Duration::from_millis(700);
    pair.drive_for(Duration::from_secs(10));
    let trips = pair.hub_events.iter().filter_map(|event| match event {
        HubEvent::Beat { round_trip, .. } => Some(*round_trip),
        _ => None,
    });
    let trips: Vec<_> = trips.collect();
    assert!(trips.len() >= 7, "one each interval: {trips:?}");
    assert!(trips.iter().all(|trip| *trip == Some(2 * pair.latency)), "{trips:?}");
}

#[test]
fn a_hidden_page_is_paused_until_it_is_seen_again() {
    let mut pair = Pair::serving(2);
    for visibility in [Visibility::Hidden, Visibility::Frozen] {
        pair.worker.report_beat(pair.now, beat(visibility));
        assert_eq!(pair.worker.state(), State::Paused);
        pair.drive_for(LATENCY);
        assert_eq!(pair.hub.state(), State::Paused, "told at once");
        let refused = pair.hub.dispatch(pair.now, moex_protocol::AttemptId(1), &dispatch(Form::Plain, &[3]));
        assert_eq!(refused, Err(SendError::State(State::Paused)));
    }
    // A frozen page answers nothing for longer than a visible one may, and comes back to its queue.
    pair.worker_frozen = true;
    pair.drive_for(Duration::from_secs(300));
    assert_eq!(pair.hub.state(), State::Paused);
    pair.worker_frozen = false;
    pair.worker.report_beat(pair.now, beat(Visibility::Visible));
    pair.drive_for(2 * LATENCY);
    assert_eq!((pair.hub.state(), pair.worker.state()), (State::Serving, State::Serving));
    pair.dispatch();
    pair.drive_for(LATENCY);
    assert!(pair.worker.next_work(pair.now).is_some());
}

#[test]
fn a_leaving_worker_hands_back_what_it_has_not_started() {
    let mut pair = Pair::serving(2);
    let started = pair.dispatch();
    pair.drive_for(LATENCY);
    let (_, work) = pair.worker.next_work(pair.now).unwrap();
    pair.dispatch();
    pair.drive_for(LATENCY);
    let crossing = pair.dispatch();
    pair.worker.report_beat(pair.now, beat(Visibility::Leaving));
    pair.drive_for(2 * LATENCY);
    assert_eq!((pair.hub.state(), pair.worker.state()), (State::Draining, State::Draining));
    assert_eq!(failures(&pair), [(2, ErrorCode::Draining), (crossing.0, ErrorCode::Draining)]);
    pair.worker.complete(pair.now, started, answer_to(&work)).unwrap();
    assert_eq!((pair.worker.state(), pair.worker.close_code()), (State::Closed, Some(1001)));
    pair.drive_for(2 * LATENCY);
    assert_eq!(answers(&pair).len(), 1, "what was started is finished");
    assert_eq!(pair.hub.state(), State::Closed);
}

#[test]
fn a_leaving_hub_waits_for_what_is_owed() {
    let mut pair = Pair::serving(2);
    let (first, second) = (pair.dispatch(), pair.dispatch());
    pair.hub.drain(pair.now);
    pair.drive_for(LATENCY);
    assert_eq!((pair.hub.state(), pair.worker.state()), (State::Draining, State::Draining));
    for attempt in [first, second] {
        let (started, work) = pair.worker.next_work(pair.now).unwrap();
        assert_eq!(started, attempt);
        pair.worker.complete(pair.now, started, answer_to(&work)).unwrap();
    }
    pair.drive_for(LATENCY);
    assert_eq!(answers(&pair).len(), 2);
    assert_eq!(pair.hub_events.last(), Some(&HubEvent::Closed { reason: CloseReason::Drained }));
    assert_eq!(pair.worker_events.last(), Some(&WorkerEvent::Closed { reason: CloseReason::Drained }));

    let mut stuck = Pair::serving(1);
    stuck.dispatch();
    stuck.hub.drain(stuck.now);
    assert!(stuck.drive(|pair| pair.hub.state() == State::Closed), "the deadline ends it");
    assert!(stuck.now < Duration::from_secs(11) * SILENT_BEATS);
}
