//! A peer that speaks the protocol well enough to be asked, and then does harm, one [`Attack`] at a time.
//!
//! All but [`Attack::Lie`] show on the wire. Against a plausible lie there is only the hub's own computing.

use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

use bytes::Bytes;
use half::f16;
use moex_protocol::{
    Answer, AttemptId, Beat, Block, BlockReport, Compression, Dispatch, Dtype, ErrorCode, ExpertId,
    Heartbeat, Join, LayerId, Ping, SelfTest, Visibility, WireError, WorkerConfig, WorkerEvent, WorkerId,
    WorkerKind, WorkerSession, limits,
};

use super::{Delay, Event, Link, PeerId, Toward, World, link::Packet, peer::Kind};
use crate::monte_carlo::Random;

/// Answers it keeps to send again.
const MAX_KEPT: usize = 8;
/// Times it comes back after it was shown the door.
const MAX_RETURNS: u32 = 4;
/// How long it waits before it does.
const RETURN_DELAY: Duration = Duration::from_millis(700);

/// A hostile peer to be added.
#[derive(Clone, Debug)]
pub struct HostileSpec {
    /// Its id, which is nobody else's.
    pub id: WorkerId,
    /// The hub's token, or not.
    pub token: String,
    /// Between it and the hub.
    pub link: Link,
    /// How long it thinks before each deed.
    pub delay: Delay,
    /// What it says it has room for.
    pub memory_budget_bytes: u64,
    /// What it says it computes.
    pub teraflops: f32,
    /// Whether it says of every block that it could not load it, not that it has it.
    pub fails_loads: bool,
    /// One is chosen for each dispatch; not empty.
    pub attacks: Vec<Attack>,
}

/// What can be done with a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Finite values of the right shape, and wrong.
    Lie,
    /// Nothing.
    Silence,
    /// The right answer, twice.
    AnswerTwice,
    /// The right answer, after other dispatches that came later.
    AnswerOutOfOrder,
    /// A NaN or an infinity among right values.
    NotFinite,
    /// A part too few, a row too many, another width, number format, layer or expert.
    WrongShape,
    /// The right answer, for an attempt that somebody else was asked.
    OthersAttempt,
    /// An answer that was sent before.
    Stale,
    /// An error in answer, of any kind.
    Refuse,
    /// The right answer with a bit of a header flipped, never of its attempt.
    Garble,
    /// The right answer, cut short.
    Truncate,
    /// Bytes of no meaning.
    Noise,
    /// A text message.
    Text,
    /// A message beyond the limit.
    Oversize,
    /// A frame that announces far more than it brings, compressed.
    Bomb,
    /// A report of blocks that do not exist or were not asked for, and of failures.
    BogusReport,
    /// A hundred heartbeats at once, of changing visibility.
    Flood,
    /// Another join in the same session.
    SecondJoin,
    /// A frame that only a hub sends.
    HubFrame,
    /// Nothing, and the connection is gone.
    Vanish,
}

impl Attack {
    /// All of them, the lie first.
    pub const ALL: [Self; 20] = [
        Self::Lie,
        Self::Silence,
        Self::AnswerTwice,
        Self::AnswerOutOfOrder,
        Self::NotFinite,
        Self::WrongShape,
        Self::OthersAttempt,
        Self::Stale,
        Self::Refuse,
        Self::Garble,
        Self::Truncate,
        Self::Noise,
        Self::Text,
        Self::Oversize,
        Self::Bomb,
        Self::BogusReport,
        Self::Flood,
        Self::SecondJoin,
        Self::HubFrame,
        Self::Vanish,
    ];
}

/// See the [module's description](self).
#[derive(Debug)]
pub(super) struct Hostile {
    spec: HostileSpec,
    session: Option<WorkerSession>,
    returns: u32,
    /// Asked and not answered.
    asked: BTreeMap<AttemptId, Dispatch>,
    kept: Vec<Bytes>,
    /// Deeds whose time will come.
    owed: Vec<AttemptId>,
    /// The lowest attempt it was ever asked: what lies below was asked of others, or of nobody.
    lowest: Option<AttemptId>,
}

impl Hostile {
    pub(super) fn new(spec: HostileSpec) -> Self {
        Self {
            spec,
            session: None,
            returns: 0,
            asked: BTreeMap::new(),
            kept: Vec::new(),
            owed: Vec::new(),
            lowest: None,
        }
    }

    pub(super) fn start(&mut self) {
        self.returns = 0;
    }

    pub(super) fn connected(&mut self, now: Duration) {
        self.session = Some(WorkerSession::new(WorkerConfig { join: self.join() }, now));
        self.asked.clear();
        self.kept.clear();
        self.owed.clear();
        self.lowest = None;
    }

    pub(super) fn disconnected(&mut self) -> Option<Duration> {
        self.session = None;
        self.returns += 1;
        (self.returns <= MAX_RETURNS).then_some(RETURN_DELAY)
    }

    pub(super) fn handle_message(&mut self, now: Duration, message: Bytes) {
        let Some(session) = &mut self.session else { return };
        session.handle_message(now, message);
        while let Some(event) = session.poll_event() {
            if let WorkerEvent::Sync(sync) = event {
                // It has nothing, and says it has everything, or can have nothing.
                let blocks = sync.hold.iter().map(|source| source.block);
                let report = BlockReport { epoch: sync.epoch, ..BlockReport::default() };
                let report = match self.spec.fails_loads {
                    true => {
                        let failed = blocks.map(|block| (block, "no such file".to_owned())).collect();
                        BlockReport { failed, ..report }
                    }
                    false => BlockReport { resident: blocks.collect(), ..report },
                };
                session.report_blocks(now, report);
            }
        }
        while let Some((attempt, dispatch)) = session.next_work(now) {
            self.lowest.get_or_insert(attempt);
            self.asked.insert(attempt, dispatch);
            self.owed.push(attempt);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Duration) {
        if let Some(session) = &mut self.session {
            session.handle_timeout(now);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.session.as_ref()?.poll_timeout()
    }

    fn join(&self) -> Join {
        Join {
            token: self.spec.token.clone(),
            worker: self.spec.id,
            name: String::new(),
            kind: WorkerKind::Native,
            build: "hostile".to_owned(),
            adapter: "hostile".to_owned(),
            backend: "cpu".to_owned(),
            features: Vec::new(),
            limits: BTreeMap::new(),
            memory_budget_bytes: self.spec.memory_budget_bytes,
            self_test: SelfTest { passed: true, worst_nmse: 0.0, detail: String::new() },
            sync_latency_micros: 1,
            gigabytes_per_second: f32::INFINITY,
            teraflops: self.spec.teraflops,
            input_slots: limits::MAX_SLOTS,
        }
    }
}

impl World {
    /// Sends what the session has to say, and plans a deed for each dispatch that came.
    pub(super) fn flush_hostile(&mut self, id: PeerId) {
        let (now, peer) = (self.now, &mut self.peers[id.0]);
        let (life, connection) = (peer.life, peer.connection);
        let Kind::Hostile(hostile) = &mut peer.kind else { return };
        for _ in 0..hostile.owed.len() {
            let at = now + hostile.spec.delay.draw(&mut self.random);
            self.events.push(at, Event::Attack(id, life));
        }
        hostile.owed.clear();
        let Some(session) = &mut hostile.session else { return };
        let messages: Vec<Bytes> = std::iter::from_fn(|| session.poll_transmit()).collect();
        let close = session.close_code();
        let Some(connection) = connection else { return };
        for message in messages {
            self.say(id, Packet::Binary(message));
        }
        if close.is_some() && self.peers[id.0].connection == Some(connection) {
            self.close_from_peer(connection);
            self.disconnected(id);
        }
    }

    /// A deed's time has come: which one, and for which of the dispatches that wait, is drawn now.
    pub(super) fn attack_due(&mut self, id: PeerId, life: u32) {
        let (now, peer) = (self.now, &mut self.peers[id.0]);
        if peer.life != life || !peer.is_running || peer.connection.is_none() {
            return;
        }
        let Kind::Hostile(hostile) = &mut peer.kind else { return };
        let attack = hostile.spec.attacks[self.random.below(hostile.spec.attacks.len())];
        // Out of order: the newest first.
        let newest = attack == Attack::AnswerOutOfOrder;
        let next = if newest { hostile.asked.pop_last() } else { hostile.asked.pop_first() };
        let Some((attempt, dispatch)) = next else { return };
        let Ok(answer) = self.model.answer(&dispatch) else { return };
        let right = answer.encode(attempt, Compression::Off).unwrap_or_default();
        let random = &mut self.random;
        let packets: Vec<Packet> = match attack {
            Attack::Silence | Attack::Vanish => Vec::new(),
            Attack::AnswerTwice => vec![Packet::Binary(right.clone()), Packet::Binary(right)],
            Attack::AnswerOutOfOrder => {
                hostile.kept.truncate(MAX_KEPT - 1);
                hostile.kept.push(right.clone());
                vec![Packet::Binary(right)]
            }
            Attack::Lie => vec![encoded(lie(answer, random), attempt)],
            Attack::NotFinite => vec![encoded(not_finite(answer, random), attempt)],
            Attack::WrongShape => vec![encoded(wrong_shape(answer, random), attempt)],
            Attack::OthersAttempt => {
                // Only below what it was asked itself: above, an attempt may yet become its own.
                let lowest = hostile.lowest.map_or(0, |lowest| lowest.0);
                let other = AttemptId(random.below(lowest.max(1) as usize) as u32);
                vec![encoded(answer, other)]
            }
            Attack::Stale => {
                hostile.kept.first().map(|kept| Packet::Binary(kept.clone())).into_iter().collect()
            }
            Attack::Refuse => {
                let code = REFUSALS[random.below(REFUSALS.len())];
                let error = WireError { code, message: "no".to_owned(), attempt: Some(attempt) };
                vec![Packet::Binary(error.encode(Compression::Off))]
            }
            Attack::Garble => vec![Packet::Binary(garble(&right, random))],
            Attack::Truncate => vec![Packet::Binary(right.slice(..random.below(right.len().max(1))))],
            Attack::Noise => {
                let noise: Vec<u8> = (0..random.below(200)).map(|_| random.below(256) as u8).collect();
                vec![Packet::Binary(noise.into())]
            }
            Attack::Text => vec![Packet::Text],
            Attack::Oversize => vec![Packet::Binary(TOO_LARGE.clone())],
            Attack::Bomb => vec![Packet::Binary(bomb(&right))],
            Attack::BogusReport => bogus_report(random).into_iter().map(Packet::Binary).collect(),
            Attack::Flood => (0..100).map(|n| Packet::Binary(beat(n))).collect(),
            Attack::SecondJoin => {
                vec![Packet::Binary(Heartbeat::Join(hostile.join()).encode(Compression::Off))]
            }
            Attack::HubFrame => {
                let micros = now.as_micros() as u64;
                vec![Packet::Binary(
                    Heartbeat::Ping(Ping { hub_micros: micros, ..Ping::default() }).encode(Compression::Off),
                )]
            }
        };
        self.note(|| format!("peer {} does {attack:?} with {attempt}", id.0));
        if attack == Attack::Vanish {
            return self.reset(id);
        }
        for packet in packets {
            self.say(id, packet);
        }
        self.arm(id);
    }

    fn say(&mut self, id: PeerId, packet: Packet) {
        let Some(connection) = self.peers[id.0].connection else { return };
        if self.send_up(connection, packet).is_err() {
            self.note(|| format!("peer {} has filled its queue toward the {:?}", id.0, Toward::Hub));
            self.reset_from_peer(connection);
            self.disconnected(id);
        }
    }
}

const REFUSALS: [ErrorCode; 8] = [
    ErrorCode::BadFrame,
    ErrorCode::TooLarge,
    ErrorCode::NotResident,
    ErrorCode::Preempted,
    ErrorCode::DeviceLost,
    ErrorCode::OutOfMemory,
    ErrorCode::SelfTest,
    ErrorCode::Draining,
];

static TOO_LARGE: LazyLock<Bytes> = LazyLock::new(|| vec![0; limits::MAX_MESSAGE_BYTES + 1].into());

fn encoded(answer: Answer, attempt: AttemptId) -> Packet {
    // An answer that contradicts itself cannot be encoded: then the message is empty, which is no message either.
    Packet::Binary(answer.encode(attempt, Compression::Off).unwrap_or_default())
}

/// Every byte of values is drawn anew, but none that would make a value infinite in any format.
fn lie(mut answer: Answer, random: &mut Random) -> Answer {
    for part in &mut answer.parts {
        part.payload = part.payload.iter().map(|_| random.below(0x3C) as u8).collect::<Vec<u8>>().into();
    }
    answer
}

/// One value of one part is not finite any more; in int8 and int4 that is a row's or a group's scale.
fn not_finite(mut answer: Answer, random: &mut Random) -> Answer {
    let bad = [f16::NAN, f16::INFINITY, f16::NEG_INFINITY][random.below(3)].to_le_bytes();
    let n_parts = answer.parts.len().max(1);
    if let Some(part) = answer.parts.get_mut(random.below(n_parts)) {
        let mut payload = part.payload.to_vec();
        let at = match answer.dtype {
            Dtype::F16 | Dtype::Bf16 => 2 * random.below(payload.len() / 2),
            Dtype::Int8 | Dtype::Int4 => 0,
        };
        // bf16's exponent is longer: all of it set is infinite in either format.
        let bad = if answer.dtype == Dtype::Bf16 { [0x80, 0x7F] } else { bad };
        payload[at..at + 2].copy_from_slice(&bad);
        part.payload = payload.into();
    }
    answer
}

fn wrong_shape(mut answer: Answer, random: &mut Random) -> Answer {
    let row_bytes = answer.dtype.row_bytes(answer.hidden.into());
    match random.below(5) {
        0 => drop(answer.parts.pop()),
        1 => {
            if let Some(part) = answer.parts.last_mut() {
                part.rows += 1;
                part.payload = [&part.payload[..], &vec![0; row_bytes]].concat().into();
            }
        }
        2 => answer.layer = LayerId(answer.layer.0 + 1),
        3 => {
            if let Some(part) = answer.parts.first_mut() {
                part.expert = part.expert.map(|expert| ExpertId(expert.0 + 1000));
                part.rows += u32::from(part.expert.is_none());
            }
        }
        _ => {
            answer.dtype = if answer.dtype == Dtype::F16 { Dtype::Bf16 } else { Dtype::F16 };
        }
    }
    answer
}

/// Flips a bit of the first header, but for the attempt's four bytes: that would answer another question.
fn garble(message: &Bytes, random: &mut Random) -> Bytes {
    let mut bytes = message.to_vec();
    let at = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27]
        [random.below(24)];
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
    bytes.into()
}

/// The first frame of an answer, said to be compressed, with a payload that announces 4 GiB.
fn bomb(message: &Bytes) -> Bytes {
    let mut bytes = message.slice(..message.len().min(28)).to_vec();
    if bytes.len() == 28 {
        bytes[8..12].copy_from_slice(&8_u32.to_le_bytes());
        bytes[27] |= 1;
        bytes.extend([0xFF; 8]);
    }
    bytes.into()
}

fn bogus_report(random: &mut Random) -> Vec<Bytes> {
    let mut block =
        || Block { layer: LayerId(random.below(99) as u16), expert: ExpertId(random.below(99) as u16) };
    let report = BlockReport {
        epoch: u64::MAX,
        resident: (0..20).map(|_| block()).collect(),
        failed: (0..20).map(|_| (block(), "it says".to_owned())).collect(),
        bytes_done: u64::MAX,
        bytes_total: 0,
        bytes_downloaded: u64::MAX,
    };
    report.encode(Compression::Off)
}

fn beat(n: u64) -> Bytes {
    let visibility = if n.is_multiple_of(2) { Visibility::Hidden } else { Visibility::Visible };
    let beat = Beat { visibility, echo: Some(n), queue_depth: u32::MAX, ..Beat::default() };
    Heartbeat::Beat(beat).encode(Compression::Off)
}
