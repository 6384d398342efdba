//! The engine of a simulated worker: the shipped CPU engine, or zeros of the right shape.

use moex_kernels::ExpertFormat;
use moex_kernels::engine::{Batch, Computed, CpuEngine, EnginePlan};

/// Whether answers have real values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// The shipped kernels compute experts.
    Exact,
    /// Every answer is zeros, for runs that need only times.
    Zeros,
}

/// One worker's engine.
#[derive(Debug)]
pub(super) enum Engine {
    Exact(CpuEngine),
    Zeros { hidden: usize, inner: usize },
}

impl Engine {
    pub(super) fn new(arithmetic: Arithmetic, plan: EnginePlan) -> Result<Self, String> {
        Ok(match arithmetic {
            Arithmetic::Exact => Self::Exact(CpuEngine::new(plan).map_err(|error| error.to_string())?),
            Arithmetic::Zeros => Self::Zeros { hidden: plan.shapes.hidden, inner: plan.shapes.inner },
        })
    }

    pub(super) fn load(&self, slot: u32, format: ExpertFormat, block: &[u8]) -> Result<(), String> {
        match self {
            Self::Exact(engine) => engine.load(slot, format, block).map_err(|error| error.to_string()),
            Self::Zeros { .. } => Ok(()),
        }
    }

    /// Returns rows (P, D), and products (P, 2F) if they are wanted.
    pub(super) fn compute(&self, batch: &Batch, wants_products: bool) -> Result<Computed, String> {
        match self {
            Self::Exact(engine) if wants_products => {
                engine.compute_with_products(batch).map_err(|error| error.to_string())
            }
            Self::Exact(engine) => {
                engine.compute(batch).map(Computed::from).map_err(|error| error.to_string())
            }
            Self::Zeros { hidden, inner } => {
                let products = wants_products.then(|| vec![0.0; batch.n_pairs() * 2 * inner]);
                Ok(Computed { rows: vec![0.0; batch.n_pairs() * hidden], products })
            }
        }
    }
}
