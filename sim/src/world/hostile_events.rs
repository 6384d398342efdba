//! Events of a hostile peer: it sends messages, and attacks at the planned times.

use std::sync::LazyLock;

use bytes::Bytes;
use half::f16;
use moex_protocol::{
    Answer, AttemptId, Beat, Block, BlockReport, Compression, Dtype, ErrorCode, ExpertId, Heartbeat, LayerId,
    Ping, Visibility, WireError, limits, tensor,
};

use super::{Attack, Event, PeerId, Toward, World, hostile::MAX_KEPT, link::Packet, peer::Kind};
use crate::random::Random;

impl World {
    /// Sends the session's messages, and plans an attack for each dispatch that arrived.
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

    /// An attack is due: its kind and the waiting dispatch are drawn now.
    pub(super) fn attack_due(&mut self, id: PeerId, life: u32) {
        let (now, peer) = (self.now, &mut self.peers[id.0]);
        if peer.life != life || !peer.is_running || peer.connection.is_none() {
            return;
        }
        let Kind::Hostile(hostile) = &mut peer.kind else { return };
        let attack = hostile.spec.attacks[self.random.below(hostile.spec.attacks.len())];
        // Out of order means the newest first.
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
                // Only below its own lowest attempt: a higher one may yet become its own.
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
    // An answer that contradicts itself cannot be encoded. The message is then empty, which is invalid too.
    Packet::Binary(answer.encode(attempt, Compression::Off).unwrap_or_default())
}

/// Multiplies every value by a factor, or draws every byte of the values anew, without making any value infinite in any
/// format.
fn lie(mut answer: Answer, random: &mut Random) -> Answer {
    let factors = [-20.0, -1.0, 0.0, 0.5, 0.97, 1.03, 3.0];
    if let Some(factor) = factors.get(random.below(2 * factors.len())) {
        let hidden = usize::from(answer.hidden);
        for part in &mut answer.parts {
            let mut rows = tensor::decode_rows(answer.dtype, &part.payload, hidden).unwrap_or_default();
            rows.iter_mut().for_each(|value| *value *= factor);
            let mut payload = Vec::with_capacity(part.payload.len());
            tensor::encode_rows(answer.dtype, &rows, hidden, &mut payload);
            part.payload = payload.into();
        }
        return answer;
    }
    for part in &mut answer.parts {
        part.payload = part.payload.iter().map(|_| random.below(0x3C) as u8).collect::<Vec<u8>>().into();
    }
    answer
}

/// Makes one value of one part infinite or NaN; in int8 and int4, that value is the scale of a row or a group.
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
                part.expert.0 += 1000;
            }
        }
        _ => {
            answer.dtype = if answer.dtype == Dtype::F16 { Dtype::Bf16 } else { Dtype::F16 };
        }
    }
    answer
}

/// Flips a bit of the first header, except in the attempt's four bytes: those would make it an answer to another
/// attempt.
fn garble(message: &Bytes, random: &mut Random) -> Bytes {
    let mut bytes = message.to_vec();
    let at = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27]
        [random.below(24)];
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
    bytes.into()
}

/// The first frame of an answer, marked as compressed, with a payload that announces 4 GiB.
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
