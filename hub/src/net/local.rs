//! Runs a swarm on loopback with native workers as processes, for commands that start their own workers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moex_worker::native::BusyPoll;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::accept::serve_forever;
use super::handle::SwarmHandle;
use super::swarm_server::SwarmServer;
use super::worker_processes::{WorkerEnded, WorkerProcesses};
use crate::access::revocations::Revocations;
use crate::shards::ShardStore;
use moex_swarm::SwarmConfig;

/// Interval between checks of the coverage.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Configuration of a local swarm.
#[derive(Clone, Debug)]
pub struct LocalSwarmConfig {
    /// Number of worker processes.
    pub n_workers: usize,
    /// Configuration of the swarm.
    pub swarm: SwarmConfig,
    /// Whether hub and workers poll for messages before they sleep.
    pub busy_poll: BusyPoll,
    /// The `moex` binary; this process's own if none.
    pub program: Option<PathBuf>,
    /// How long the workers may take until they hold every expert.
    pub coverage_deadline: Duration,
}

/// Why a local swarm did not start.
#[derive(Debug, thiserror::Error)]
pub enum LocalSwarmError {
    /// The system could not provide a runtime, socket, thread or process.
    #[error("the local swarm cannot start: {0}")]
    Io(#[from] std::io::Error),
    /// A worker ended.
    #[error(transparent)]
    Worker(#[from] WorkerEnded),
    /// The workers do not hold every expert in time.
    #[error("after {} s the workers hold {covered} of {blocks} blocks: give them more memory or time", waited.as_secs())]
    NotCovered {
        /// Blocks held.
        covered: usize,
        /// Blocks of the model.
        blocks: usize,
        /// How long the hub waited.
        waited: Duration,
    },
}

/// A hub on a free loopback port and its workers. Dropping it kills them.
pub struct LocalSwarm {
    /// None only during drop.
    runtime: Option<Runtime>,
    server: SwarmServer,
    workers: WorkerProcesses,
}

impl LocalSwarm {
    /// Starts the hub and its workers, and waits until they hold every expert. Must not be called from an async task.
    ///
    /// # Errors
    /// If anything cannot be started, a worker ends, or the deadline passes.
    pub fn start(config: LocalSwarmConfig, store: Arc<ShardStore>) -> Result<Self, LocalSwarmError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let token = config.swarm.token.clone();
        let (server, address) = runtime.block_on(async {
            let server =
                SwarmServer::start_with(config.swarm, store, None, config.busy_poll, Revocations::default())?;
            let socket = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
            let address = socket.local_addr()?;
            tokio::spawn(serve_forever(socket, server.router()));
            Ok::<_, std::io::Error>((server, address))
        })?;
        let join_url = format!("http://{address}/join#{}", token.reveal());
        let workers = {
            let _context = runtime.enter();
            WorkerProcesses::start(config.n_workers, &join_url, config.program.as_deref(), config.busy_poll)?
        };
        let mut swarm = Self { runtime: Some(runtime), server, workers };
        swarm.wait_for_coverage(config.coverage_deadline)?;
        Ok(swarm)
    }

    /// Handle for computing layers.
    pub fn handle(&self) -> SwarmHandle {
        self.server.handle()
    }

    fn wait_for_coverage(&mut self, deadline: Duration) -> Result<(), LocalSwarmError> {
        let started = Instant::now();
        let handle = self.handle();
        while self.workers.count() > 0 {
            let coverage = handle.readiness().coverage;
            if coverage.covered == coverage.blocks {
                break;
            }
            if let Some(ended) = self.workers.ended()? {
                return Err(ended.into());
            }
            if started.elapsed() >= deadline {
                let (covered, blocks) = (coverage.covered, coverage.blocks);
                return Err(LocalSwarmError::NotCovered { covered, blocks, waited: deadline });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for LocalSwarm {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        runtime.block_on(async {
            self.workers.stop().await;
            self.server.shut_down().await;
        });
        runtime.shutdown_background();
    }
}
