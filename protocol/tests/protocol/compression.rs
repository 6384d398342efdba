//! What is compressed and when: agreed on by both ends, and with `auto` only where a slow link makes it pay.

use std::time::Duration;

use bytes::Bytes;
use half::f16;
use moex_protocol::{
    Accepted, AttemptId, Beat, BlockReport, Call, Compression, CompressionMode, Dispatch, Dtype, ExpertId,
    Form, Heartbeat, HubEvent, HubSession, LayerId, ModelSummary, Pair, Reply, SessionConfig, WorkerConfig,
    WorkerSession,
};

use crate::samples::{accepted, answer_to, block, join, report};

/// D: rows that are worth compressing.
const HIDDEN: u16 = 2048;
/// One way, for a message of any size.
const LATENCY: Duration = Duration::from_millis(2);
/// Where the header's flags are, and that of a compressed payload.
const FLAGS: usize = 0x1B;

/// Both ends and a link that takes its time for each byte.
struct Line {
    now: Duration,
    hub: HubSession,
    worker: WorkerSession,
    bytes_per_second: Option<u64>,
    to_worker: Vec<Bytes>,
    to_hub: Vec<Bytes>,
    answered: usize,
    attempts: u32,
}

impl Line {
    fn serving(compression: CompressionMode, bytes_per_second: Option<u64>) -> Self {
        let config = SessionConfig { compression, ..SessionConfig::default() };
        let now = Duration::ZERO;
        let mut line = Self {
            now,
            hub: HubSession::new(config, now),
            worker: WorkerSession::new(WorkerConfig { join: join() }, now),
            bytes_per_second,
            to_worker: Vec::new(),
            to_hub: Vec::new(),
            answered: 0,
            attempts: 0,
        };
        line.exchange();
        let model = ModelSummary { hidden: HIDDEN.into(), ..accepted().model };
        line.hub.accept(line.now, Accepted { model, ..accepted() });
        line.exchange();
        let resident = vec![block(0, 3)];
        line.worker.report_blocks(line.now, BlockReport { resident, ..report() });
        line.exchange();
        line
    }

    fn carry(&mut self, message: &Bytes) {
        let transfer = self.bytes_per_second.map(|rate| message.len() as f64 / rate as f64);
        self.now += LATENCY + Duration::from_secs_f64(transfer.unwrap_or_default());
    }

    fn exchange(&mut self) {
        loop {
            if let Some(message) = self.hub.poll_transmit() {
                self.carry(&message);
                self.worker.handle_message(self.now, message.clone());
                self.to_worker.push(message);
            } else if let Some(message) = self.worker.poll_transmit() {
                self.carry(&message);
                self.hub.handle_message(self.now, message.clone());
                self.to_hub.push(message);
            } else {
                break;
            }
        }
        while let Some(event) = self.hub.poll_event() {
            assert!(!matches!(event, HubEvent::Failed { .. } | HubEvent::Closed { .. }), "{event:?}");
            self.answered += usize::from(matches!(event, HubEvent::Answered { .. }));
        }
        while self.worker.poll_event().is_some() {}
    }

    fn heartbeats(&mut self, n: usize) {
        for _ in 0..n {
            self.now += Duration::from_secs(1);
            self.hub.handle_timeout(self.now);
            self.exchange();
        }
    }

    /// A dispatch of rows that shrink, there and back; whether each way was compressed.
    fn ask(&mut self) -> [bool; 2] {
        self.ask_with(&mut |_| 0x11)
    }

    /// The same with rows of these bytes.
    fn ask_with(&mut self, byte: &mut dyn FnMut(usize) -> u8) -> [bool; 2] {
        let dtype = Dtype::F16;
        let pairs = vec![Pair { row: 0, gate: f16::ONE }];
        let dispatch = Dispatch {
            layer: LayerId(0),
            hidden: HIDDEN,
            dtype,
            form: Form::Plain,
            rows: (0..dtype.row_bytes(HIDDEN.into())).map(byte).collect::<Vec<_>>().into(),
            calls: vec![Call { expert: ExpertId(3), pairs }],
            reply: Reply::Rows,
        };
        self.attempts += 1;
        self.hub.dispatch(self.now, AttemptId(self.attempts), &dispatch).expect("the worker serves");
        self.exchange();
        let (attempt, work) = self.worker.next_work(self.now).expect("it was asked");
        assert_eq!(work, dispatch, "what arrives is what was sent");
        let before = self.answered;
        self.worker.complete(self.now, attempt, answer_to(&work)).expect("it is owed");
        self.exchange();
        assert_eq!(self.answered, before + 1);
        [&self.to_worker, &self.to_hub].map(|sent| sent.last().expect("something was sent")[FLAGS] & 1 == 1)
    }

    fn bytes_sent(&self) -> usize {
        self.to_worker.iter().chain(&self.to_hub).map(Bytes::len).sum()
    }
}

#[test]
fn on_is_on_from_the_first_heartbeat() {
    let mut line = Line::serving(CompressionMode::On, None);
    assert_eq!(line.ask(), [false, false], "the worker has not said that it takes it");
    line.heartbeats(1);
    assert_eq!(line.ask(), [true, true]);
}

#[test]
fn off_says_and_sends_nothing_of_it() {
    let mut line = Line::serving(CompressionMode::Off, Some(100_000));
    line.heartbeats(100);
    assert_eq!(line.ask(), [false, false]);
    assert_eq!(line.hub.link_bytes_per_second(), [None, None]);
    for message in line.to_worker.iter().chain(&line.to_hub) {
        let text = String::from_utf8_lossy(message);
        assert!(
            !text.contains("compression") && !text.contains("lz4") && !text.contains("padding"),
            "{text}"
        );
    }
}

#[test]
fn auto_stays_off_where_the_link_is_fast() {
    let mut line = Line::serving(CompressionMode::Auto, None);
    line.heartbeats(1);
    assert_eq!(line.ask(), [true, false], "the hub tries one");
    line.heartbeats(100);
    for rate in line.hub.link_bytes_per_second() {
        assert!(rate.is_some_and(|rate| rate > 1_000_000_000), "{rate:?}");
    }
    assert_eq!(line.ask(), [false, false]);
    assert!(!line.hub.is_compressing());
}

#[test]
fn auto_is_on_where_the_link_is_slow_and_payloads_shrink() {
    let slow = 500_000;
    let mut line = Line::serving(CompressionMode::Auto, Some(slow));
    line.heartbeats(1);
    line.ask();
    line.heartbeats(40);
    for rate in line.hub.link_bytes_per_second() {
        let rate = rate.expect("it is known by now") as f64;
        assert!((rate / slow as f64 - 1.0).abs() < 0.05, "{rate}");
    }
    assert_eq!(line.ask(), [true, true]);
    assert!(line.hub.is_compressing());
    // The link becomes fast: within the memory of the measurement it is off again.
    line.bytes_per_second = None;
    line.heartbeats(300);
    assert_eq!(line.ask(), [false, false]);
}

#[test]
fn rows_that_do_not_shrink_cost_no_padding_however_slow_the_link() {
    let mut line = Line::serving(CompressionMode::Auto, Some(100_000));
    line.heartbeats(1);
    let mut state = 1_u32;
    let mut random = |_: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    for _ in 0..200 {
        assert_eq!(line.ask_with(&mut random), [false, false]);
    }
    line.heartbeats(100);
    assert_eq!(line.hub.link_bytes_per_second(), [None, None]);
    assert!(line.to_worker.iter().all(|message| message.len() < 8192));
}

#[test]
fn measuring_a_slow_link_takes_a_small_part_of_it() {
    let slow = 500_000;
    let mut line = Line::serving(CompressionMode::Auto, Some(slow));
    line.heartbeats(1);
    line.ask();
    line.heartbeats(40);
    let before = line.bytes_sent();
    line.heartbeats(320);
    let part = (line.bytes_sent() - before) as f64 / (320 * slow) as f64;
    assert!(part < 0.02, "{part}");
}

#[test]
fn a_worker_that_does_not_know_of_it_gets_nothing_compressed_and_no_padding() {
    let config = SessionConfig { compression: CompressionMode::Auto, ..SessionConfig::default() };
    let mut hub = HubSession::new(config, Duration::ZERO);
    hub.handle_message(Duration::ZERO, Heartbeat::Join(join()).encode(Compression::Off));
    hub.accept(Duration::ZERO, accepted());
    let mut now = Duration::ZERO;
    while hub.poll_transmit().is_some() {}
    for _ in 0..100 {
        now += Duration::from_secs(1);
        hub.handle_timeout(now);
        let ping = hub.poll_transmit().unwrap();
        assert!(ping.len() < 200 && ping[FLAGS] == 0, "{}", ping.len());
        let echo = Some(u64::try_from(now.as_micros()).unwrap());
        hub.handle_message(now, Heartbeat::Beat(Beat { echo, ..Beat::default() }).encode(Compression::Off));
    }
    assert!(!hub.is_compressing());
}

#[test]
fn a_hub_that_asks_for_more_padding_than_there_is_gets_what_there_is() {
    let mut line = Line::serving(CompressionMode::Off, None);
    let greedy = moex_protocol::Ping { padding_bytes: u32::MAX, ..Default::default() };
    line.worker.handle_message(line.now, Heartbeat::Ping(greedy).encode(Compression::Off));
    let padded = line.worker.poll_transmit().unwrap();
    assert!(padded.len() < moex_protocol::frame::padding::MAX_PADDING_BYTES + 1024, "{}", padded.len());
    line.hub.handle_message(line.now, padded);
    assert!(line.hub.poll_event().is_some_and(|event| matches!(event, HubEvent::Beat { .. })));
}
