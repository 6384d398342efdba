//! What ends a session, on which side, with which ERROR and which close code.

use std::time::Duration;

use bytes::Bytes;
use moex_protocol::{
    AttemptId, Block, CloseReason, Compression, DecodeError, ErrorCode, Form, Frame, Heartbeat, HubEvent,
    HubSession, Ping, SessionConfig, State, WeightSyncFrame, WireError, WorkerConfig, WorkerEvent,
    WorkerSession, cancel, decode_message,
};

use crate::pair::{LATENCY, Pair};
use crate::samples::{accepted, answer_to, dispatch, encoded, join, report};

fn hub_reason(pair: &Pair) -> &CloseReason {
    match pair.hub_events.last() {
        Some(HubEvent::Closed { reason }) => reason,
        other => panic!("the hub's session goes on after {other:?}"),
    }
}

fn worker_reason(pair: &Pair) -> &CloseReason {
    match pair.worker_events.last() {
        Some(WorkerEvent::Closed { reason }) => reason,
        other => panic!("the worker's session goes on after {other:?}"),
    }
}

/// The ERROR that ended the session, as the worker was told.
fn told(pair: &mut Pair) -> WireError {
    pair.drive_for(LATENCY);
    match worker_reason(pair) {
        CloseReason::Peer(error) => error.clone(),
        other => panic!("not told: {other}"),
    }
}

/// A dispatch with its header's bytes at `at` replaced.
fn patched(at: usize, bytes: &[u8]) -> Bytes {
    let mut message = encoded(&dispatch(Form::Plain, &[3]), 1).to_vec();
    message[at..at + bytes.len()].copy_from_slice(bytes);
    message.into()
}

#[test]
fn bad_frames_end_the_session_with_1002_and_say_why() {
    let cases: [(&str, Bytes, ErrorCode, u16); 7] = [
        ("magic", patched(0, b"moex"), ErrorCode::BadFrame, 1002),
        ("version", patched(4, &[1, 0]), ErrorCode::Version, 1002),
        ("reserved flag", patched(0x1B, &[32]), ErrorCode::BadFrame, 1002),
        ("dtype", patched(0x1A, &[9]), ErrorCode::BadFrame, 1002),
        ("length", patched(0x14, &[3]), ErrorCode::BadFrame, 1002),
        ("hidden", patched(0x18, &[0xFF, 0xFF]), ErrorCode::TooLarge, 1009),
        ("empty", Bytes::new(), ErrorCode::BadFrame, 1002),
    ];
    for (name, message, code, close) in cases {
        let mut pair = Pair::serving(1);
        pair.inject_to_hub(message.clone());
        pair.drive_for(LATENCY);
        assert!(matches!(hub_reason(&pair), CloseReason::Decode(_)), "{name}");
        assert_eq!(pair.hub.close_code(), Some(close), "{name}");
        let error = told(&mut pair);
        assert_eq!((error.code, error.attempt), (code, None), "{name}");

        let mut pair = Pair::serving(1);
        pair.inject_to_worker(message);
        pair.drive_for(2 * LATENCY);
        assert!(matches!(worker_reason(&pair), CloseReason::Decode(_)), "{name}");
        assert!(matches!(hub_reason(&pair), CloseReason::Peer(error) if error.code == code), "{name}");
    }
}

#[test]
fn another_version_is_told_which_is_spoken() {
    let mut pair = Pair::serving(1);
    pair.inject_to_hub(patched(4, &[1, 0]));
    pair.drive_for(LATENCY);
    assert_eq!(*hub_reason(&pair), CloseReason::Decode(DecodeError::Version { version: 1 }));
    assert!(told(&mut pair).message.contains("spoken: 2"));
}

#[test]
fn unknown_types_are_skipped_by_length() {
    let mut unknown = patched(6, &[0x77, 0]).to_vec();
    unknown[0x1B] = 0xFF;
    let mut pair = Pair::serving(1);
    pair.inject_to_hub(unknown.clone());
    pair.inject_to_worker([unknown.as_slice(), &encoded(&dispatch(Form::Plain, &[3]), 9)].concat());
    pair.drive_for(LATENCY);
    assert_eq!(pair.hub.state(), State::Serving);
    assert_eq!(pair.worker.queue_depth(), 1, "what follows is read");
}

#[test]
fn text_closes_with_1003() {
    let mut pair = Pair::serving(1);
    pair.hub.handle_text(pair.now);
    pair.worker.handle_text(pair.now);
    assert_eq!((pair.hub.close_code(), pair.worker.close_code()), (Some(1003), Some(1003)));
}

#[test]
fn an_answer_to_an_attempt_never_sent_ends_the_session() {
    let answer = answer_to(&dispatch(Form::Plain, &[3])).encode(AttemptId(77), Compression::Off).unwrap();
    let error =
        WireError { code: ErrorCode::Preempted, message: String::new(), attempt: Some(AttemptId(77)) };
    for message in [answer, error.encode(Compression::Off)] {
        let mut pair = Pair::serving(1);
        pair.dispatch();
        pair.inject_to_hub(message);
        pair.drive_for(LATENCY);
        assert_eq!(*hub_reason(&pair), CloseReason::NeverSent(AttemptId(77)));
        assert_eq!(pair.hub.close_code(), Some(1002));
        assert_eq!(told(&mut pair).code, ErrorCode::BadFrame);
    }
}

#[test]
fn each_end_sends_only_its_own_frames() {
    let ping = Heartbeat::Ping(Ping { hub_micros: 0, ..Ping::default() }).encode(Compression::Off);
    let from_hub =
        [encoded(&dispatch(Form::Plain, &[3]), 1), cancel::encode(AttemptId(1)), ping, accepted_message()];
    for message in from_hub {
        let mut pair = Pair::serving(1);
        pair.inject_to_hub(message);
        pair.drive_for(LATENCY);
        assert!(matches!(hub_reason(&pair), CloseReason::Unexpected(_)));
        assert_eq!(pair.hub.close_code(), Some(1002));
    }
    let join = Heartbeat::Join(join()).encode(Compression::Off);
    let report = WeightSyncFrame::Report(report()).encode(Compression::Off);
    let answer = answer_to(&dispatch(Form::Plain, &[3])).encode(AttemptId(1), Compression::Off).unwrap();
    for message in [join.clone(), report.clone(), answer, accepted_message()] {
        let mut pair = Pair::serving(1);
        pair.inject_to_worker(message);
        pair.drive_for(LATENCY);
        assert!(matches!(worker_reason(&pair), CloseReason::Unexpected(_)));
    }
    let mut pair = Pair::serving(1);
    pair.inject_to_hub(join);
    pair.drive_for(LATENCY);
    assert_eq!(*hub_reason(&pair), CloseReason::Unexpected("a second join"));
    let mut early = HubSession::new(SessionConfig::default(), Duration::ZERO);
    early.handle_message(Duration::ZERO, report);
    assert_eq!(early.close_code(), Some(1002), "nothing goes before the join");
}

fn accepted_message() -> Bytes {
    Heartbeat::Accepted(accepted()).encode(Compression::Off)
}

#[test]
fn a_refused_worker_is_told_and_closed() {
    let mut pair = Pair::new();
    pair.drive_for(LATENCY);
    pair.hub.reject(pair.now, ErrorCode::Unauthorized, "the token is wrong");
    assert_eq!(pair.hub.close_code(), Some(1008));
    pair.drive_for(LATENCY);
    let error =
        WireError { code: ErrorCode::Unauthorized, message: "the token is wrong".into(), attempt: None };
    let events =
        [WorkerEvent::Rejected(error.clone()), WorkerEvent::Closed { reason: CloseReason::Peer(error) }];
    assert_eq!(pair.worker_events, events);
}

#[test]
fn a_worker_that_gives_up_says_why() {
    let mut pair = Pair::serving(1);
    pair.worker.stop(pair.now, ErrorCode::DeviceLost, "the GPU went away");
    pair.drive_for(LATENCY);
    assert!(matches!(hub_reason(&pair), CloseReason::Peer(error) if error.code == ErrorCode::DeviceLost));
}

#[test]
fn joins_have_a_deadline_on_both_ends() {
    let config = SessionConfig::default();
    let mut hub = HubSession::new(config, Duration::ZERO);
    assert_eq!(hub.poll_timeout(), Some(config.join_deadline));
    hub.handle_timeout(config.join_deadline - Duration::from_nanos(1));
    assert_eq!(hub.state(), State::Joining, "too early is harmless");
    hub.handle_timeout(config.join_deadline);
    assert_eq!((hub.state(), hub.close_code()), (State::Closed, Some(1008)));
    let message = hub.poll_transmit().unwrap();
    let frames = decode_message(&message).unwrap();
    assert!(matches!(&frames[..], [Frame::Error(error)] if error.code == ErrorCode::Unauthorized));

    let mut worker = WorkerSession::new(WorkerConfig { join: join() }, Duration::ZERO);
    let deadline = worker.poll_timeout().unwrap();
    worker.handle_timeout(deadline);
    assert_eq!(worker.state(), State::Closed);
}

#[test]
fn silence_ends_the_session_on_both_ends() {
    let mut pair = Pair::serving(1);
    pair.worker_frozen = true;
    let start = pair.now;
    assert!(pair.drive(|pair| pair.hub.state() == State::Closed));
    assert_eq!(*hub_reason(&pair), CloseReason::Silent);
    let waited = pair.now - start;
    assert!(waited >= Duration::from_secs(3) && waited <= Duration::from_secs(4), "{waited:?}");

    let mut worker = WorkerSession::new(WorkerConfig { join: join() }, Duration::ZERO);
    worker.handle_message(Duration::ZERO, accepted_message());
    assert_eq!(worker.poll_timeout(), Some(Duration::from_secs(4)));
    worker.handle_timeout(Duration::from_secs(4));
    assert_eq!((worker.state(), worker.close_code()), (State::Closed, Some(1001)));
}

#[test]
fn a_lost_connection_is_the_last_event_and_leaves_nothing_to_send() {
    let mut pair = Pair::serving(1);
    pair.dispatch();
    pair.hub.handle_closed(pair.now);
    pair.worker.handle_closed(pair.now);
    pair.drive_for(LATENCY);
    assert_eq!((hub_reason(&pair), worker_reason(&pair)), (&CloseReason::Transport, &CloseReason::Transport));
    assert_eq!((pair.hub.close_code(), pair.hub.poll_timeout()), (None, None));
    assert_eq!((pair.hub.poll_transmit(), pair.worker.poll_transmit()), (None, None));
    pair.hub.handle_message(pair.now, Bytes::from_static(b"anything"));
    pair.worker.report_blocks(pair.now, report());
    assert_eq!((pair.hub.poll_event(), pair.worker.poll_transmit()), (None, None));
    let block = Block::default();
    assert!(
        pair.hub
            .sync_weights(pair.now, moex_protocol::WeightSync { drop: vec![block], ..Default::default() })
            .is_err()
    );
}
