//! The bodies of the fuzz targets in `fuzz/`, here so that ordinary tests run them too. Both panic on a broken rule;
//! neither is part of the crate's interface.

use core::time::Duration;
use std::collections::BTreeSet;

use bytes::Bytes;
use half::f16;

use crate::frame::{Frame, decode_message};
use crate::limits::{MAX_CONTROL_BYTES, MAX_SLOTS, MAX_STARTED_ATTEMPTS};
use crate::{
    Accepted, Answer, AnswerPart, AttemptId, Beat, Block, BlockReport, Call, Compression, CompressionMode,
    Dispatch, Dtype, ErrorCode, ExpertId, Form, Heartbeat, HubEvent, HubSession, Join, LayerId, ModelSummary,
    Pair, ProductFormat, ProductShape, Products, Reply, SelfTest, SessionConfig, State, Visibility,
    WeightSync, WorkerConfig, WorkerEvent, WorkerKey, WorkerKind, WorkerSession, cancel, digests,
};

/// Any bytes as a message: decoding ends without a panic, and what decodes encodes to a message that says the same.
pub fn decode(bytes: &[u8]) {
    let Ok(frames) = decode_message(&Bytes::copy_from_slice(bytes)) else { return };
    for frame in &frames {
        let once = encode(frame);
        // JSON may grow when written in full; then it may pass its limit.
        if matches!(frame, Frame::Heartbeat(_) | Frame::WeightSync(_)) && once.len() > MAX_CONTROL_BYTES {
            continue;
        }
        let decoded = decode_message(&once).expect("what decoded encodes to a message");
        let [back] = decoded.as_slice() else { panic!("one frame came back as {}", decoded.len()) };
        // Bytes and not values, because a NaN gate is not equal to itself; and a join has floats, whose last digit
        // JSON does not promise.
        if !matches!(frame, Frame::Heartbeat(Heartbeat::Join(_))) {
            assert_eq!(encode(back), once, "encoding is stable");
        }
    }
}

/// Bytes as operations on both ends of a connection, and on what is on the wire between them. Whatever is done, each
/// attempt is settled at most once, the closing event is the last, bounds hold, and a closed session says nothing.
pub fn sessions(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut world = World::new(input.byte());
    while !input.0.is_empty() {
        world.operate(&mut input);
        world.collect();
    }
}

fn encode(frame: &Frame) -> Bytes {
    const SOUND: &str = "what decoded is well formed";
    match frame {
        Frame::Dispatch(attempt, dispatch) => dispatch.encode(*attempt, Compression::Off).expect(SOUND),
        Frame::Result(attempt, answer) => answer.encode(*attempt, Compression::Off).expect(SOUND),
        Frame::Digests(attempt, digests) => digests::encode(*attempt, digests),
        Frame::Cancel(attempt) => cancel::encode(*attempt),
        Frame::Heartbeat(heartbeat) => heartbeat.encode(Compression::Off),
        Frame::WeightSync(sync) => sync.encode(Compression::Off),
        Frame::Error(error) => error.encode(Compression::Off),
    }
}

/// Bytes as choices; zeros when they run out.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }

    fn take(&mut self, n_bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n_bytes.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// D of every model here.
const HIDDEN: u16 = 2;
/// F of what it says can be checked.
const PRODUCTS: ProductShape = ProductShape { inner: 1, format: ProductFormat::F16 };

struct World {
    now: Duration,
    hub: HubSession,
    worker: WorkerSession,
    slots: usize,
    to_hub: Vec<Bytes>,
    to_worker: Vec<Bytes>,
    work: Vec<(AttemptId, Dispatch)>,
    next_attempt: AttemptId,
    /// Dispatched and neither settled nor cancelled.
    owed: BTreeSet<AttemptId>,
    hub_closed: bool,
    worker_closed: bool,
}

impl World {
    fn new(slots: u8) -> Self {
        let input_slots = slots % (MAX_SLOTS + 2);
        let modes = [CompressionMode::Off, CompressionMode::On, CompressionMode::Auto];
        let compression = modes[usize::from(slots / (MAX_SLOTS + 2)) % modes.len()];
        let config = SessionConfig { compression, ..SessionConfig::default() };
        let now = Duration::ZERO;
        Self {
            now,
            hub: HubSession::new(config, now),
            worker: WorkerSession::new(WorkerConfig { join: join(input_slots) }, now),
            slots: usize::from(input_slots.clamp(1, MAX_SLOTS)),
            to_hub: Vec::new(),
            to_worker: Vec::new(),
            work: Vec::new(),
            next_attempt: AttemptId(u32::MAX - 3),
            owed: BTreeSet::new(),
            hub_closed: false,
            worker_closed: false,
        }
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        match input.byte() % 20 {
            0 => self.deliver_to_hub(),
            1 => self.deliver_to_worker(),
            2 => self.now += Duration::from_millis(u64::from(input.byte()) * 100),
            3 => self.hub.handle_timeout(now),
            4 => self.worker.handle_timeout(now),
            5 => self.hub.accept(now, accepted()),
            6 => self.dispatch(input),
            7 => self.cancel(input),
            8 => self.work.extend(self.worker.next_work(now)),
            9 => self.complete(input),
            10 => self.fail(input),
            11 => self
                .worker
                .report_blocks(now, BlockReport { resident: blocks(input), ..BlockReport::default() }),
            12 => {
                let sync = WeightSync { epoch: 1, hold: Vec::new(), drop: blocks(input) };
                // Refused unless the worker is accepted, which is one of the rules under test.
                let _ = self.hub.sync_weights(now, sync);
            }
            13 => self.worker.report_beat(now, beat(input)),
            14 => self.hub.drain(now),
            15 => self.foreign_bytes(input),
            16 => self.damage(input),
            17 => self.hub.reject(now, ErrorCode::Unauthorized, "no"),
            18 => self.worker.stop(now, ErrorCode::DeviceLost, "gone"),
            _ => match input.byte() % 4 {
                0 => self.hub.handle_text(now),
                1 => self.worker.handle_text(now),
                2 => self.hub.handle_closed(now),
                _ => self.worker.handle_closed(now),
            },
        }
    }

    fn deliver_to_hub(&mut self) {
        if !self.to_hub.is_empty() {
            self.hub.handle_message(self.now, self.to_hub.remove(0));
        }
    }

    fn deliver_to_worker(&mut self) {
        if !self.to_worker.is_empty() {
            self.worker.handle_message(self.now, self.to_worker.remove(0));
        }
    }

    fn dispatch(&mut self, input: &mut Input<'_>) {
        let dispatch = dispatch(input);
        let was = self.hub.state();
        // Some ids are skipped: their answers would be made up.
        self.next_attempt =
            if input.byte().is_multiple_of(4) { self.next_attempt.next() } else { self.next_attempt }.next();
        if self.hub.dispatch(self.now, self.next_attempt, &dispatch).is_ok() {
            assert_eq!(was, State::Serving, "dispatched while {was}");
            self.owed.insert(self.next_attempt);
        }
    }

    fn cancel(&mut self, input: &mut Input<'_>) {
        let back = u32::from(input.byte() % 8);
        let attempt = AttemptId(self.next_attempt.0.wrapping_sub(back));
        self.hub.cancel(self.now, attempt);
        if !self.hub_closed {
            self.owed.remove(&attempt);
        }
    }

    fn complete(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        if self.work.is_empty() {
            return;
        }
        let (attempt, dispatch) = self.work.remove(usize::from(choice) % self.work.len());
        // Refused if foreign bytes have asked for something else as the same attempt.
        if self.worker.complete(self.now, attempt, answer_to(&dispatch, choice)).is_err() {
            self.worker.fail(self.now, attempt, ErrorCode::BadFrame, "asked for twice");
        }
    }

    fn fail(&mut self, input: &mut Input<'_>) {
        let choice = usize::from(input.byte());
        if !self.work.is_empty() {
            let (attempt, _) = self.work.remove(choice % self.work.len());
            self.worker.fail(self.now, attempt, ErrorCode::OutOfMemory, "no room");
        }
    }

    /// Bytes that neither end sent.
    fn foreign_bytes(&mut self, input: &mut Input<'_>) {
        let (side, n_bytes) = (input.byte(), input.byte());
        let message = Bytes::copy_from_slice(input.take(usize::from(n_bytes)));
        if side % 2 == 0 {
            self.hub.handle_message(self.now, message);
        } else {
            self.worker.handle_message(self.now, message);
        }
    }

    /// One byte of a message under way, replaced.
    fn damage(&mut self, input: &mut Input<'_>) {
        let (side, at, value) = (input.byte(), usize::from(input.byte()), input.byte());
        let wire = if side % 2 == 0 { &mut self.to_hub } else { &mut self.to_worker };
        if let Some(message) = wire.first_mut() {
            let mut bytes = message.to_vec();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            *message = bytes.into();
        }
    }

    /// Takes everything that both sessions give, and checks it.
    fn collect(&mut self) {
        self.to_worker.extend(std::iter::from_fn(|| self.hub.poll_transmit()));
        self.to_hub.extend(std::iter::from_fn(|| self.worker.poll_transmit()));
        while let Some(event) = self.hub.poll_event() {
            assert!(!self.hub_closed, "an event after the last: {event:?}");
            match event {
                HubEvent::Answered { attempt, .. }
                | HubEvent::NotFinite { attempt }
                | HubEvent::Failed { attempt, .. } => {
                    assert!(self.owed.remove(&attempt), "{attempt} is settled and was not owed");
                }
                HubEvent::Closed { .. } => self.hub_closed = true,
                // Owed still, if the session had to forget it.
                HubEvent::Late { attempt, .. } | HubEvent::Digested { attempt, .. } => {
                    self.owed.remove(&attempt);
                }
                HubEvent::Joined(_) | HubEvent::Beat { .. } | HubEvent::Blocks(_) => {}
            }
        }
        while let Some(event) = self.worker.poll_event() {
            assert!(!self.worker_closed, "an event after the last: {event:?}");
            if let WorkerEvent::Closed { .. } = event {
                self.worker_closed = true;
            }
        }
        assert_eq!(self.hub_closed, self.hub.state() == State::Closed);
        assert_eq!(self.worker_closed, self.worker.state() == State::Closed);
        assert!(
            !self.worker_closed || self.worker.poll_timeout().is_none(),
            "a closed worker waits for nothing"
        );
        assert!(
            !self.hub_closed || self.hub.poll_timeout().is_none(),
            "a closed hub session waits for nothing"
        );
        assert!(self.worker.queue_depth() <= self.slots + MAX_STARTED_ATTEMPTS);
        // The session may have forgotten old ones, never the other way round.
        assert!(self.hub.outstanding() <= self.owed.len() || self.hub_closed);
    }
}

fn join(input_slots: u8) -> Join {
    Join {
        token: String::new(),
        key: WorkerKey(1),
        name: String::new(),
        kind: WorkerKind::Native,
        build: String::new(),
        adapter: String::new(),
        backend: String::new(),
        features: Vec::new(),
        limits: Default::default(),
        memory_budget_bytes: 0,
        self_test: SelfTest { passed: true, worst_nmse: 0.0, detail: String::new() },
        sync_latency_micros: 0,
        gigabytes_per_second: 0.0,
        teraflops: 0.0,
        input_slots,
        gives_products: true,
        gives_digests: true,
    }
}

fn accepted() -> Accepted {
    let model =
        ModelSummary { hidden: u32::from(HIDDEN), max_rows: 8, max_pairs: 16, ..ModelSummary::default() };
    Accepted {
        session: 1,
        heartbeat_interval_millis: 1000,
        dispatch_timeout_millis: 500,
        model,
        wants_products: true,
    }
}

fn blocks(input: &mut Input<'_>) -> Vec<Block> {
    let choice = input.byte();
    let block = |expert| Block { layer: LayerId(0), expert: ExpertId(expert) };
    (0..8).filter(|bit| choice >> bit & 1 == 1).map(block).collect()
}

fn beat(input: &mut Input<'_>) -> Beat {
    let visibility = match input.byte() % 8 {
        0 => Visibility::Leaving,
        1 | 2 => Visibility::Hidden,
        3 => Visibility::Frozen,
        _ => Visibility::Visible,
    };
    Beat { visibility, ..Beat::default() }
}

/// Well formed or nearly so: the row index may point behind the rows.
fn dispatch(input: &mut Input<'_>) -> Dispatch {
    let form = if input.byte().is_multiple_of(2) { Form::Plain } else { Form::RowsOnce };
    let (expert, row, n_rows) = (u16::from(input.byte() % 8), u16::from(input.byte() % 4), input.byte() % 12);
    let dtype = Dtype::F16;
    let pairs = vec![Pair { row, gate: f16::ONE }];
    Dispatch {
        layer: LayerId(0),
        hidden: HIDDEN,
        dtype,
        form,
        rows: vec![0; usize::from(n_rows) * dtype.row_bytes(usize::from(HIDDEN))].into(),
        calls: vec![Call { expert: ExpertId(expert), pairs }],
        reply: [Reply::Rows, Reply::RowsAndProducts, Reply::Digests][usize::from(row % 3)],
    }
}

/// Of the shape asked for; an odd choice makes a value infinite.
fn answer_to(dispatch: &Dispatch, choice: u8) -> Answer {
    let value = if choice % 2 == 1 { [0x00, 0x7C] } else { [0x00, 0x3C] };
    let shape = dispatch.answer_shape();
    let n_values = |rows| rows as usize * usize::from(dispatch.hidden);
    let part = |(expert, rows)| AnswerPart { expert, rows, payload: value.repeat(n_values(rows)).into() };
    Answer {
        layer: shape.layer,
        hidden: shape.hidden,
        dtype: shape.dtype,
        products: (shape.reply == Reply::RowsAndProducts).then(|| Products {
            shape: PRODUCTS,
            payload: vec![0; dispatch.n_pairs() * PRODUCTS.row_bytes()].into(),
        }),
        parts: shape.parts.into_iter().map(part).collect(),
    }
}
