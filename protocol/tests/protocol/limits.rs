//! One hostile input for each limit: bytes a peer could send, or a peer that does not read. Each is refused by its
//! own name, and no memory is taken for what it announces.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use moex_protocol::header::HEADER_BYTES;
use moex_protocol::limits::*;
use moex_protocol::{
    Answer, AnswerPart, AttemptId, BlockReport, Call, CloseReason, Compression, DecodeError, Dispatch, Dtype,
    ExpertId, Form, Frame, Heartbeat, HubEvent, HubSession, Join, LayerId, Pair as RowPair, ProductFormat,
    ProductShape, Products, Reply, SendError, SessionConfig, ShapeError, State, Visibility, WeightSync,
    WeightSyncFrame, WireError, WorkerConfig, WorkerSession, cancel, decode_message,
};

use crate::pair::{LATENCY, Pair};
use crate::samples::{answer_to, block, dispatch, encoded, join};

const DISPATCH: u16 = 1;
const RESULT: u16 = 2;
const HEARTBEAT: u16 = 4;
const PRODUCTS: u16 = 8;
const DIGESTS: u16 = 9;
const UNKNOWN: u16 = 99;
const COMPRESSED: u8 = 1;
const BY_ROW: u8 = 4;

/// A header by hand, so that it can say anything.
struct Raw {
    kind: u16,
    payload_bytes: u32,
    expert: u16,
    rows: u32,
    hidden: u16,
    dtype: u8,
    flags: u8,
}

impl Raw {
    fn control(payload_bytes: u32, flags: u8) -> Self {
        Self { kind: HEARTBEAT, payload_bytes, expert: 0, rows: 0, hidden: 0, dtype: 0, flags }
    }

    fn tensor(kind: u16, payload_bytes: u32, rows: u32, hidden: u16) -> Self {
        Self { kind, payload_bytes, expert: 0, rows, hidden, dtype: 1, flags: 0 }
    }

    fn put(&self, payload: &[u8], out: &mut BytesMut) {
        out.put_slice(b"MoEx");
        out.put_u16_le(moex_protocol::VERSION);
        out.put_u16_le(self.kind);
        out.put_u32_le(self.payload_bytes);
        out.put_u32_le(0);
        out.put_u16_le(0);
        out.put_u16_le(self.expert);
        out.put_u32_le(self.rows);
        out.put_u16_le(self.hidden);
        out.put_u8(self.dtype);
        out.put_u8(self.flags);
        out.put_slice(payload);
    }

    fn message(&self, payload: &[u8]) -> Bytes {
        let mut out = BytesMut::new();
        self.put(payload, &mut out);
        out.freeze()
    }
}

fn refusal(message: &Bytes) -> DecodeError {
    decode_message(message).expect_err("hostile bytes are refused")
}

#[test]
fn every_limit_has_a_hostile_input_here() {
    let limits = include_str!("../../src/limits.rs");
    let tests = include_str!("limits.rs");
    for name in limits.lines().filter_map(|line| line.strip_prefix("pub const ")?.split(':').next()) {
        assert!(tests.contains(&format!("fn {}", name.to_lowercase())), "no test is named after {name}");
    }
}

#[test]
fn max_message_bytes_as_received() {
    let bytes = MAX_MESSAGE_BYTES + 1;
    let message =
        Raw { kind: UNKNOWN, ..Raw::control(bytes as u32, 0) }.message(&vec![0; bytes - HEADER_BYTES]);
    assert_eq!(refusal(&message), DecodeError::MessageTooLarge { bytes, limit: MAX_MESSAGE_BYTES });
}

#[test]
fn max_message_bytes_once_expanded() {
    // 33 frames that each expand to a permitted megabyte of zeros: 130 KiB in all.
    let zeros = lz4_flex::block::compress_prepend_size(&vec![0; MAX_CONTROL_BYTES]);
    let mut message = BytesMut::new();
    for _ in 0..=MAX_MESSAGE_BYTES / MAX_CONTROL_BYTES {
        let rows = MAX_CONTROL_BYTES as u32 / 64;
        let raw = Raw { flags: COMPRESSED, ..Raw::tensor(RESULT, zeros.len() as u32, rows, 32) };
        raw.put(&zeros, &mut message);
    }
    assert!(message.len() < 1 << 18);
    assert_eq!(refusal(&message.freeze()), DecodeError::ExpandedTooLarge { limit: MAX_MESSAGE_BYTES });
}

#[test]
fn max_message_bytes_of_the_answer_asked_for() {
    // One row, asked for again and again: the answer would be 64 times the limit.
    let hidden = 8192;
    let call = |expert| Call {
        expert: ExpertId(expert),
        pairs: vec![RowPair { row: 0, gate: half::f16::ONE }; 32_768],
    };
    let rows: Bytes = vec![0; Dtype::F16.row_bytes(hidden)].into();
    let calls = (0..4).map(call).collect();
    let hidden = hidden as u16;
    let (layer, dtype, form) = (LayerId(0), Dtype::F16, Form::RowsOnce);
    let asked = Dispatch { layer, hidden, dtype, form, rows, calls, reply: Reply::RowsAndProducts };
    assert!(matches!(asked.check(), Err(ShapeError::TooLarge { .. })));
}

#[test]
fn max_join_message_bytes() {
    let mut hub = HubSession::new(SessionConfig::default(), Duration::ZERO);
    let bytes = MAX_JOIN_MESSAGE_BYTES + 1;
    hub.handle_message(Duration::ZERO, vec![0; bytes].into());
    let error = DecodeError::MessageTooLarge { bytes, limit: MAX_JOIN_MESSAGE_BYTES };
    assert_eq!(hub.poll_event(), Some(HubEvent::Closed { reason: CloseReason::Decode(error) }));

    let mut hub = HubSession::new(SessionConfig::default(), Duration::ZERO);
    let spaces = lz4_flex::block::compress_prepend_size(&vec![b' '; bytes]);
    hub.handle_message(Duration::ZERO, Raw::control(spaces.len() as u32, COMPRESSED).message(&spaces));
    let error = DecodeError::ExpandedTooLarge { limit: MAX_JOIN_MESSAGE_BYTES };
    assert_eq!(hub.poll_event(), Some(HubEvent::Closed { reason: CloseReason::Decode(error) }));
}

#[test]
fn max_control_bytes() {
    let bytes = MAX_CONTROL_BYTES as u64 + 1;
    let plain = Raw::control(bytes as u32, 0).message(&vec![b' '; bytes as usize]);
    assert_eq!(refusal(&plain), DecodeError::ControlTooLarge { bytes });
    // Announced only: four bytes that ask for 4 GiB.
    let announced = Raw::control(4, COMPRESSED).message(&u32::MAX.to_le_bytes());
    assert_eq!(refusal(&announced), DecodeError::ControlTooLarge { bytes: u64::from(u32::MAX) });
}

#[test]
fn an_lz4_prefix_is_what_the_header_implies_and_what_comes_out() {
    let announced = |size: u32| {
        let mut packed = lz4_flex::block::compress_prepend_size(&[0; 64]);
        packed[..4].copy_from_slice(&size.to_le_bytes());
        Raw { flags: COMPRESSED, ..Raw::tensor(RESULT, packed.len() as u32, 4, 8) }.message(&packed)
    };
    assert!(decode_message(&announced(64)).is_ok());
    for size in [0, 63, 65, u32::MAX] {
        assert_eq!(refusal(&announced(size)), DecodeError::Length { bytes: u64::from(size), implied: 64 });
    }
    // The header and the prefix agree on more than comes out, or on less.
    for rows in [2, 8] {
        let mut packed = lz4_flex::block::compress_prepend_size(&[0; 64]);
        packed[..4].copy_from_slice(&(rows * 16_u32).to_le_bytes());
        let raw = Raw { flags: COMPRESSED, ..Raw::tensor(RESULT, packed.len() as u32, rows, 8) };
        assert_eq!(refusal(&raw.message(&packed)), DecodeError::Lz4);
    }
    let short = Raw { flags: COMPRESSED, ..Raw::tensor(RESULT, 3, 4, 8) }.message(&[0; 3]);
    assert_eq!(refusal(&short), DecodeError::Lz4);
}

#[test]
fn max_frames_per_message() {
    let mut message = BytesMut::new();
    for _ in 0..=MAX_FRAMES_PER_MESSAGE {
        Raw { kind: UNKNOWN, ..Raw::control(0, 0) }.put(&[], &mut message);
    }
    assert_eq!(refusal(&message.clone().freeze()), DecodeError::TooManyFrames);
    message.truncate(MAX_FRAMES_PER_MESSAGE * HEADER_BYTES);
    assert_eq!(decode_message(&message.freeze()), Ok(vec![]), "as many as the limit are fine");

    let mut asked = dispatch(Form::RowsOnce, &[]);
    let pairs = vec![RowPair { row: 0, gate: half::f16::ONE }];
    let calls = 0..MAX_FRAMES_PER_MESSAGE as u16;
    asked.calls = calls.map(|expert| Call { expert: ExpertId(expert), pairs: pairs.clone() }).collect();
    assert_eq!(asked.check(), Err(ShapeError::TooManyFrames { frames: MAX_FRAMES_PER_MESSAGE + 1 }));
}

#[test]
fn max_rows_of_a_frame() {
    for rows in [MAX_ROWS + 1, u32::MAX] {
        let message = Raw::tensor(RESULT, 0, rows, 1).message(&[]);
        assert_eq!(refusal(&message), DecodeError::TooManyRows { rows: u64::from(rows) });
    }
}

#[test]
fn max_rows_of_a_plain_dispatch() {
    let mut message = BytesMut::new();
    let payload = vec![0; 40_000 * 4];
    for expert in 0..2 {
        let raw = Raw::tensor(DISPATCH, payload.len() as u32, 40_000, 1);
        Raw { expert, ..raw }.put(&payload, &mut message);
    }
    assert_eq!(refusal(&message.freeze()), DecodeError::TooManyRows { rows: 80_000 });
}

#[test]
fn max_pairs() {
    let mut message = BytesMut::new();
    Raw { expert: 0xFFFF, ..Raw::tensor(DISPATCH, 2, 1, 1) }.put(&[0; 2], &mut message);
    let payload = vec![0; MAX_ROWS as usize * 4];
    for expert in 0..5 {
        let raw = Raw::tensor(DISPATCH, payload.len() as u32, MAX_ROWS, 1);
        Raw { expert, flags: BY_ROW, ..raw }.put(&payload, &mut message);
    }
    let pairs = 5 * u64::from(MAX_ROWS);
    assert!(pairs > u64::from(MAX_PAIRS));
    assert_eq!(refusal(&message.freeze()), DecodeError::Shape(ShapeError::TooManyPairs { pairs }));
}

#[test]
fn max_hidden() {
    let message = Raw::tensor(RESULT, 0, 1, MAX_HIDDEN + 1).message(&[]);
    assert_eq!(refusal(&message), DecodeError::HiddenTooWide { hidden: MAX_HIDDEN + 1 });
}

#[test]
fn max_inner() {
    let products = Raw { expert: 0xFFFF, dtype: 0, ..Raw::tensor(PRODUCTS, 0, 1, MAX_INNER + 1) };
    assert_eq!(refusal(&products.message(&[])), DecodeError::InnerTooWide { inner: MAX_INNER + 1 });
    let too_many = Raw { rows: MAX_PAIRS + 1, hidden: 1, ..products };
    assert_eq!(refusal(&too_many.message(&[])), DecodeError::TooManyRows { rows: u64::from(MAX_PAIRS) + 1 });
    let part = AnswerPart { expert: ExpertId(0), rows: 1, payload: vec![0; 2].into() };
    let products = Some(Products {
        shape: ProductShape { inner: MAX_INNER + 1, format: ProductFormat::F16 },
        payload: Bytes::new(),
    });
    let (layer, dtype) = (LayerId(0), Dtype::F16);
    let answer = Answer { layer, hidden: 1, dtype, parts: vec![part], products };
    assert_eq!(answer.check(), Err(ShapeError::Inner { inner: MAX_INNER + 1 }));
}

#[test]
fn max_digests() {
    let of = |n: usize| {
        let bytes = vec![0; 16 * n];
        Raw { kind: DIGESTS, ..Raw::control(bytes.len() as u32, 0) }.message(&bytes)
    };
    let (bytes, implied) = (16 * (MAX_DIGESTS as u64 + 1), 16 * MAX_DIGESTS as u64);
    assert_eq!(refusal(&of(MAX_DIGESTS + 1)), DecodeError::Length { bytes, implied });
    assert!(decode_message(&of(MAX_DIGESTS)).is_ok());
}

#[test]
fn by_row_pairs_stay_within_the_rows() {
    let mut message = BytesMut::new();
    Raw { expert: 0xFFFF, ..Raw::tensor(DISPATCH, 4, 2, 1) }.put(&[0; 4], &mut message);
    Raw { flags: BY_ROW, ..Raw::tensor(DISPATCH, 4, 1, 1) }.put(&[2, 0, 0, 0x3C], &mut message);
    assert_eq!(refusal(&message.freeze()), DecodeError::Shape(ShapeError::Row { row: 2, rows: 2 }));
}

/// What becomes of a join with something changed.
fn join_field(change: impl FnOnce(&mut Join)) -> Result<Vec<Frame>, DecodeError> {
    let mut join = join();
    change(&mut join);
    decode_message(&Heartbeat::Join(join).encode(Compression::Off))
}

#[test]
fn max_slots() {
    for slots in [0, MAX_SLOTS + 1] {
        let refused = join_field(|join| join.input_slots = slots);
        assert_eq!(refused, Err(DecodeError::JoinField { field: "input_slots" }));
    }
    assert!(join_field(|join| join.input_slots = MAX_SLOTS).is_ok());
}

#[test]
fn max_join_text_bytes() {
    let long = || "x".repeat(MAX_JOIN_TEXT_BYTES + 1);
    assert_eq!(join_field(|join| join.token = long()), Err(DecodeError::JoinField { field: "token" }));
    assert_eq!(
        join_field(|join| join.features.push(long())),
        Err(DecodeError::JoinField { field: "features" })
    );
    let limits = join_field(|join| join.limits.extend([(long(), 0)]));
    assert_eq!(limits, Err(DecodeError::JoinField { field: "limits" }));
}

#[test]
fn max_name_bytes() {
    let named = |n_bytes| join_field(|join| join.name = "x".repeat(n_bytes));
    assert_eq!(named(MAX_NAME_BYTES + 1), Err(DecodeError::JoinField { field: "name" }));
    assert!(named(MAX_NAME_BYTES).is_ok());
}

#[test]
fn max_join_entries() {
    let many = MAX_JOIN_ENTRIES + 1;
    let features = join_field(|join| join.features = vec![String::new(); many]);
    assert_eq!(features, Err(DecodeError::JoinField { field: "features" }));
    let limits = join_field(|join| join.limits = (0..many).map(|index| (index.to_string(), 0)).collect());
    assert_eq!(limits, Err(DecodeError::JoinField { field: "limits" }));
}

#[test]
fn max_blocks_per_frame() {
    let blocks = MAX_BLOCKS_PER_FRAME + 1;
    let drop = (0..blocks as u16).map(|expert| block(0, expert)).collect();
    let sync = WeightSyncFrame::Sync(WeightSync { drop, ..WeightSync::default() });
    assert_eq!(refusal(&sync.encode(Compression::Off)), DecodeError::TooManyBlocks { blocks });
}

#[test]
fn max_resident_blocks() {
    let mut pair = Pair::serving(1);
    let all = (0..u16::MAX).map(|expert| block(7, expert)).collect();
    pair.worker.report_blocks(pair.now, BlockReport { resident: all, ..BlockReport::default() });
    pair.hub_events.clear();
    pair.drive_for(Duration::from_secs(2));
    let beats = pair.hub_events.iter().filter_map(|event| match event {
        HubEvent::Beat { beat, .. } => Some(beat.blocks_resident as usize),
        _ => None,
    });
    assert_eq!(beats.max(), Some(MAX_RESIDENT_BLOCKS));
}

#[test]
fn max_error_text_bytes() {
    // By hand, since encoding cuts as well.
    let json = format!(r#"{{"code":"bad_frame","message":"{}"}}"#, "x".repeat(MAX_ERROR_TEXT_BYTES + 1));
    let message = Raw { kind: 6, ..Raw::control(json.len() as u32, 0) }.message(json.as_bytes());
    let frames = decode_message(&message).unwrap();
    let [Frame::Error(WireError { message, .. })] = &frames[..] else { panic!("an ERROR") };
    assert_eq!(message.len(), MAX_ERROR_TEXT_BYTES);
}

#[test]
fn max_outbox_messages() {
    // A worker whose hub pings, and whose driver never sends.
    let mut pair = Pair::serving(1);
    let ping =
        Heartbeat::Ping(moex_protocol::Ping { hub_micros: 1, ..Default::default() }).encode(Compression::Off);
    for _ in 0..=MAX_OUTBOX_MESSAGES {
        pair.worker.handle_message(pair.now, ping.clone());
    }
    assert_eq!((pair.worker.state(), pair.worker.close_code()), (State::Closed, Some(1013)));
    assert_eq!(pair.worker.poll_transmit(), None, "nothing is kept for a peer that does not read");
}

#[test]
fn max_outbox_bytes() {
    let mut pair = Pair::serving(1);
    let mut large = dispatch(Form::RowsOnce, &[3]);
    large.rows = vec![0; 65_000 * 8].into();
    let fit = MAX_OUTBOX_BYTES / encoded(&large, 1).len();
    assert!(fit < MAX_OUTSTANDING_ATTEMPTS);
    for attempt in 1..=fit as u32 {
        pair.hub.dispatch(pair.now, AttemptId(attempt), &large).unwrap();
    }
    let refused = pair.hub.dispatch(pair.now, AttemptId(fit as u32 + 1), &large);
    assert_eq!(refused, Err(SendError::Backlog));
    assert_eq!(
        (pair.hub.outstanding(), pair.hub.state()),
        (fit, State::Serving),
        "nothing was sent, nothing lost"
    );
}

#[test]
fn max_events() {
    // Late answers, that nobody takes notice of.
    let mut pair = Pair::serving(1);
    let asked = dispatch(Form::Plain, &[3]);
    let attempt = pair.dispatch();
    let answer = answer_to(&asked).encode(attempt, Compression::Off).unwrap();
    for _ in 0..=MAX_EVENTS {
        pair.hub.handle_message(pair.now, answer.clone());
    }
    assert_eq!(pair.hub.state(), State::Closed);
    let events: Vec<_> = std::iter::from_fn(|| pair.hub.poll_event()).collect();
    assert_eq!(events.len(), MAX_EVENTS + 1);
    assert_eq!(events.last(), Some(&HubEvent::Closed { reason: CloseReason::Backlog }));
}

#[test]
fn max_outstanding_attempts() {
    let mut pair = Pair::serving(1);
    for _ in 0..MAX_OUTSTANDING_ATTEMPTS {
        pair.dispatch();
    }
    let next = AttemptId(MAX_OUTSTANDING_ATTEMPTS as u32 + 1);
    let asked = dispatch(Form::Plain, &[3]);
    assert_eq!(pair.hub.dispatch(pair.now, next, &asked), Err(SendError::TooManyOutstanding));
    pair.hub.cancel(pair.now, AttemptId(1));
    assert_eq!(pair.hub.dispatch(pair.now, next, &asked), Ok(()));
    let again = pair.hub.dispatch(pair.now, next, &asked);
    assert_eq!(again, Err(SendError::AttemptOrder { attempt: next, last: next }));
}

#[test]
fn max_remembered_attempts() {
    let mut pair = Pair::serving(1);
    let first = pair.dispatch();
    for _ in 0..MAX_REMEMBERED_ATTEMPTS {
        let attempt = pair.dispatch();
        pair.hub.cancel(pair.now, attempt);
        pair.drive_for(LATENCY);
    }
    // Forgotten while it was owed: an answer is late, and no reason to end the session.
    assert_eq!(pair.hub.outstanding(), 0);
    let answer = answer_to(&dispatch(Form::Plain, &[3])).encode(first, Compression::Off).unwrap();
    pair.inject_to_hub(answer);
    pair.drive_for(LATENCY);
    assert!(matches!(pair.hub_events.last(), Some(HubEvent::Late { attempt, .. }) if *attempt == first));
}

#[test]
fn max_started_attempts() {
    let mut pair = Pair::serving(MAX_SLOTS);
    for _ in 0..MAX_STARTED_ATTEMPTS {
        pair.dispatch();
        pair.drive_for(LATENCY);
        assert!(pair.worker.next_work(pair.now).is_some());
    }
    let attempt = pair.dispatch();
    pair.drive_for(LATENCY);
    assert_eq!(pair.worker.next_work(pair.now), None, "it waits in its slot");
    pair.worker.handle_message(pair.now, cancel::encode(AttemptId(1)));
    assert_eq!(pair.worker.next_work(pair.now).map(|(started, _)| started), Some(attempt));
}

#[test]
fn long_texts_of_a_driver_are_cut_before_the_join() {
    let mut join = join();
    join.adapter = "x".repeat(2 * MAX_JOIN_TEXT_BYTES);
    join.name = "\u{e9}".repeat(MAX_NAME_BYTES);
    join.input_slots = 0;
    let mut worker = WorkerSession::new(WorkerConfig { join }, Duration::ZERO);
    let frames = decode_message(&worker.poll_transmit().unwrap()).unwrap();
    let [Frame::Heartbeat(Heartbeat::Join(sent))] = &frames[..] else { panic!("a join") };
    assert_eq!((sent.adapter.len(), sent.input_slots), (MAX_JOIN_TEXT_BYTES, 1));
    assert_eq!(sent.name.len(), MAX_NAME_BYTES, "cut between characters");
    worker.report_beat(
        Duration::ZERO,
        moex_protocol::Beat { visibility: Visibility::Leaving, ..Default::default() },
    );
    assert_eq!(worker.state(), State::Closed, "leaving before being accepted is just leaving");
}
