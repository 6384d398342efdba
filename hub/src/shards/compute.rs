//! Computes a dispatch on the hub, to the same bytes that a worker's answer has.

use moex_kernels::engine::Pair;
use moex_kernels::{ExpertShape, cpu};
use moex_protocol::{Answer, AnswerPart, Block, Dispatch, Form, tensor};

use super::ShardStore;

/// Why the hub could not compute a dispatch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ComputeError {
    /// There is no such block.
    #[error("{0} is not in the packed experts")]
    NoSuchBlock(Block),
    /// The dispatch's rows, pairs or width do not fit together, or not the model.
    #[error("the rows do not have the model's shape")]
    Shape,
}

impl ShardStore {
    /// The answer to `dispatch`: rows decoded from the wire's number format, each expert's gated rows computed as every
    /// worker computes them, and encoded back.
    ///
    /// # Errors
    /// If a block does not exist or the dispatch is not of the store's shape.
    pub fn answer(&self, dispatch: &Dispatch) -> Result<Answer, ComputeError> {
        answer(&self.shape, |block| self.block(block), dispatch)
    }
}

/// [`ShardStore::answer`] for experts of `shape` that lie wherever `find` finds them.
///
/// # Errors
/// If a block does not exist or the dispatch is not of `shape`.
pub fn answer<'a>(
    shape: &ExpertShape,
    find: impl Fn(Block) -> Option<&'a [u8]>,
    dispatch: &Dispatch,
) -> Result<Answer, ComputeError> {
    let hidden = usize::from(dispatch.hidden);
    if hidden != shape.hidden || hidden == 0 {
        return Err(ComputeError::Shape);
    }
    let rows =
        tensor::decode_rows(dispatch.dtype, &dispatch.rows, hidden).map_err(|_| ComputeError::Shape)?; // (R, D)
    let n_rows = rows.len() / hidden;
    let mut sum = vec![0.0; if dispatch.form == Form::Sum { rows.len() } else { 0 }]; // (R, D)
    let mut parts = Vec::new();
    for call in &dispatch.calls {
        let block = Block { layer: dispatch.layer, expert: call.expert };
        let bytes = find(block).ok_or(ComputeError::NoSuchBlock(block))?;
        let view = shape.view(bytes).map_err(|_| ComputeError::Shape)?;
        if call.pairs.iter().any(|pair| usize::from(pair.row) >= n_rows) {
            return Err(ComputeError::Shape);
        }
        let pairs: Vec<Pair> =
            call.pairs.iter().map(|p| Pair { row: u32::from(p.row), gate: p.gate.to_f32() }).collect();
        let mut out = vec![0.0; pairs.len() * hidden]; // (P, D)
        cpu::expert_ffn(&view, &rows, &pairs, &mut out);
        if dispatch.form == Form::Sum {
            for (pair, out) in pairs.iter().zip(out.chunks_exact(hidden)) {
                cpu::add(&mut sum[pair.row as usize * hidden..][..hidden], out);
            }
        } else {
            parts.push(part(dispatch, Some(call.expert), &out));
        }
    }
    if dispatch.form == Form::Sum {
        parts.push(part(dispatch, None, &sum));
    }
    Ok(Answer { layer: dispatch.layer, hidden: dispatch.hidden, dtype: dispatch.dtype, parts })
}

fn part(dispatch: &Dispatch, expert: Option<moex_protocol::ExpertId>, rows: &[f32]) -> AnswerPart {
    let hidden = usize::from(dispatch.hidden);
    let mut payload = Vec::new();
    tensor::encode_rows(dispatch.dtype, rows, hidden, &mut payload);
    AnswerPart { expert, rows: (rows.len() / hidden) as u32, payload: payload.into() }
}
