//! One worker and two hubs: each is answered right, gets its share, and is none the worse for what the other does.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use moex_kernels::engine::{Batch, Computed, CpuEngine, Output};
use moex_kernels::{ExpertShape, WeightFormat};
use moex_protocol::{
    Accepted, Answer, AttemptId, Block, BlockSource, Dtype, ErrorCode, Form, HubEvent, HubSession,
    ModelSummary, SessionConfig, State, Visibility, WeightSync,
};
use moex_worker::core::answer::answer;
use moex_worker::core::{
    Action, Connection, ConnectionError, CoreConfig, Ending, EngineId, HubConfig, HubId, Loaded, Worker,
};

use crate::harness::{HIDDEN, SHAPE, World, block, dispatch, join, packed, source};

/// What the second hub packs the same experts to.
const OTHER: ExpertShape = ExpertShape::uniform(HIDDEN, 24, WeightFormat::F16);
const A: HubId = HubId(0);
const B: HubId = HubId(1);

/// A hub as a script: it accepts whoever joins and does what the test says.
struct Peer {
    shape: ExpertShape,
    /// Nobody answers while it is not.
    is_up: bool,
    connection: Option<Connection>,
    session: HubSession,
    engine: Option<(EngineId, CpuEngine)>,
    can_plan: bool,
    answers: Vec<(AttemptId, Answer)>,
    failed_blocks: usize,
    closed: Option<u16>,
    ended: Option<Ending>,
    heard: Vec<HubEvent>,
}

/// The worker, two hubs and the device, on one clock.
struct Room {
    now: Duration,
    worker: Worker,
    peers: [Peer; 2],
    computations: VecDeque<(EngineId, AttemptId, Batch)>,
    hold_computations: bool,
}

impl Peer {
    fn new(shape: ExpertShape) -> Self {
        Self {
            shape,
            is_up: true,
            connection: None,
            session: HubSession::new(SessionConfig::default(), Duration::ZERO),
            engine: None,
            can_plan: true,
            answers: Vec::new(),
            failed_blocks: 0,
            closed: None,
            ended: None,
            heard: Vec::new(),
        }
    }

    fn model(&self) -> ModelSummary {
        let format = if self.shape == SHAPE { "int4" } else { "f16" };
        let block_bytes = self.shape.block_bytes() as u64;
        ModelSummary { format: format.into(), block_bytes, ..World::new(1).model }
    }

    fn hear(&mut self, now: Duration) {
        while let Some(event) = self.session.poll_event() {
            match event {
                HubEvent::Joined(join) if join.token == "token" => {
                    let accepted = Accepted {
                        session: 1,
                        heartbeat_interval_millis: 1000,
                        dispatch_timeout_millis: 500,
                        model: self.model(),
                        wants_products: false,
                    };
                    self.session.accept(now, accepted);
                }
                HubEvent::Joined(_) => self.session.reject(now, ErrorCode::Unauthorized, "wrong token"),
                HubEvent::Answered { attempt, answer } => self.answers.push((attempt, answer)),
                HubEvent::Blocks(report) => self.failed_blocks += report.failed.len(),
                event => self.heard.push(event),
            }
        }
    }
}

impl Room {
    /// Both connected and holding these experts, within shares of so many blocks.
    fn serving(shares: [u64; 2], experts: &[u16]) -> Self {
        let mut room = Self::new(shares, ["token"; 2]);
        for hub in [A, B] {
            room.hold(hub, experts);
        }
        room
    }

    fn new(shares: [u64; 2], tokens: [&str; 2]) -> Self {
        let peers = [Peer::new(SHAPE), Peer::new(OTHER)];
        let config = |hub: usize| {
            let join = join(shares[hub] * peers[hub].shape.block_bytes() as u64);
            let join = moex_protocol::Join { token: tokens[hub].into(), ..join };
            HubConfig { core: CoreConfig { join }, patience: Some(Duration::from_secs(60)) }
        };
        let worker = Worker::new(vec![config(0), config(1)], Duration::ZERO);
        let (computations, now) = (VecDeque::new(), Duration::ZERO);
        let mut room = Self { now, worker, peers, computations, hold_computations: false };
        room.worker.handle_timeout(room.now);
        room.drive();
        room
    }

    fn peer(&mut self, hub: HubId) -> &mut Peer {
        &mut self.peers[hub.0]
    }

    fn hold(&mut self, hub: HubId, experts: &[u16]) {
        let (now, shape) = (self.now, self.peer(hub).shape);
        let source = |&expert: &u16| {
            let bytes = packed(&shape, expert);
            let blake3 = blake3::hash(&bytes).to_hex().to_string();
            BlockSource { end: bytes.len() as u64, blake3, ..source(expert) }
        };
        let hold = experts.iter().map(source).collect();
        self.peer(hub).session.sync_weights(now, WeightSync { epoch: 1, hold, drop: Vec::new() }).unwrap();
        self.drive();
    }

    /// Asks for four rows of the experts.
    fn ask(&mut self, hub: HubId, attempt: u32, experts: &[u16]) {
        let (now, asked) = (self.now, dispatch(Form::RowsOnce, Dtype::F16, 4, experts));
        self.peer(hub).session.dispatch(now, AttemptId(attempt), &asked).unwrap();
        self.drive();
    }

    /// Whether the hub's answers so far are right, and to these attempts.
    fn assert_answered(&mut self, hub: HubId, attempts: &[u32], experts: &[u16]) {
        let shape = self.peer(hub).shape;
        let blocks: Vec<(Block, Vec<u8>)> = experts.iter().map(|&n| (block(n), packed(&shape, n))).collect();
        let find = |wanted| blocks.iter().find(|(block, _)| *block == wanted).map(|(_, bytes)| &bytes[..]);
        let right = answer(&shape, find, &dispatch(Form::RowsOnce, Dtype::F16, 4, experts)).unwrap();
        let expected: Vec<_> = attempts.iter().map(|&n| (AttemptId(n), right.clone())).collect();
        assert_eq!(self.peer(hub).answers, expected);
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
        self.worker.handle_timeout(self.now);
        for peer in &mut self.peers {
            peer.session.handle_timeout(self.now);
        }
        self.drive();
    }

    fn compute_one(&mut self) -> HubId {
        let (id, attempt, batch) = self.computations.pop_front().expect("a computation");
        let (engine, ours) = self.peers[id.hub.0].engine.as_ref().expect("an engine");
        assert_eq!(*engine, id);
        let result = ours.compute(&batch).map(Computed::from).map_err(|error| error.to_string());
        self.worker.computed(self.now, id, attempt, result.map(Output::from));
        self.drive();
        id.hub
    }

    fn drive(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            while let Some(action) = self.worker.poll_action() {
                self.perform(action);
                moved = true;
            }
            for peer in &mut self.peers {
                peer.hear(self.now);
                while let Some(message) = peer.session.poll_transmit() {
                    if let Some(connection) = peer.connection {
                        self.worker.handle_message(self.now, connection, message);
                        moved = true;
                    }
                }
            }
            if !self.hold_computations && !self.computations.is_empty() {
                self.compute_one();
            }
        }
    }

    fn perform(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Connect(connection) => {
                let peer = self.peer(connection.hub);
                if peer.is_up {
                    peer.session = HubSession::new(SessionConfig::default(), now);
                    peer.connection = Some(connection);
                    self.worker.opened(now, connection);
                } else {
                    self.worker.closed(now, connection, ConnectionError::Disconnected("refused".into()));
                }
            }
            Action::Send(connection, message) => {
                let peer = self.peer(connection.hub);
                assert_eq!(peer.connection, Some(connection));
                peer.session.handle_message(now, message);
                peer.hear(now);
            }
            Action::Close(connection, code) => {
                let peer = self.peer(connection.hub);
                peer.session.handle_closed(now);
                (peer.connection, peer.closed) = (None, Some(code));
            }
            Action::Plan { engine: id, plan } => {
                let peer = self.peer(id.hub);
                let made = peer.can_plan.then(|| (id, CpuEngine::new(plan).unwrap()));
                let result = made.is_some().then_some(()).ok_or_else(|| "it is too small".to_owned());
                peer.engine = made;
                self.worker.planned(now, id, result);
            }
            Action::Load { engine: id, slot, format, source } => {
                let peer = self.peer(id.hub);
                let bytes = packed(&peer.shape, source.block.expert.0);
                let (engine, ours) = peer.engine.as_ref().unwrap();
                assert_eq!(*engine, id);
                ours.load(slot, format, &bytes).unwrap();
                let loaded = Loaded { bytes: bytes.len() as u64, downloaded: bytes.len() as u64 };
                self.worker.loaded(now, id, source.block, Ok(loaded));
            }
            Action::Compute { engine, attempt, batch, .. } => {
                self.computations.push_back((engine, attempt, batch));
                assert_eq!(self.computations.len(), 1, "the device computes one batch at a time");
            }
            Action::Retrying(..) => {}
            Action::Ended(hub, ending) => self.peer(hub).ended = Some(ending),
        }
    }
}

#[test]
fn both_hubs_are_answered_in_their_own_formats() {
    let mut room = Room::serving([8, 8], &[0, 2, 5]);
    for attempt in 1..=3 {
        room.ask(A, attempt, &[0, 2]);
        room.ask(B, attempt, &[2, 5]);
    }
    room.assert_answered(A, &[1, 2, 3], &[0, 2]);
    room.assert_answered(B, &[1, 2, 3], &[2, 5]);
    let statuses: Vec<_> = room.worker.statuses().collect();
    assert!(statuses.iter().all(|status| status.answers == 3 && status.blocks_resident == 3));
}

#[test]
fn a_hub_gets_its_share_of_the_memory_and_no_more() {
    let mut room = Room::serving([1, 3], &[0, 2, 5]);
    assert_eq!((room.peer(A).failed_blocks, room.peer(B).failed_blocks), (2, 0));
    room.ask(A, 1, &[0]);
    room.ask(B, 1, &[0, 2, 5]);
    room.assert_answered(A, &[1], &[0]);
    room.assert_answered(B, &[1], &[0, 2, 5]);
}

#[test]
fn a_hub_that_goes_and_comes_back_takes_nothing_from_the_other() {
    let mut room = Room::serving([8, 8], &[0]);
    let lost = room.peer(A).connection.take().unwrap();
    room.peer(A).is_up = false;
    room.worker.closed(room.now, lost, ConnectionError::Disconnected("cut".into()));
    room.drive();
    for attempt in 1..=20 {
        room.advance(Duration::from_millis(500));
        room.ask(B, attempt, &[0]);
    }
    assert_eq!(room.peer(B).answers.len(), 20);
    room.peer(A).is_up = true;
    room.advance(Duration::from_secs(5));
    assert!(room.peer(A).connection.is_some_and(|connection| connection.number > lost.number));
    room.hold(A, &[0]);
    room.ask(A, 1, &[0]);
    room.assert_answered(A, &[1], &[0]);
    // What still comes by the lost socket is nobody's.
    room.worker.handle_message(room.now, lost, Bytes::from_static(b"no frame, but longer than a header"));
    room.worker.closed(room.now, lost, ConnectionError::Disconnected("again".into()));
    room.drive();
    assert!(room.worker.is_connected(A));
}

#[test]
fn a_hub_that_never_comes_back_ends_alone() {
    let mut room = Room::serving([8, 8], &[0]);
    let lost = room.peer(A).connection.take().unwrap();
    room.peer(A).is_up = false;
    room.worker.closed(room.now, lost, ConnectionError::Disconnected("cut".into()));
    room.drive();
    for _ in 0..100 {
        room.advance(Duration::from_secs(1));
        assert!(room.worker.is_connected(B));
    }
    assert_eq!(room.peer(A).ended, Some(Ending::Unreachable("refused".into())));
    assert_eq!(room.peer(B).ended, None);
    assert!(!room.worker.is_over());
    room.ask(B, 1, &[0]);
    room.assert_answered(B, &[1], &[0]);
}

#[test]
fn hostile_bytes_of_one_hub_close_its_connection_alone() {
    let mut room = Room::serving([8, 8], &[0]);
    let connection = room.peer(A).connection.unwrap();
    room.worker.handle_message(
        room.now,
        connection,
        Bytes::from_static(b"no frame, but longer than a header"),
    );
    room.drive();
    assert_eq!((room.peer(A).closed, room.peer(B).closed), (Some(1002), None));
    room.ask(B, 1, &[0]);
    room.assert_answered(B, &[1], &[0]);
    room.advance(Duration::from_secs(1));
    room.hold(A, &[0]);
    room.ask(A, 1, &[0]);
    room.assert_answered(A, &[1], &[0]);
}

#[test]
fn a_hub_that_refuses_the_worker_or_has_a_model_it_cannot_make_ends_alone() {
    let mut room = Room::new([8, 8], ["wrong", "token"]);
    let Some(Ending::Stopped(reason)) = &room.peer(A).ended else { panic!("it is refused") };
    assert!(reason.contains("wrong token"), "{reason}");
    room.hold(B, &[0]);
    room.ask(B, 1, &[0]);
    room.assert_answered(B, &[1], &[0]);

    let mut room = Room::new([8, 0], ["token"; 2]);
    let Some(Ending::Stopped(reason)) = &room.peer(B).ended else { panic!("no block fits") };
    assert!(reason.contains("holds no block"), "{reason}");
    assert_eq!(room.peer(A).ended, None);
    room.hold(A, &[0]);
    assert_eq!(room.peer(A).session.state(), State::Serving);
}

#[test]
fn a_hub_whose_engine_the_device_cannot_make_ends_alone() {
    let mut room = Room::serving([8, 8], &[0]);
    let lost = room.peer(A).connection.take().unwrap();
    (room.peer(A).can_plan, room.peer(A).shape) = (false, OTHER);
    room.worker.closed(room.now, lost, ConnectionError::Disconnected("cut".into()));
    room.advance(Duration::from_secs(1));
    let Some(Ending::DeviceFailed(reason)) = &room.peer(A).ended else { panic!("it was the device") };
    assert!(reason.contains("too small"), "{reason}");
    room.ask(B, 1, &[0]);
    room.assert_answered(B, &[1], &[0]);
}

#[test]
fn the_hubs_computations_take_turns() {
    let mut room = Room::serving([8, 8], &[0]);
    room.hold_computations = true;
    room.ask(A, 1, &[0]);
    room.ask(A, 2, &[0]);
    room.ask(B, 1, &[0]);
    room.ask(B, 2, &[0]);
    let turns: Vec<_> = (0..4).map(|_| room.compute_one()).collect();
    assert_eq!(turns, [A, B, A, B]);
    room.assert_answered(A, &[1, 2], &[0]);
    room.assert_answered(B, &[1, 2], &[0]);
}

#[test]
fn what_waits_for_the_device_goes_with_its_hub() {
    let mut room = Room::serving([8, 8], &[0]);
    room.hold_computations = true;
    room.ask(A, 1, &[0]);
    room.ask(B, 1, &[0]);
    let connection = room.peer(B).connection.take().unwrap();
    room.worker.closed(room.now, connection, ConnectionError::Untrusted("someone else".into()));
    room.drive();
    assert_eq!(room.peer(B).ended, Some(Ending::Stopped("someone else".into())));
    assert_eq!(room.compute_one(), A);
    assert!(room.computations.is_empty());
    room.assert_answered(A, &[1], &[0]);
}

#[test]
fn a_lost_device_is_told_to_every_hub() {
    let mut room = Room::serving([8, 8], &[0]);
    room.worker.device_lost(room.now);
    room.drive();
    assert!(room.worker.is_over());
    for hub in [A, B] {
        assert_eq!(room.peer(hub).ended, Some(Ending::DeviceFailed("The GPU was lost.".into())));
        let said = format!("{:?}", room.peer(hub).heard);
        assert!(said.contains("DeviceLost"), "{said}");
    }
}

#[test]
fn leaving_tells_every_hub_and_ends_the_worker() {
    let mut room = Room::serving([8, 8], &[0]);
    room.worker.leave(room.now);
    room.drive();
    assert!(room.worker.is_over() && room.worker.poll_timeout().is_none());
    for hub in [A, B] {
        let peer = room.peer(hub);
        assert_eq!((peer.closed, &peer.ended), (Some(1001), &Some(Ending::Left)));
        let left = |event: &HubEvent| matches!(event, HubEvent::Beat { beat, .. } if beat.visibility == Visibility::Leaving);
        assert!(peer.heard.iter().any(left), "{:?}", peer.heard);
    }
}
