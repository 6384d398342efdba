//! Handles sessions' events, the hub's results and the auditor's findings: the calls between the parts.

use std::time::Duration;

use moex_protocol::{AttemptId, Blame, ErrorCode, HubEvent, Join, WorkerId, peer_text};
use tracing::{info, warn};

use super::Swarm;
use crate::auditor::{Check, Evidence, Finding};
use crate::dispatcher::{HubResult, LateAnswer, NotFinite, Received, WorkerAnswer};
use crate::fleet::{JoinOutcome, QUARANTINED, close_code};
use crate::{Action, ComputeId, ConnectionId, JobId};

impl Swarm {
    pub(super) fn on_session_event(&mut self, now: Duration, id: ConnectionId, event: HubEvent) {
        match event {
            HubEvent::Joined(join) => self.on_join(now, id, join),
            HubEvent::Beat { beat, round_trip } => {
                let is_unavailable = self.fleet.beat(now, id, &beat);
                self.dispatcher.heartbeat(now, id, round_trip);
                // It will not answer: its items are requested from others now and not at the timeout.
                if is_unavailable {
                    self.dispatcher.reassign(now, id);
                }
                if self.fleet.has_joined(id) {
                    self.dispatcher.cover_waiting();
                }
            }
            HubEvent::Blocks(report) => {
                self.fleet.blocks_reported(now, id, report);
                if self.fleet.has_joined(id) {
                    self.dispatcher.cover_waiting();
                }
            }
            HubEvent::Answered { attempt, answer } => {
                self.on_answer(now, id, attempt, Received::Answer(&answer));
            }
            HubEvent::Digested { attempt, digests } => {
                self.on_answer(now, id, attempt, Received::Digests(&digests));
            }
            HubEvent::NotFinite { attempt } => match self.dispatcher.not_finite(now, id, attempt) {
                Some(NotFinite { worker, block }) => {
                    self.on_wrong_answer(now, worker, Evidence::not_finite(block));
                }
                None => self.dispatcher.worker_failed(now, id),
            },
            HubEvent::Failed { attempt, error } => self.dispatcher.refused(now, id, attempt, &error),
            HubEvent::Late { attempt, answer } => {
                self.on_late_answer(now, id, attempt, Received::Answer(&answer));
            }
            HubEvent::Closed { reason } => {
                let address = self.fleet.address(id);
                let said = reason.to_string();
                let said = peer_text(&said);
                if reason.blame() == Blame::Peer {
                    warn!(connection = id.0, address, reason = %said, "a session broke the protocol");
                } else {
                    info!(connection = id.0, address, reason = %said, "a session ended");
                }
                self.dispatcher.reassign(now, id);
            }
        }
        self.carry_out(now);
    }

    fn on_join(&mut self, now: Duration, id: ConnectionId, join: Join) {
        let worker = self.fleet.id_of(&join);
        let (is_quarantined, is_proven) =
            (self.auditor.is_quarantined(worker), self.auditor.is_proven(worker));
        let JoinOutcome::Accepted { replaced } = self.fleet.join(now, id, worker, join, is_quarantined)
        else {
            return;
        };
        if is_proven {
            self.fleet.trust(id);
        }
        let Some((member, host)) = self.fleet.member(id).zip(self.fleet.host(id)) else { return };
        self.dispatcher.worker_joined(now, id, member, host);
        if let Some(worker) = self.dispatcher.worker(id) {
            info!(
                worker = worker.id().short(),
                address = self.fleet.address(id),
                adapter = %peer_text(&member.join.adapter),
                capacity = member.residency.capacity(),
                tier = ?worker.tier(),
                reason = worker.tier_reason(),
                "a worker joined"
            );
        }
        if let Some(old) = replaced {
            self.actions.push_back(Action::Close(old, close_code::REPLACED));
            self.remove(now, old);
        }
    }

    fn on_answer(&mut self, now: Duration, from: ConnectionId, id: AttemptId, received: Received<'_>) {
        if !self.dispatcher.is_out(from, id) {
            return self.on_late_answer(now, from, id, received);
        }
        let Some(valid) = self.dispatcher.answered(now, from, id, received) else { return };
        let job = valid.job;
        if self.auditor.draws_check() {
            self.start_check(now, job, valid.items.clone(), vec![valid.answer.clone()]);
        }
        let redundant = self.dispatcher.accept(now, valid);
        self.cross_check(now, job, &redundant);
        self.dispatcher.after_answer(now, job);
    }

    fn on_late_answer(&mut self, now: Duration, from: ConnectionId, id: AttemptId, received: Received<'_>) {
        match self.dispatcher.answered_late(now, from, id, received) {
            LateAnswer::Incomparable => {}
            LateAnswer::Duplicate { job, answer, sent } => {
                self.cross_check(now, job, &answer);
                self.dispatcher.answered_since(from, sent);
            }
            LateAnswer::NotFinite(NotFinite { worker, block }) => {
                self.on_wrong_answer(now, worker, Evidence::not_finite(block));
            }
        }
    }

    /// The hub computed a job's items.
    pub(super) fn on_hub_answer(&mut self, now: Duration, id: ComputeId, answer: &HubResult) {
        if let Some(mut answer) = self.dispatcher.hub_answered(now, id, answer) {
            let job = answer.job;
            if let Some((layer, winners)) = self.dispatcher.winners_of(job) {
                let withheld = std::mem::take(&mut answer.withheld);
                let mut findings = self.auditor.review(job, layer, winners, &answer.parts);
                findings.extend(self.auditor.decide_withheld(layer, withheld, &answer.parts));
                self.on_findings(now, findings);
            }
            self.dispatcher.accept_from_hub(now, answer);
        }
        self.carry_out(now);
    }

    /// The hub computed a check.
    pub(super) fn on_check(&mut self, now: Duration, check: Check, answer: &HubResult) {
        let truth = answer.finite().and_then(|a| check.layer.read(&check.items, a));
        let Some(truth) = truth else { return };
        let job = check.job;
        self.dispatcher.check_took(check.layer.n_pairs(&check.items), now.saturating_sub(check.sent));
        let findings = self.auditor.decide(check, &truth);
        self.on_findings(now, findings);
        self.dispatcher.accept_check(now, job, truth);
        self.carry_out(now);
    }

    /// Lets the hub compute what these workers answered for a job in flight or just finished.
    fn start_check(&mut self, now: Duration, job: JobId, items: Vec<usize>, answers: Vec<WorkerAnswer>) {
        let Some(layer) = self.dispatcher.layer_of(job).filter(|_| self.auditor.may_check()).cloned() else {
            return;
        };
        let id = self.dispatcher.compute_check(layer.dispatch(&items));
        self.auditor.check_started(id, Check { job, layer, items, answers, sent: now });
    }

    /// Compares a second answer with the one that was used.
    fn cross_check(&mut self, now: Duration, job: JobId, answer: &WorkerAnswer) {
        let Some((layer, winners)) = self.dispatcher.winners_of(job) else { return };
        let findings = self.auditor.cross_check(job, layer, winners, answer);
        self.on_findings(now, findings);
    }

    fn on_findings(&mut self, now: Duration, findings: Vec<Finding>) {
        for finding in findings {
            match finding {
                Finding::Wrong { worker, evidence } => self.on_wrong_answer(now, worker, evidence),
                Finding::WrongAndUsed { worker, job, evidence } => {
                    self.dispatcher.retract(worker, self.fleet.connection_of(worker), job);
                    self.on_wrong_answer(now, worker, evidence);
                }
                Finding::Confirmed { worker, n_items, n_pairs } => {
                    self.dispatcher.credit(worker, n_items, n_pairs);
                }
                Finding::True { worker, n_items } => self.on_true_answer(worker, n_items),
                Finding::Disputed { job, items, answers } => self.start_check(now, job, items, answers),
            }
        }
    }

    /// The hub has checked work items that a worker answered, and they are true.
    pub(super) fn on_true_answer(&mut self, worker: WorkerId, n_items: usize) {
        if self.auditor.answered_truly(worker, n_items)
            && let Some(connection) = self.fleet.connection_of(worker)
        {
            info!(worker = worker.short(), "its answers were true: it may hold any share of the model");
            self.fleet.trust(connection);
        }
    }

    /// A worker answered wrong: records a strike, and quarantines the worker after too many.
    pub(super) fn on_wrong_answer(&mut self, now: Duration, worker: WorkerId, evidence: Evidence) {
        let connection = self.fleet.connection_of(worker);
        let address = connection.and_then(|id| self.fleet.address(id)).unwrap_or("gone").to_owned();
        let Evidence { layer, expert, nmse, against } = evidence;
        let beside = against.map_or_else(|| "the hub's".to_owned(), |other| format!("{}'s", other.short()));
        warn!(worker = worker.short(), address, %layer, %expert, nmse, "a wrong answer beside {beside}");
        if let Some(connection) = connection {
            self.dispatcher.worker_failed(now, connection);
        }
        if !self.auditor.strike(worker, &address, evidence) {
            return;
        }
        warn!(worker = worker.short(), address, "quarantined: its answers differ by more than rounding");
        self.dispatcher.retract_all(worker, connection);
        if let Some(id) = connection {
            self.fleet.reject(now, id, ErrorCode::SelfTest, QUARANTINED);
            self.dispatcher.reassign(now, id);
        }
    }
}
