//! Computes a dispatch on the hub, with the same bytes as a worker's answer.

use moex_kernels::{ExpertShape, engine::Pair};
use moex_protocol::{Answer, Block, Dispatch, ExpertId};
use moex_worker::core::answer::{Answering, ComputeError, answer, pair, rows_of};

use super::ShardStore;
use moex_model::local_experts::{ExpertPanels, PanelSpace};

impl ShardStore {
    /// Answers `dispatch`: decodes the rows from the wire's format, computes each expert's gated rows as workers do,
    /// and encodes the result.
    ///
    /// # Errors
    /// If a block does not exist or the dispatch does not fit the store's shapes.
    pub fn answer(&self, dispatch: &Dispatch) -> Result<Answer, ComputeError> {
        let first = || dispatch.calls.first().map_or(ExpertId(0), |call| call.expert);
        let missing = || ComputeError::NoSuchBlock(Block { layer: dispatch.layer, expert: first() });
        let shape = self.shape(dispatch.layer).ok_or_else(missing)?;
        match &self.panels {
            None => answer(&shape, |block| self.computed_with(block), dispatch),
            Some(panels) => answer_from(panels, &shape, dispatch),
        }
    }

    fn computed_with(&self, block: Block) -> Option<&[u8]> {
        self.block(block).inspect_err(|error| tracing::error!("{error}")).ok()
    }
}

/// [`answer`] with int8 activations, all experts in one job.
fn answer_from(
    panels: &ExpertPanels,
    shape: &ExpertShape,
    dispatch: &Dispatch,
) -> Result<Answer, ComputeError> {
    let rows = rows_of(shape, dispatch)?; // (R, D)
    let pairs: Vec<Pair> = dispatch.calls.iter().flat_map(|call| &call.pairs).map(pair).collect(); // (P)
    let mut end = 0;
    let calls: Vec<(u16, usize)> = (dispatch.calls.iter())
        .map(|call| {
            end += call.pairs.len();
            (call.expert.0, end)
        })
        .collect();
    let mut out = vec![0.0; pairs.len() * shape.hidden]; // (P, D)
    let layer = dispatch.layer;
    panels
        .compute(usize::from(layer.0), &calls, &pairs, &rows, &mut PanelSpace::default(), &mut out)
        .map_err(|(expert, why)| {
            tracing::error!("{why}");
            ComputeError::NoSuchBlock(Block { layer, expert: ExpertId(expert) })
        })?;
    let mut answer = Answering::new(dispatch);
    let mut start = 0;
    for (expert, end) in calls {
        answer.take(ExpertId(expert), &out[start * shape.hidden..end * shape.hidden]);
        start = end;
    }
    Ok(answer.finish())
}
