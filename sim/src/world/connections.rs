//! Simulated connections: messages enter a pipe and are delivered to the other end in order, and so are closes.

use std::time::Duration;

use moex_swarm::{ConnectionId, Swarm};

use super::{
    Event, Notice, PeerId, Toward, World,
    link::{Full, Packet, Pipe},
};

/// One connection between a peer and the hub.
#[derive(Debug)]
pub(super) struct Connection {
    peer: PeerId,
    up: Pipe,
    down: Pipe,
    hub_open: bool,
    peer_open: bool,
    /// The peer's machine is gone: nothing arrives any more, and nobody reports it.
    is_dead: bool,
}

impl World {
    /// Opens a connection of a peer. The hub learns of it at once, since the time of the handshake has passed.
    pub(super) fn open(&mut self, peer: PeerId) -> ConnectionId {
        self.last_connection += 1;
        let id = ConnectionId(self.last_connection);
        let connection = Connection {
            peer,
            up: Pipe::default(),
            down: Pipe::default(),
            hub_open: true,
            peer_open: true,
            is_dead: false,
        };
        self.connections.insert(id, connection);
        self.note(|| format!("peer {} connects as {}", peer.0, id.0));
        self.with_swarm(|swarm, now| swarm.connected(now, id, format!("peer-{}", peer.0)));
        id
    }

    /// Sends from the hub to a peer.
    pub(super) fn send_down(&mut self, id: ConnectionId, packet: Packet) -> Result<(), Full> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let shared = (self.hub.config.bytes_per_s, &mut self.hub.down_free_at);
        let lane = &self.peers[connection.peer.0].link.down;
        let at = connection.down.send(self.now, packet, lane, shared, &mut self.random)?;
        self.events.push(at, Event::Deliver(id, Toward::Worker));
        Ok(())
    }

    /// Sends from a peer to the hub.
    pub(super) fn send_up(&mut self, id: ConnectionId, packet: Packet) -> Result<(), Full> {
        let Some(connection) = self.connections.get_mut(&id).filter(|c| c.peer_open) else { return Ok(()) };
        let shared = (self.hub.config.bytes_per_s, &mut self.hub.up_free_at);
        let lane = &self.peers[connection.peer.0].link.up;
        let at = connection.up.send(self.now, packet, lane, shared, &mut self.random)?;
        self.events.push(at, Event::Deliver(id, Toward::Hub));
        Ok(())
    }

    /// Delivers a message that may have arrived, if nothing holds it up.
    pub(super) fn deliver(&mut self, id: ConnectionId, toward: Toward) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let peer = &self.peers[connection.peer.0];
        let (pipe, held_until) = match toward {
            Toward::Hub => (&mut connection.up, peer.link.up.stalled_until),
            Toward::Worker => (&mut connection.down, peer.link.down.stalled_until.max(peer.frozen_until)),
        };
        if held_until > self.now {
            self.events.push(held_until, Event::Deliver(id, toward));
            return;
        }
        let Some(packet) = pipe.take(self.now) else { return };
        let (peer, is_dead) = (connection.peer, connection.is_dead);
        let is_open = match toward {
            Toward::Hub => connection.hub_open,
            Toward::Worker => connection.peer_open,
        };
        if is_open && !is_dead {
            match toward {
                Toward::Hub => self.arrived_at_hub(id, packet),
                Toward::Worker => self.arrived_at_peer(peer, packet),
            }
        }
        self.forget_if_over(id);
    }

    fn arrived_at_hub(&mut self, id: ConnectionId, packet: Packet) {
        match packet {
            Packet::Binary(message) => {
                self.traffic.bytes_up += message.len() as u64;
                self.with_swarm(|swarm, now| swarm.handle_message(now, id, message));
            }
            Packet::Text => self.with_swarm(|swarm, now| swarm.handle_text(now, id)),
            Packet::Close => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.hub_open = false;
                }
                self.with_swarm(|swarm: &mut Swarm, now| swarm.disconnected(now, id));
            }
        }
    }

    /// The hub closes a connection: what it has sent still arrives.
    pub(super) fn close_from_hub(&mut self, id: ConnectionId, code: u16) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.hub_open = false;
        let peer = connection.peer;
        self.note(|| format!("hub closes {} of peer {} with {code}", id.0, peer.0));
        self.notices.push_back(Notice::ClosedByHub(peer, id, code));
        // A full queue has no room for a close either.
        if self.send_down(id, Packet::Close).is_err() {
            self.cut_off(id);
        }
        self.forget_if_over(id);
    }

    /// The hub drops a connection: what is under way to the peer is lost.
    pub(super) fn cut_off(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.hub_open = false;
        connection.down.cut(self.now);
        self.events.push(self.now, Event::Deliver(id, Toward::Worker));
    }

    /// A peer closes its connection: what it has sent still arrives.
    pub(super) fn close_from_peer(&mut self, id: ConnectionId) {
        // A full queue has no room for a close: this is a reset.
        if self.send_up(id, Packet::Close).is_err() {
            return self.reset_from_peer(id);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.peer_open = false;
        }
        self.forget_if_over(id);
    }

    /// A peer's end is gone; what was under way from it is lost. The hub notices after `delay`.
    pub(super) fn reset_from_peer(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.peer_open = false;
        let delay = self.peers[connection.peer.0].link.up.delay.draw(&mut self.random);
        connection.up.cut(self.now + delay);
        self.events.push(self.now + delay, Event::Deliver(id, Toward::Hub));
    }

    /// A peer's machine is gone, and nobody reports it.
    pub(super) fn vanish(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.peer_open = false;
            connection.is_dead = true;
        }
        self.forget_if_over(id);
    }

    fn forget_if_over(&mut self, id: ConnectionId) {
        if self.connections.get(&id).is_some_and(|c| !c.hub_open && !c.peer_open) {
            self.connections.remove(&id);
        }
    }

    /// Connections that the hub's end holds open.
    pub fn n_hub_connections(&self) -> usize {
        self.connections.values().filter(|connection| connection.hub_open).count()
    }

    /// Delivers nothing for `time` in this direction of a peer's link, then everything.
    pub fn stall(&mut self, peer: PeerId, toward: Toward, time: Duration) {
        self.note(|| format!("peer {} stalls toward the {toward:?} for {time:?}", peer.0));
        let until = self.now + time;
        let link = &mut self.peers[peer.0].link;
        let lane = match toward {
            Toward::Hub => &mut link.up,
            Toward::Worker => &mut link.down,
        };
        lane.stalled_until = lane.stalled_until.max(until);
    }
}
