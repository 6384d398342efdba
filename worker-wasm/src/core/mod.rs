//! The worker without its surroundings, as state machines: no socket, clock, file or device lives here.
//!
//! [`Core`] serves one hub: the session with it, the blocks held for it, and the work owed to it. [`Worker`] is a core and a
//! connection for each of several hubs, with one device for all; browser and native run it, the simulator runs a core alone.
//! The owner of a core feeds it events and does what it requests:
//!
//! ```text
//! handle_message, handle_text, handle_timeout, handle_closed      what the socket and the timer bring
//! planned, loaded, computed, set_visibility, leave, reconnect     what the device, the loader and the user bring
//!                            then, until all are empty
//! poll_transmit  ->  bytes for the socket, one message each
//! poll_task      ->  work for the device and the loader
//! close_code     ->  when poll_transmit is empty: close the socket with it
//! poll_timeout   ->  when to call handle_timeout
//! ```
//!
//! At most one [`Task::Compute`] and [`MAX_LOADS_IN_FLIGHT`] [`Task::Load`]s are out at any time. A driver may run a load and a
//! computation in either order: a slot that a computation reads is never the target of a load.

pub mod answer;
mod batch;
mod blocks;
mod link;
mod model;
mod report;
mod status;
mod worker;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use moex_kernels::{
    ExpertFormat,
    engine::{Batch, EnginePlan, Output, Wanted},
};
use moex_protocol::{
    Accepted, AttemptId, Beat, Block, BlockReport, BlockSource, Call, CloseReason, Dispatch, ErrorCode, Join,
    ProductShape, Reply, Visibility, WeightSync, WorkerConfig, WorkerEvent, WorkerSession,
};

pub use self::blocks::MAX_LOADS_IN_FLIGHT;
use self::blocks::{BlockTable, HoldOutcome, Settled};
pub use self::link::{ConnectionError, Ending, RENEWAL_PATIENCE};
use self::model::Model;
use self::report::Report;
pub use self::status::{LATENCY_WINDOW, Status};
use self::status::{Latencies, told};
pub use self::worker::{Action, Connection, EngineId, HubConfig, HubId, Worker};

/// Blocks that became resident within this time are reported to the hub together.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// A worker's description of itself.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// The first frame of every session.
    pub join: Join,
}

/// A task for the driver.
#[derive(Debug)]
pub enum Task {
    /// Make an engine with this plan, in place of any earlier one; then call [`Core::planned`]. Loads into the earlier engine
    /// are void: they are not reported.
    Plan {
        /// The engine's sizes.
        plan: EnginePlan,
    },
    /// Fetch the bytes of `source`, check their hash, put them into the engine's `slot`; then call [`Core::loaded`].
    Load {
        /// The engine's slot.
        slot: u32,
        /// One of the plan's formats.
        format: ExpertFormat,
        /// The block and its source.
        source: BlockSource,
    },
    /// Compute the batch; then call [`Core::computed`].
    Compute {
        /// The attempt for [`Core::computed`].
        attempt: AttemptId,
        /// Rows (R, D) and their experts.
        batch: Batch,
        /// What the answer is to have.
        wanted: Wanted,
    },
    /// Give up: another connection would end the same way. The reason is one sentence.
    Stop(String),
}

/// A block that has been put into its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Size of the block.
    pub bytes: u64,
    /// Bytes of it that came over the network rather than from this worker's own store.
    pub downloaded: u64,
}

/// See the [module's description](self).
#[derive(Debug)]
pub struct Core {
    config: CoreConfig,
    session: WorkerSession,
    model: Option<Model>,
    accepted: bool,
    /// Of the products that the hub announced to request.
    products: Option<ProductShape>,
    engine_ready: bool,
    blocks: BlockTable,
    report: Report,
    running: Option<Running>,
    tasks: VecDeque<Task>,
    visibility: Visibility,
    latencies: Latencies,
    /// The counters in here are kept up to date; the rest is filled in by [`Core::status`].
    counted: Status,
}

/// The running computation.
#[derive(Debug)]
struct Running {
    attempt: AttemptId,
    dispatch: Dispatch,
    since: Duration,
    /// The hub, or the session it came with, no longer waits for it.
    cancelled: bool,
}

impl Core {
    /// A worker whose socket has just opened: the join is waiting in [`poll_transmit`](Self::poll_transmit).
    pub fn new(config: CoreConfig, now: Duration) -> Self {
        let counted = Status {
            worker: config.join.key.id().to_string(),
            adapter: config.join.adapter.clone(),
            backend: config.join.backend.clone(),
            bytes_offered: config.join.memory_budget_bytes,
            features: config.join.features.clone(),
            ..Status::default()
        };
        Self {
            session: WorkerSession::new(WorkerConfig { join: config.join.clone() }, now),
            config,
            model: None,
            accepted: false,
            products: None,
            engine_ready: false,
            blocks: BlockTable::default(),
            report: Report::default(),
            running: None,
            tasks: VecDeque::new(),
            visibility: Visibility::Visible,
            latencies: Latencies::default(),
            counted,
        }
    }

    /// A new socket has opened after [`handle_closed`](Self::handle_closed). Blocks in their slots are kept for the new session.
    pub fn reconnect(&mut self, now: Duration) {
        self.abandon_session();
        self.accepted = false;
        self.session = WorkerSession::new(WorkerConfig { join: self.config.join.clone() }, now);
        self.report_beat(now);
    }

    /// A binary message from the hub.
    pub fn handle_message(&mut self, now: Duration, message: Bytes) {
        self.session.handle_message(now, message);
        self.advance(now);
    }

    /// A text message, which the protocol does not have.
    pub fn handle_text(&mut self, now: Duration) {
        self.session.handle_text(now);
        self.advance(now);
    }

    /// The time of [`poll_timeout`](Self::poll_timeout) has come.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.session.handle_timeout(now);
        self.advance(now);
    }

    /// The socket is closed.
    pub fn handle_closed(&mut self, now: Duration) {
        self.session.handle_closed(now);
        self.advance(now);
        self.abandon_session();
    }

    /// [`Task::Plan`] is done. An error ends the worker: it may do better on another device.
    pub fn planned(&mut self, now: Duration, result: Result<(), String>) {
        match result {
            Ok(()) => self.engine_ready = true,
            Err(reason) => self.stop(format!("This device cannot serve the hub's model: {reason}.")),
        }
        self.advance(now);
    }

    /// [`Task::Load`] is done.
    pub fn loaded(&mut self, now: Duration, block: Block, result: Result<Loaded, String>) {
        if let Ok(loaded) = result {
            self.report.bytes_done += loaded.bytes;
            self.report.bytes_downloaded += loaded.downloaded;
            self.counted.bytes_downloaded += loaded.downloaded;
        }
        let outcome = result.as_ref().map(|_| ()).map_err(|_| ());
        match (self.blocks.loaded(block, outcome), result) {
            (Settled::Resident, _) => self.report_resident(now, block),
            (Settled::Failed, Err(reason)) => self.report_failed(now, block, reason),
            _ => {}
        }
        self.advance(now);
    }

    /// [`Task::Compute`] is done.
    pub fn computed(&mut self, now: Duration, attempt: AttemptId, result: Result<Output, String>) {
        self.blocks.unpin();
        if let Some(running) = self.running.take_if(|running| running.attempt == attempt) {
            self.settle(now, running, result);
        }
        self.advance(now);
    }

    /// The device stopped working: the core tells the hub the error code, and the worker stops.
    pub fn device_failed(&mut self, now: Duration, code: ErrorCode, reason: String) {
        self.session.stop(now, code, reason.as_str());
        self.advance(now);
        self.stop(reason);
    }

    /// The tab was hidden, frozen or shown again.
    pub fn set_visibility(&mut self, now: Duration, visibility: Visibility) {
        if self.visibility != visibility {
            self.visibility = visibility;
            self.report_beat(now);
        }
    }

    /// The worker is about to go: the hub gives it no more work.
    pub fn leave(&mut self, now: Duration) {
        self.set_visibility(now, Visibility::Leaving);
    }

    /// The next message for the socket.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        self.session.poll_transmit()
    }

    /// The next task.
    pub fn poll_task(&mut self) -> Option<Task> {
        self.tasks.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), unless something else happens first.
    pub fn poll_timeout(&self) -> Option<Duration> {
        [self.session.poll_timeout(), self.report.due].into_iter().flatten().min()
    }

    /// Set once the session is over: the code to close the socket with after everything has been sent.
    pub fn close_code(&self) -> Option<u16> {
        self.session.close_code()
    }

    /// Whether the hub accepted the latest session.
    pub fn was_accepted(&self) -> bool {
        self.accepted
    }

    /// The worker's status.
    pub fn status(&self) -> Status {
        let block_bytes = self.model.as_ref().map_or(0, |model| model.block_bytes);
        let blocks_resident = self.blocks.n_resident();
        Status {
            state: self.session.state().name().into(),
            model: self.model.as_ref().map(|model| told(&model.name)),
            blocks_assigned: self.blocks.n_assigned(),
            blocks_resident,
            bytes_resident: block_bytes * blocks_resident as u64,
            latency_p50_micros: self.latencies.percentile_micros(50),
            latency_p99_micros: self.latencies.percentile_micros(99),
            ..self.counted.clone()
        }
    }

    /// Takes in the session's events, then starts everything that can be done now.
    fn advance(&mut self, now: Duration) {
        while let Some(event) = self.session.poll_event() {
            self.handle_event(now, event);
        }
        if self.engine_ready {
            while let (Some(model), Some((slot, source))) = (&self.model, self.blocks.next_load()) {
                let format = model.shape(source.block.layer).format;
                self.tasks.push_back(Task::Load { slot, format, source });
            }
        }
        self.flush_report(now);
        while self.running.is_none() {
            let Some((attempt, dispatch)) = self.session.next_work(now) else { break };
            self.start(now, attempt, dispatch);
        }
    }

    fn handle_event(&mut self, now: Duration, event: WorkerEvent) {
        match event {
            WorkerEvent::Accepted(accepted) => self.accepted(&accepted),
            WorkerEvent::Sync(sync) => self.sync(now, sync),
            WorkerEvent::Cancelled(attempt) => {
                if let Some(running) = self.running.as_mut().filter(|running| running.attempt == attempt) {
                    running.cancelled = true;
                }
            }
            WorkerEvent::Rejected(error) => {
                let words = format!("The hub turned this worker away: {}", error.message);
                match error.code {
                    ErrorCode::Unauthorized
                    | ErrorCode::Version
                    | ErrorCode::SelfTest
                    | ErrorCode::OutOfMemory => self.stop(words),
                    _ => self.counted.problem = Some(told(&words)),
                }
            }
            WorkerEvent::Closed { reason: CloseReason::Drained } => {}
            WorkerEvent::Closed { reason } => {
                self.counted.problem.get_or_insert_with(|| told(&reason.to_string()));
            }
        }
    }

    /// The hub has described its model: requests an engine for it, unless the present one fits.
    fn accepted(&mut self, accepted: &Accepted) {
        let model = match Model::new(&accepted.model, self.config.join.memory_budget_bytes) {
            Ok(model) => model,
            Err(reason) => return self.stop(reason),
        };
        self.accepted = true;
        self.counted.problem = None;
        self.products = accepted.model.product_shape().filter(|_| accepted.wants_products);
        if self.model.as_ref() == Some(&model) {
            return;
        }
        self.blocks = BlockTable::new(model.plan.n_slots);
        self.engine_ready = false;
        self.tasks.push_back(Task::Plan { plan: model.plan });
        self.model = Some(model);
    }

    fn sync(&mut self, now: Duration, sync: WeightSync) {
        let Some(model) = &self.model else { return };
        let bytes_of = |block: Block| model.shape(block.layer).block_bytes() as u64;
        let hold: Vec<_> = sync.hold.into_iter().map(|source| (bytes_of(source.block), source)).collect();
        if self.report.epoch != sync.epoch {
            self.report.start(sync.epoch);
        }
        self.report.bytes_total += hold.iter().map(|(block_bytes, _)| block_bytes).sum::<u64>();
        for block in sync.drop {
            self.blocks.drop_block(block);
        }
        for (block_bytes, source) in hold {
            let block = source.block;
            if source.end.checked_sub(source.start) != Some(block_bytes) {
                self.report_failed(
                    now,
                    block,
                    format!("its range is not the {block_bytes} bytes of a block"),
                );
                continue;
            }
            match self.blocks.hold(source) {
                HoldOutcome::Resident => {
                    self.report.bytes_done += block_bytes;
                    self.report_resident(now, block);
                }
                HoldOutcome::Queued => {}
                HoldOutcome::NoRoom => {
                    self.report_failed(now, block, "no slot is free within the memory budget".into());
                }
            }
        }
        self.report_beat(now);
    }

    /// Starts a dispatch, or answers at once why not.
    fn start(&mut self, now: Duration, attempt: AttemptId, dispatch: Dispatch) {
        self.counted.dispatches += 1;
        match self.batch(&dispatch) {
            Ok((slots, batch)) => {
                self.blocks.pin(slots);
                let wanted = batch::wanted(&dispatch, self.products);
                self.running = Some(Running { attempt, dispatch, since: now, cancelled: false });
                self.tasks.push_back(Task::Compute { attempt, batch, wanted });
            }
            Err((code, reason)) => {
                self.counted.errors += 1;
                self.session.fail(now, attempt, code, reason);
            }
        }
    }

    /// The slots a dispatch reads and the batch for the engine.
    fn batch(&self, dispatch: &Dispatch) -> Result<(Vec<u32>, Batch), (ErrorCode, String)> {
        if dispatch.reply == Reply::RowsAndProducts && self.products.is_none() {
            return Err((ErrorCode::BadFrame, "products were not agreed on".into()));
        }
        let resident = |call: &Call| {
            let block = Block { layer: dispatch.layer, expert: call.expert };
            self.blocks.resident(block).ok_or_else(|| (ErrorCode::NotResident, block.to_string()))
        };
        let slots = dispatch.calls.iter().map(resident).collect::<Result<Vec<_>, _>>()?;
        let batch = batch::to_batch(dispatch, &slots).map_err(|e| (ErrorCode::BadFrame, e.to_string()))?;
        Ok((slots, batch))
    }

    /// Answers the attempt with the computation's result, unless nobody waits for it.
    fn settle(&mut self, now: Duration, running: Running, result: Result<Output, String>) {
        let Running { attempt, dispatch, since, cancelled } = running;
        if cancelled {
            return;
        }
        let failed = |reason| (ErrorCode::DeviceLost, reason);
        let sent = result.map_err(failed).and_then(|output| {
            let not_finite =
                || (ErrorCode::BadFrame, "a result is not finite in the wire's dtype".to_owned());
            let answer = batch::to_answer(&dispatch, self.products, output).ok_or_else(not_finite)?;
            self.session.complete(now, attempt, answer).map_err(|error| failed(error.to_string()))
        });
        match sent {
            Ok(()) => {
                self.counted.answers += 1;
                self.counted.rows += dispatch.n_pairs() as u64;
                self.latencies.push(now.saturating_sub(since));
            }
            Err((code, reason)) => {
                self.counted.errors += 1;
                self.counted.problem = Some(reason.clone());
                self.session.fail(now, attempt, code, reason);
            }
        }
    }

    fn report_resident(&mut self, now: Duration, block: Block) {
        self.report.resident.push(block);
        self.report.due.get_or_insert(now + REPORT_INTERVAL);
    }

    fn report_failed(&mut self, now: Duration, block: Block, reason: String) {
        self.counted.blocks_failed += 1;
        self.report.failed.push((block, reason));
        self.report.due.get_or_insert(now + REPORT_INTERVAL);
    }

    /// Reports loaded blocks to the hub: when the interval is over, or at once when no load is running.
    fn flush_report(&mut self, now: Duration) {
        let Report { due: Some(due), .. } = self.report else { return };
        // Counted only when there is something to report: this runs for every message.
        let idle = self.blocks.n_assigned() == self.blocks.n_resident();
        if now < due && !idle {
            return;
        }
        let report = &mut self.report;
        report.due = None;
        self.session.report_blocks(
            now,
            BlockReport {
                epoch: report.epoch,
                resident: std::mem::take(&mut report.resident),
                failed: std::mem::take(&mut report.failed),
                bytes_done: report.bytes_done,
                bytes_total: report.bytes_total,
                bytes_downloaded: report.bytes_downloaded,
            },
        );
        self.report_beat(now);
    }

    /// Tells the session the content of the next heartbeats; a change of visibility is sent at once.
    fn report_beat(&mut self, now: Duration) {
        let status = self.status();
        self.session.report_beat(
            now,
            Beat { visibility: self.visibility, memory_used_bytes: status.bytes_resident, ..Beat::default() },
        );
    }

    fn abandon_session(&mut self) {
        self.blocks.session_lost();
        self.report = Report::default();
        if let Some(running) = &mut self.running {
            running.cancelled = true;
        }
    }

    fn stop(&mut self, reason: String) {
        let reason = told(&reason);
        self.counted.problem = Some(reason.clone());
        self.tasks.push_back(Task::Stop(reason));
    }
}
