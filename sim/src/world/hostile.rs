//! A hostile peer: it speaks the protocol well enough to get work, and then attacks, one [`Attack`] at a time.
//!
//! All attacks but [`Attack::Lie`] are visible on the wire. Only the hub's own computation detects a plausible lie.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use moex_protocol::{
    AttemptId, BlockReport, Dispatch, Join, SelfTest, WorkerConfig, WorkerEvent, WorkerId, WorkerKey,
    WorkerKind, WorkerSession, limits,
};

use super::{Delay, Link};

/// The most answers that it keeps to send again.
pub(super) const MAX_KEPT: usize = 8;
/// How often it comes back after it was thrown out.
const MAX_RETURNS: u32 = 4;
/// The wait before it comes back.
const RETURN_DELAY: Duration = Duration::from_millis(700);

/// A hostile peer to be added.
#[derive(Clone, Debug)]
pub struct HostileSpec {
    /// Its id, different from all others.
    pub id: WorkerId,
    /// The hub's token, or a wrong one.
    pub token: String,
    /// Its link to the hub.
    pub link: Link,
    /// The wait before each attack.
    pub delay: Delay,
    /// The memory that it reports.
    pub memory_budget_bytes: u64,
    /// The speed that it reports.
    pub teraflops: f32,
    /// Whether it reports that every block failed to load, instead of having it.
    pub fails_loads: bool,
    /// The attacks; one is chosen for each dispatch. Not empty.
    pub attacks: Vec<Attack>,
}

/// An attack on a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Wrong but finite values of the right shape.
    Lie,
    /// No answer.
    Silence,
    /// The right answer, twice.
    AnswerTwice,
    /// The right answer, after those to later dispatches.
    AnswerOutOfOrder,
    /// A NaN or an infinity among right values.
    NotFinite,
    /// A part too few, a row too many, another width, number format, layer or expert.
    WrongShape,
    /// The right answer, under an attempt of another worker.
    OthersAttempt,
    /// An answer that it sent before.
    Stale,
    /// An error message of any kind as the answer.
    Refuse,
    /// The right answer with one bit of a header flipped, but never of its attempt.
    Garble,
    /// The right answer, cut short.
    Truncate,
    /// Random bytes.
    Noise,
    /// A text message.
    Text,
    /// A message above the size limit.
    Oversize,
    /// A compressed frame that announces far more than it contains.
    Bomb,
    /// A report of blocks that do not exist or were not asked for, and of failures.
    BogusReport,
    /// A hundred heartbeats at once, of changing visibility.
    Flood,
    /// Another join in the same session.
    SecondJoin,
    /// A frame that only a hub sends.
    HubFrame,
    /// No answer, and the connection vanishes.
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
    pub(super) spec: HostileSpec,
    pub(super) session: Option<WorkerSession>,
    returns: u32,
    /// Dispatches that it has not answered.
    pub(super) asked: BTreeMap<AttemptId, Dispatch>,
    pub(super) kept: Vec<Bytes>,
    /// Attacks whose time has not come yet.
    pub(super) owed: Vec<AttemptId>,
    /// The lowest attempt that it was ever sent: lower ones belong to others, or to nobody.
    pub(super) lowest: Option<AttemptId>,
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
                // It holds nothing, and reports that it holds everything, or that every load failed.
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

    pub(super) fn join(&self) -> Join {
        Join {
            token: self.spec.token.clone(),
            key: WorkerKey(self.spec.id.0),
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
            gives_products: true,
            gives_digests: false,
        }
    }
}
