//! A simulated peer: a link, and a process with a worker or an attacker.

use std::time::Duration;

use moex_swarm::ConnectionId;

use super::{
    Death, Event, HostileSpec, Link, Notice, PeerId, WorkerSpec, World, hostile::Hostile, link::Packet,
    worker::Worker,
};

/// One peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) link: Link,
    pub(super) kind: Kind,
    pub(super) connection: Option<ConnectionId>,
    /// Counts its processes; no process is running while `is_running` is false.
    pub(super) life: u32,
    pub(super) is_running: bool,
    /// Until then, the process does nothing at all.
    pub(super) frozen_until: Duration,
    timer: Option<Duration>,
}

#[derive(Debug)]
pub(super) enum Kind {
    Worker(Box<Worker>),
    Hostile(Box<Hostile>),
}

impl World {
    /// Adds a worker that starts now.
    pub fn add_worker(&mut self, spec: WorkerSpec) -> PeerId {
        let link = spec.link.clone();
        self.add(link, Kind::Worker(Box::new(Worker::new(spec))))
    }

    /// Adds a hostile peer that starts now.
    pub fn add_hostile(&mut self, spec: HostileSpec) -> PeerId {
        let link = spec.link.clone();
        self.add(link, Kind::Hostile(Box::new(Hostile::new(spec))))
    }

    fn add(&mut self, link: Link, kind: Kind) -> PeerId {
        let id = PeerId(self.peers.len());
        self.peers.push(Peer {
            link,
            kind,
            connection: None,
            life: 0,
            is_running: false,
            frozen_until: Duration::ZERO,
            timer: None,
        });
        self.start(id);
        id
    }

    /// Starts a peer's process, if none runs. Its store is kept.
    pub fn start(&mut self, id: PeerId) {
        let (now, peer) = (self.now, &mut self.peers[id.0]);
        if peer.is_running {
            return;
        }
        peer.is_running = true;
        peer.life += 1;
        peer.frozen_until = now;
        match &mut peer.kind {
            Kind::Worker(worker) => worker.start(now),
            Kind::Hostile(hostile) => hostile.start(),
        }
        self.note(|| format!("peer {} starts", id.0));
        self.connect_after(id, Duration::ZERO);
    }

    /// Kills a peer's process at once.
    pub fn kill(&mut self, id: PeerId, death: Death) {
        let peer = &mut self.peers[id.0];
        if !peer.is_running {
            return;
        }
        peer.is_running = false;
        if let Kind::Worker(worker) = &mut peer.kind {
            worker.die();
        }
        let connection = peer.connection.take();
        self.note(|| format!("peer {} dies: {death:?}", id.0));
        if let Some(connection) = connection {
            match death {
                Death::Reset => self.reset_from_peer(connection),
                Death::Silent => self.vanish(connection),
            }
        }
        self.arm(id);
    }

    /// Freezes a peer's process for `time`; messages that arrive wait.
    pub fn freeze(&mut self, id: PeerId, time: Duration) {
        self.note(|| format!("peer {} freezes for {time:?}", id.0));
        let until = self.now + time;
        let peer = &mut self.peers[id.0];
        peer.frozen_until = peer.frozen_until.max(until);
        self.arm(id);
    }

    /// Resets a peer's connection at both ends.
    pub fn reset(&mut self, id: PeerId) {
        let Some(connection) = self.peers[id.0].connection else { return };
        self.note(|| format!("the connection of peer {} is reset", id.0));
        self.reset_from_peer(connection);
        self.disconnected(id);
    }

    /// Whether a peer's process is running.
    pub fn is_running(&self, id: PeerId) -> bool {
        self.peers[id.0].is_running
    }

    /// A process ends by itself.
    pub(super) fn exit(&mut self, id: PeerId, reason: String) {
        let peer = &mut self.peers[id.0];
        peer.is_running = false;
        if let Kind::Worker(worker) = &mut peer.kind {
            worker.die();
        }
        if let Some(connection) = peer.connection.take() {
            self.close_from_peer(connection);
        }
        self.arm(id);
        self.note(|| format!("peer {} stops: {reason}", id.0));
        self.notices.push_back(Notice::Stopped(id, reason));
    }

    /// Connects after `wait` and the handshake's round trip.
    pub(super) fn connect_after(&mut self, id: PeerId, wait: Duration) {
        let peer = &self.peers[id.0];
        let round_trip =
            peer.link.up.delay.draw(&mut self.random) + peer.link.down.delay.draw(&mut self.random);
        self.events.push(self.now + wait + round_trip, Event::Connect(id, peer.life));
    }

    pub(super) fn connect(&mut self, id: PeerId, life: u32) {
        let peer = &self.peers[id.0];
        if !peer.is_running || peer.life != life || peer.connection.is_some() {
            return;
        }
        let held_until = peer.frozen_until.max(peer.link.up.stalled_until).max(peer.link.down.stalled_until);
        if held_until > self.now {
            self.events.push(held_until, Event::Connect(id, life));
            return;
        }
        let connection = self.open(id);
        let (now, peer) = (self.now, &mut self.peers[id.0]);
        peer.connection = Some(connection);
        match &mut peer.kind {
            Kind::Worker(worker) => worker.connected(now),
            Kind::Hostile(hostile) => hostile.connected(now),
        }
        self.flush(id);
    }

    pub(super) fn arrived_at_peer(&mut self, id: PeerId, packet: Packet) {
        if matches!(packet, Packet::Close) {
            if let Some(connection) = self.peers[id.0].connection {
                self.close_from_peer(connection);
            }
            return self.disconnected(id);
        }
        if let Packet::Binary(message) = &packet {
            self.time_arrival(message);
        }
        let (now, peer) = (self.now, &mut self.peers[id.0]);
        match (&mut peer.kind, packet) {
            (Kind::Worker(worker), Packet::Binary(message)) => worker.handle_message(now, message),
            (Kind::Hostile(hostile), Packet::Binary(message)) => hostile.handle_message(now, message),
            (_, Packet::Text | Packet::Close) => {}
        }
        self.flush(id);
    }

    /// The peer's connection is gone, whoever ended it; the peer will reconnect.
    pub(super) fn disconnected(&mut self, id: PeerId) {
        let (now, peer) = (self.now, &mut self.peers[id.0]);
        if peer.connection.take().is_none() {
            return;
        }
        let again = match &mut peer.kind {
            Kind::Worker(worker) => worker.disconnected(now),
            Kind::Hostile(hostile) => hostile.disconnected(),
        };
        match again {
            Some(wait) => {
                self.connect_after(id, wait);
                self.flush(id);
            }
            None => self.exit(id, "it was leaving".to_owned()),
        }
    }

    pub(super) fn peer_timer(&mut self, id: PeerId) {
        let (now, peer) = (self.now, &mut self.peers[id.0]);
        match &mut peer.kind {
            Kind::Worker(worker) => worker.handle_timeout(now),
            Kind::Hostile(hostile) => hostile.handle_timeout(now),
        }
        self.flush(id);
    }

    /// Sends a peer's messages, starts its tasks, then arms its timer.
    pub(super) fn flush(&mut self, id: PeerId) {
        match self.peers[id.0].kind {
            Kind::Worker(_) => self.flush_worker(id),
            Kind::Hostile(_) => self.flush_hostile(id),
        }
        self.arm(id);
    }

    /// Arms a peer's timer for its deadline; a frozen process misses its own.
    pub(super) fn arm(&mut self, id: PeerId) {
        let peer = &mut self.peers[id.0];
        let deadline = match &peer.kind {
            _ if !peer.is_running => None,
            Kind::Worker(worker) => worker.poll_timeout(),
            Kind::Hostile(hostile) => hostile.poll_timeout(),
        };
        let timer = deadline.map(|at| at.max(peer.frozen_until));
        if timer != peer.timer {
            if let Some(old) = std::mem::replace(&mut peer.timer, timer) {
                self.timers.remove(&(old, id));
            }
            if let Some(new) = timer {
                self.timers.insert((new, id));
            }
        }
    }
}
