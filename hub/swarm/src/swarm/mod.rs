//! The swarm: joins fleet, dispatcher and auditor; a driver calls it.

mod events;
mod snapshot;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use moex_protocol::{Block, ExpertId, LayerId, ModelSummary, Routing};

use super::auditor::Auditor;
use super::dispatcher::{Dispatcher, EncodedLayer, HubResult, Lie, Order};
use super::fleet::{BlockCatalog, Fleet, Receipt};
use super::trace::Record;
use super::{Action, ComputeId, ConnectionId, JobId, LayerEncoding, SwarmConfig};

/// The swarm. The [crate's description](crate) lists a driver's calls and their order.
#[derive(Debug)]
pub struct Swarm {
    config: Arc<SwarmConfig>,
    fleet: Fleet,
    dispatcher: Dispatcher,
    auditor: Auditor,
    actions: VecDeque<Action>,
}

impl Swarm {
    /// A swarm without workers. `replicas` is raised to at least 1.
    pub fn new(mut config: SwarmConfig, catalog: BlockCatalog) -> Self {
        config.replicas = config.replicas.max(1);
        let config = Arc::new(config);
        Self {
            fleet: Fleet::new(config.clone(), catalog),
            dispatcher: Dispatcher::new(config.clone()),
            auditor: Auditor::new(config.clone()),
            config,
            actions: VecDeque::new(),
        }
    }

    // Connections.

    /// A connection was opened from this address.
    pub fn connected(&mut self, now: Duration, id: ConnectionId, address: impl Into<String>) {
        if self.fleet.connected(now, id, address.into(), &mut self.actions) {
            self.run(now);
        }
    }

    /// Whether a worker has joined on this connection and is still connected.
    pub fn has_joined(&self, id: ConnectionId) -> bool {
        self.fleet.has_joined(id)
    }

    /// A binary message arrived.
    pub fn handle_message(&mut self, now: Duration, id: ConnectionId, message: Bytes) {
        let receipt = self.fleet.handle_message(now, id, message);
        self.received(now, id, receipt);
    }

    /// A text message arrived, which violates the protocol.
    pub fn handle_text(&mut self, now: Duration, id: ConnectionId) {
        let receipt = self.fleet.handle_text(now, id);
        self.received(now, id, receipt);
    }

    fn received(&mut self, now: Duration, id: ConnectionId, receipt: Receipt) {
        match receipt {
            Receipt::Unknown => return,
            Receipt::Taken => {}
            Receipt::Refused => {
                self.dispatcher.reassign(now, id);
                self.carry_out(now);
            }
        }
        self.run(now);
    }

    /// The connection was closed. Its worker's items are requested from others at once.
    pub fn disconnected(&mut self, now: Duration, id: ConnectionId) {
        if self.fleet.handle_closed(now, id) {
            self.pump(now, id);
        }
        self.remove(now, id);
        self.run(now);
    }

    /// How often a worker was found to answer wrong after answers of its were used unchecked.
    pub fn n_doubts(&self) -> u64 {
        self.auditor.counts().doubts
    }

    /// Lets the invitation of this name admit nobody any more, and lets the worker go that it has admitted. A driver says it again
    /// after a start.
    pub fn revoke(&mut self, now: Duration, invitation: impl Into<String>) {
        for id in self.fleet.revoke(now, invitation.into()) {
            self.dispatcher.reassign(now, id);
        }
        self.carry_out(now);
        self.run(now);
    }

    // Layers.

    /// Starts a layer. Its result comes as [`Action::Finished`].
    pub fn start_layer(&mut self, now: Duration, id: JobId, layer: EncodedLayer) {
        if let Some(layer) = self.dispatcher.start(now, id, layer, self.fleet.catalog()) {
            self.fleet.count_load(layer.load());
        }
        self.carry_out(now);
        self.run(now);
    }

    /// The hub computed what [`Action::HubCompute`] asked for.
    pub fn hub_computed(&mut self, now: Duration, id: ComputeId, answer: HubResult) {
        self.dispatcher.hub_ended();
        match self.auditor.take_check(id) {
            Some(check) => self.on_check(now, check, &answer),
            None => self.on_hub_answer(now, id, &answer),
        }
        self.run(now);
    }

    /// The hub could not compute what [`Action::HubCompute`] asked for.
    pub fn hub_failed(&mut self, now: Duration, id: ComputeId, message: String) {
        self.dispatcher.hub_ended();
        if self.auditor.take_check(id).is_some() {
            tracing::warn!(message, "an answer could not be checked");
        } else {
            self.dispatcher.hub_failed(now, id, message);
            self.carry_out(now);
        }
        self.run(now);
    }

    /// The caller that checks a finished layer before it sums it found these lies, and used the hub's own results.
    pub fn caught(&mut self, now: Duration, lies: Vec<Lie>) {
        for Lie { worker, evidence } in lies {
            // One is enough, and a worker that lies lies about several experts at once.
            if !self.auditor.is_quarantined(worker) {
                self.on_wrong_answer(now, worker, evidence);
            }
        }
        self.carry_out(now);
        self.run(now);
    }

    /// Whether only the hub computes, since no worker has joined or none is to be asked or tried now, and nothing is traced: then a
    /// layer may be computed without a job, and counted with [`Self::computed_locally`].
    pub fn is_alone(&self, now: Duration) -> bool {
        self.config.hub_compute && !self.dispatcher.may_ask_anyone(now) && self.dispatcher.may_be_bypassed()
    }

    /// Counts a layer computed without a job as one that the hub computed.
    pub fn computed_locally(&mut self, layer: LayerId, routing: &Routing, took: Duration) {
        let mut chosen = BTreeMap::<u16, usize>::new();
        for expert in &routing.experts {
            *chosen.entry(*expert).or_default() += 1;
        }
        let block = |(expert, n_pairs)| (Block { layer, expert: ExpertId(expert) }, n_pairs);
        self.fleet.count_load(chosen.into_iter().map(block));
        self.dispatcher.computed_locally(routing.experts.len(), took);
    }

    // Time.

    /// Handles due deadlines: of attempts and their second copies, of jobs that wait for a holder, of sessions, and of the
    /// placement, which is due at once where workers have come or gone: it takes long enough for what that asks of other
    /// workers to leave first.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.dispatcher.handle_timeout(now, &self.fleet);
        self.carry_out(now);
        self.fleet.handle_timeout(now);
        self.fleet.rebalance_if_due(now);
        self.run(now);
        self.dispatcher.expire_jobs(now, &self.fleet);
        self.carry_out(now);
        self.run(now);
    }

    /// When [`Swarm::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        [self.dispatcher.poll_timeout(), self.fleet.poll_timeout()].into_iter().flatten().min()
    }

    /// Ends every job and lets every worker leave.
    pub fn shut_down(&mut self, now: Duration) {
        self.dispatcher.shut_down(now);
        self.carry_out(now);
        self.fleet.drain(now);
        self.run(now);
    }

    // What comes out.

    /// The next action. Take all of them after each call.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next trace record, if tracing is on. Take all of them after each call.
    pub fn poll_trace(&mut self) -> Option<Record> {
        self.dispatcher.poll_trace()
    }

    /// Trace records dropped because nobody polled them.
    pub fn trace_dropped(&self) -> u64 {
        self.dispatcher.trace_dropped()
    }

    /// How layers are encoded for [`Self::start_layer`].
    pub fn layer_encoding(&self) -> LayerEncoding {
        LayerEncoding::new(&self.config)
    }

    /// The served model.
    pub fn model(&self) -> &ModelSummary {
        &self.config.model
    }

    // Between the parts.

    /// Processes everything that the last call touched, what layers wait for first. It terminates: sessions emit finitely many
    /// events, and each request for a work item uses up one of finitely many ways to get it.
    fn run(&mut self, now: Duration) {
        loop {
            if let Some(connection) = self.fleet.next_to_poll() {
                self.pump(now, connection);
            } else if self.dispatcher.cover_next(now, &self.fleet) {
                self.carry_out(now);
            } else if !self.fleet.sync_next(now) {
                return;
            }
        }
    }

    /// Takes a session's outputs: events first, since they may cause more messages, then messages, then its close.
    fn pump(&mut self, now: Duration, id: ConnectionId) {
        while let Some(event) = self.fleet.poll_event(id) {
            self.on_session_event(now, id, event);
        }
        if self.fleet.flush(id, &mut self.actions) {
            self.remove(now, id);
        }
    }

    /// Removes a connection.
    fn remove(&mut self, now: Duration, id: ConnectionId) {
        if self.fleet.remove(id) {
            self.dispatcher.connection_gone(now, id);
            self.carry_out(now);
        }
    }

    /// Carries out the dispatcher's orders.
    fn carry_out(&mut self, now: Duration) {
        while let Some(order) = self.dispatcher.poll_order() {
            match order {
                Order::Send { to, attempt, dispatch } => match self.fleet.send(now, to, attempt, &dispatch) {
                    Ok(()) => self.dispatcher.sent(now, attempt, &dispatch),
                    Err(error) => self.dispatcher.not_sent(now, attempt, &error),
                },
                Order::Cancel { at, attempt } => self.fleet.cancel(now, at, attempt),
                Order::NotResident { at, blocks } => self.fleet.not_resident(at, &blocks),
                // With a check of each answer that is used, a lie among them is found before their step ends.
                Order::Credit { worker, n_items } if self.config.checks_what_is_used() => {
                    self.on_true_answer(worker, n_items);
                }
                Order::Credit { .. } => {}
                Order::Compute(id, dispatch) => self.actions.push_back(Action::HubCompute(id, dispatch)),
                Order::Finish(id, result) => self.actions.push_back(Action::Finished(id, result)),
            }
        }
    }

    /// The dispatcher's table of attempts, for tests that set it.
    #[cfg(test)]
    pub(crate) fn dispatcher(&mut self) -> &mut Dispatcher {
        &mut self.dispatcher
    }

    /// The swarm's settings, for tests.
    #[cfg(test)]
    pub(crate) fn config(&self) -> &SwarmConfig {
        &self.config
    }
}
