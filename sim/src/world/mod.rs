//! Runs the shipped swarm and the shipped workers on virtual time: one queue of events, one seed, no socket and no clock.
//!
//! The hub is [`moex_swarm::Swarm`], a worker is [`moex_worker::core::Core`] with the CPU engine: their decisions are the
//! shipped ones. Modelled are the links (`link`), the devices (`device`), and processes that start, freeze and die (`peer`).
//! [`World`] is the driver, as thin as the ones that ship:
//!
//! ```text
//! step()    the next event: a message arrives, a computation or a load ends, a deadline comes, the owner's own event
//!           -> the machine concerned takes it -> its messages enter pipes, its tasks become events
//! drive()   step by step until a time
//! ```
//!
//! The owner adds workers and hostile peers, starts layers, injects faults, and reads [`Notice`]s. The same seed and
//! the same calls give the same [`World::trace`], to the byte, on every machine.

mod device;
mod link;
mod model;

mod connections;
mod engine;
mod hostile;
mod hostile_events;
mod hub_machine;
mod peer;
mod queue;
mod shared_host;
mod timing;
mod worker;
mod worker_events;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
    sync::Arc,
    time::Duration,
};

use moex_protocol::{AttemptId, Block, WorkerId, WorkerKey};
use moex_swarm::{ComputeId, ConnectionId, JobError, JobId, LayerJob, Swarm, SwarmConfig, Verify};

pub use self::{
    device::Device,
    engine::Arithmetic,
    hostile::{Attack, HostileSpec},
    hub_machine::HubDevice,
    link::{Delay, Lane, Link, MAX_QUEUED_BYTES, Toward, from_millis},
    model::{Model, Sizes},
    shared_host::{Member, ObservedCost, SharedHost},
    timing::{Leg, TimedLayer, Work},
    worker::WorkerSpec,
};

use self::{
    connections::Connection, hub_machine::HubMachine, peer::Peer, queue::EventQueue,
    shared_host::SharedHostState, timing::Timing,
};
use crate::random::Random;

/// A peer, numbered in the order in which peers were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub usize);

/// How a process dies without notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Its system resets the connection; messages under way from it are lost.
    Reset,
    /// No sign at all: the hub has to find out.
    Silent,
}

/// The parts of a world at its start.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// The swarm's settings; its model is the world's.
    pub swarm: SwarmConfig,
    /// The served model.
    pub model: Arc<Model>,
    /// Whether workers compute real values.
    pub arithmetic: Arithmetic,
    /// The hub's own device and its end of all links.
    pub hub: HubDevice,
    /// The seed of links and devices.
    pub seed: u64,
    /// Whether to record events as text.
    pub is_traced: bool,
}

/// A message to the owner of a world.
#[derive(Clone, Debug)]
pub enum Notice {
    /// An event that the owner had scheduled.
    Scheduled(u64),
    /// A layer is done.
    Finished(JobId, Result<Vec<f32>, JobError>),
    /// The hub ended a connection.
    ClosedByHub(PeerId, ConnectionId, u16),
    /// A worker ended its connection.
    ClosedByWorker(PeerId, ConnectionId, u16),
    /// A worker gave up for good, and why.
    Stopped(PeerId, String),
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Events handled.
    pub events: u64,
    /// Bytes of messages that the hub sent.
    pub bytes_down: u64,
    /// Bytes of messages that reached the hub.
    pub bytes_up: u64,
    /// Bytes of weights that workers fetched.
    pub bytes_loaded: u64,
    /// The total time that workers computed.
    pub compute: Duration,
}

/// The hub, its peers, and everything between them.
pub struct World {
    now: Duration,
    events: EventQueue<Event>,
    /// Deadlines of peers, each at most once.
    timers: BTreeSet<(Duration, PeerId)>,
    random: Random,
    model: Arc<Model>,
    arithmetic: Arithmetic,
    verify: Verify,
    swarm: Swarm,
    swarm_deadline: Option<Duration>,
    hub: HubMachine,
    peers: Vec<Peer>,
    connections: BTreeMap<ConnectionId, Connection>,
    last_connection: u64,
    notices: VecDeque<Notice>,
    traffic: Traffic,
    trace: Option<String>,
    timing: Option<Timing>,
    shared_host: Option<Box<SharedHostState>>,
}

/// An event. Events of a process carry the number of its life; those of an earlier life are void.
#[derive(Debug)]
enum Event {
    Deliver(ConnectionId, Toward),
    Connect(PeerId, u32),
    Loaded {
        peer: PeerId,
        life: u32,
        plan: u32,
        slot: u32,
        block: Block,
        downloaded: u64,
        result: Result<(), String>,
    },
    Computed {
        peer: PeerId,
        life: u32,
        attempt: AttemptId,
    },
    Attack(PeerId, u32),
    /// The next computation on the shared host may be done, unless one was added since.
    SharedHostDue(u64),
    HubComputed(ComputeId),
    Scheduled(u64),
}

/// Which of the three sources has the next event.
enum Next {
    Event,
    HubTimer,
    PeerTimer(PeerId),
}

impl World {
    /// A hub without connections.
    pub fn new(config: WorldConfig) -> Self {
        // Traces use the key as the id: here, nobody knows another's key.
        let id_of = |key: WorkerKey| WorkerId(key.0);
        let swarm = SwarmConfig { model: config.model.summary().clone(), id_of, ..config.swarm };
        Self {
            now: Duration::ZERO,
            events: EventQueue::new(),
            timers: BTreeSet::new(),
            random: Random::new(config.seed, 0),
            arithmetic: config.arithmetic,
            verify: swarm.verify,
            timing: swarm.is_traced.then(Timing::default),
            swarm: Swarm::new(swarm, config.model.catalog()),
            model: config.model,
            swarm_deadline: None,
            hub: HubMachine::new(config.hub),
            peers: Vec::new(),
            connections: BTreeMap::new(),
            last_connection: 0,
            notices: VecDeque::new(),
            traffic: Traffic::default(),
            trace: config.is_traced.then(String::new),
            shared_host: None,
        }
    }

    /// Handles the next event, after moving the clock to it. False if there is none, ever.
    pub fn step(&mut self) -> bool {
        let Some((at, next)) = self.next() else { return false };
        self.now = self.now.max(at);
        self.traffic.events += 1;
        match next {
            Next::Event => {
                if let Some(event) = self.events.pop() {
                    self.handle(event);
                }
            }
            Next::HubTimer => self.with_swarm(Swarm::handle_timeout),
            Next::PeerTimer(peer) => self.peer_timer(peer),
        }
        true
    }

    /// Handles everything up to and including `until`, unless a notice comes before that.
    pub fn drive(&mut self, until: Duration) {
        while self.notices.is_empty() && self.next_at().is_some_and(|at| at <= until) {
            self.step();
        }
        if self.notices.is_empty() {
            self.now = self.now.max(until);
        }
    }

    /// The next notice that the owner has not received.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// When the next event happens.
    pub fn next_at(&self) -> Option<Duration> {
        self.next().map(|(at, _)| at)
    }

    /// The virtual time since the world's start.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Schedules a [`Notice::Scheduled`] at `at`.
    pub fn schedule(&mut self, at: Duration, token: u64) {
        self.events.push(at, Event::Scheduled(token));
    }

    /// Gives a layer to the swarm; [`Notice::Finished`] follows.
    pub fn start_layer(&mut self, id: JobId, job: LayerJob) {
        self.note(|| {
            format!("job {} starts: layer {}, {} pairs", id.0, job.layer, job.routing.experts.len())
        });
        self.pass_moment();
        match job.encode(self.swarm.layer_encoding()) {
            Ok(layer) => self.with_swarm(|swarm, now| swarm.start_layer(now, id, layer)),
            Err(error) => self.finished(id, Err(error)),
        }
    }

    /// The hub leaves.
    pub fn shut_down(&mut self) {
        self.note(|| "the hub shuts down".to_owned());
        self.with_swarm(Swarm::shut_down);
    }

    /// The swarm, for inspection.
    pub fn swarm(&self) -> &Swarm {
        &self.swarm
    }

    /// The served model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Counts since the start.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// The recorded events, one a line; empty if they are not recorded.
    pub fn trace(&self) -> &str {
        self.trace.as_deref().unwrap_or_default()
    }

    /// Adds a line to the trace. `line` is called only if there is a trace.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        let micros = self.now.as_micros();
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{:>6}.{:06} {}", micros / 1_000_000, micros % 1_000_000, line());
        }
    }

    /// At the same instant, events come before deadlines: an answer that arrives as its time runs out has arrived.
    fn next(&self) -> Option<(Duration, Next)> {
        let event = self.events.next_at().map(|at| (at, 0, Next::Event));
        let hub = self.swarm_deadline.map(|at| (at, 1, Next::HubTimer));
        let peer = self.timers.first().map(|(at, peer)| (*at, 2, Next::PeerTimer(*peer)));
        let first = [event, hub, peer].into_iter().flatten().min_by_key(|(at, rank, _)| (*at, *rank));
        first.map(|(at, _, next)| (at, next))
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver(connection, toward) => self.deliver(connection, toward),
            Event::Connect(peer, life) => self.connect(peer, life),
            Event::Loaded { .. } | Event::Computed { .. } => self.device_done(event),
            Event::Attack(peer, life) => self.attack_due(peer, life),
            Event::SharedHostDue(epoch) => self.shared_host_due(epoch),
            Event::HubComputed(id) => self.hub_computed(id),
            Event::Scheduled(token) => self.notices.push_back(Notice::Scheduled(token)),
        }
    }
}
