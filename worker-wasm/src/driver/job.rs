//! The jobs of a worker besides its sockets: making an engine, fetching a block, computing a batch.

use moex_kernels::ExpertFormat;
use moex_kernels::engine::{Batch, EngineError, EnginePlan, Output, Wanted};
use moex_protocol::{AttemptId, Block, BlockSource};

use super::Shared;
use crate::core::{EngineId, Loaded};
use crate::device::{Device, Engine};

/// Fetches the blocks of one hub.
pub(crate) trait Fetch {
    /// The bytes of the block, with the hash that the hub named.
    ///
    /// # Errors
    /// A description of the failure, after several attempts.
    async fn fetch(&self, source: &BlockSource) -> Result<(Vec<u8>, Loaded), String>;

    /// Fetches the block into the engine's slot.
    ///
    /// # Errors
    /// A description of the failure.
    async fn load(
        &self,
        engine: &Engine,
        slot: u32,
        format: ExpertFormat,
        source: &BlockSource,
    ) -> Result<Loaded, String> {
        let (bytes, loaded) = self.fetch(source).await?;
        engine.load(slot, format, &bytes).await.map_err(|error| error.to_string())?;
        Ok(loaded)
    }
}

/// One job.
pub(crate) enum Job<F> {
    /// Make an engine.
    Plan { id: EngineId, device: Shared<Device>, plan: EnginePlan },
    /// Fetch a block and put it into its slot.
    Load {
        id: EngineId,
        engine: Option<Shared<Engine>>,
        fetcher: Shared<F>,
        slot: u32,
        format: ExpertFormat,
        source: BlockSource,
    },
    /// Compute a batch.
    Compute { id: EngineId, engine: Option<Shared<Engine>>, attempt: AttemptId, batch: Batch, wanted: Wanted },
}

/// The outcome of a job.
pub(crate) enum Done {
    /// The outcome of [`Job::Plan`].
    Planned(EngineId, Result<Shared<Engine>, String>),
    /// The outcome of [`Job::Load`].
    Loaded(EngineId, Block, Result<Loaded, String>),
    /// The outcome of [`Job::Compute`].
    Computed(EngineId, AttemptId, Result<Output, EngineError>),
}

impl<F: Fetch> Job<F> {
    /// Runs the job.
    pub(crate) async fn run(self) -> Done {
        match self {
            Self::Plan { id, device, plan } => {
                let engine = device.engine(plan).await;
                Done::Planned(id, engine.map(Shared::new).map_err(|error| error.to_string()))
            }
            Self::Load { id, engine, fetcher, slot, format, source } => {
                let load = async {
                    let engine = engine.ok_or_else(|| no_engine().to_string())?;
                    fetcher.load(&engine, slot, format, &source).await
                };
                Done::Loaded(id, source.block, load.await)
            }
            Self::Compute { id, engine, attempt, batch, wanted } => {
                let result = match engine {
                    Some(engine) => engine.answer(&batch, wanted).await,
                    None => Err(no_engine()),
                };
                Done::Computed(id, attempt, result)
            }
        }
    }
}

/// The error for a batch or a block of an engine that has been replaced: nobody waits for its outcome.
fn no_engine() -> EngineError {
    EngineError::Plan("it has been replaced".into())
}
