//! Threads where they share memory, natively: the kernels' own, of which an engine takes what it needs.

pub use moex_kernels::engine::Engine;
use moex_kernels::engine::{CpuEngine, EngineError, EnginePlan};

/// No threads besides the kernels' own.
#[derive(Debug, Default)]
pub struct Threads;

impl Threads {
    /// An engine on the CPU.
    ///
    /// # Errors
    /// As [`CpuEngine::new`].
    pub(crate) async fn engine(&self, plan: EnginePlan) -> Result<Engine, EngineError> {
        Ok(Engine::Cpu(CpuEngine::new(plan)?))
    }

    /// An engine that needs no threads.
    #[cfg(feature = "gpu")]
    pub(crate) fn alone(engine: Engine) -> Engine {
        engine
    }

    /// What the adapter's name says of them.
    pub(crate) fn words(&self) -> String {
        String::new()
    }
}
