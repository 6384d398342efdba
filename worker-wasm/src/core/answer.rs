//! Answers a dispatch in f32 from packed blocks, without a session, a slot or a device; the result equals that of any worker
//! with f32 activations. Used by the hub for its own answers, by the simulator's workers and by tests.

use moex_kernels::{ExpertShape, cpu, engine::Pair};
use moex_protocol::{Answer, AnswerPart, Block, Dispatch, ExpertId, Form, tensor};

/// Why a dispatch could not be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ComputeError {
    /// There is no such block.
    #[error("{0} is not in the packed experts")]
    NoSuchBlock(Block),
    /// The dispatch's rows, pairs or width do not fit together, or not the model.
    #[error("the rows do not have the model's shape")]
    Shape,
}

/// The answer to `dispatch`: rows decoded from the wire's number format, each expert's gated rows computed as every worker
/// computes them, and encoded back. The experts are of `shape` and lie wherever `find` finds them.
///
/// # Errors
/// If a block does not exist or the dispatch is not of `shape`.
pub fn answer<'a>(
    shape: &ExpertShape,
    find: impl Fn(Block) -> Option<&'a [u8]>,
    dispatch: &Dispatch,
) -> Result<Answer, ComputeError> {
    let rows = rows_of(shape, dispatch)?; // (R, D)
    let mut answer = Answering::new(dispatch, &rows);
    for call in &dispatch.calls {
        let block = Block { layer: dispatch.layer, expert: call.expert };
        let bytes = find(block).ok_or(ComputeError::NoSuchBlock(block))?;
        let view = shape.view(bytes).map_err(|_| ComputeError::Shape)?;
        let pairs: Vec<Pair> = call.pairs.iter().map(pair).collect();
        let mut out = vec![0.0; pairs.len() * shape.hidden]; // (P, D)
        cpu::expert_ffn(&view, &rows, &pairs, &mut out);
        answer.take(call.expert, &pairs, &out);
    }
    Ok(answer.finish())
}

/// The rows (R, D) of a dispatch that fits `shape`, all of whose pairs name one of them.
///
/// # Errors
/// If it does not fit.
pub fn rows_of(shape: &ExpertShape, dispatch: &Dispatch) -> Result<Vec<f32>, ComputeError> {
    let hidden = usize::from(dispatch.hidden);
    if hidden != shape.hidden || hidden == 0 {
        return Err(ComputeError::Shape);
    }
    let rows =
        tensor::decode_rows(dispatch.dtype, &dispatch.rows, hidden).map_err(|_| ComputeError::Shape)?;
    let n_rows = rows.len() / hidden;
    let mut pairs = dispatch.calls.iter().flat_map(|call| &call.pairs);
    if pairs.any(|pair| usize::from(pair.row) >= n_rows) {
        return Err(ComputeError::Shape);
    }
    Ok(rows)
}

/// A pair as the kernels take it.
pub fn pair(pair: &moex_protocol::Pair) -> Pair {
    Pair { row: u32::from(pair.row), gate: pair.gate.to_f32() }
}

/// Builds an answer, expert by expert.
pub struct Answering<'a> {
    dispatch: &'a Dispatch,
    /// (R, D); empty unless a sum is asked for.
    sum: Vec<f32>,
    parts: Vec<AnswerPart>,
}

impl<'a> Answering<'a> {
    /// No answers yet to `dispatch` of these `rows` (R, D).
    pub fn new(dispatch: &'a Dispatch, rows: &[f32]) -> Self {
        let sum = vec![0.0; if dispatch.form == Form::Sum { rows.len() } else { 0 }];
        Self { dispatch, sum, parts: Vec::new() }
    }

    /// One expert's gated rows `out` (P, D).
    pub fn take(&mut self, expert: ExpertId, pairs: &[Pair], out: &[f32]) {
        let hidden = usize::from(self.dispatch.hidden);
        if self.dispatch.form != Form::Sum {
            return self.parts.push(part(self.dispatch, Some(expert), out));
        }
        for (pair, out) in pairs.iter().zip(out.chunks_exact(hidden)) {
            cpu::add(&mut self.sum[pair.row as usize * hidden..][..hidden], out);
        }
    }

    /// The complete answer.
    pub fn finish(mut self) -> Answer {
        let Dispatch { layer, hidden, dtype, .. } = *self.dispatch;
        if self.dispatch.form == Form::Sum {
            self.parts.push(part(self.dispatch, None, &self.sum));
        }
        Answer { layer, hidden, dtype, parts: self.parts }
    }
}

fn part(dispatch: &Dispatch, expert: Option<ExpertId>, rows: &[f32]) -> AnswerPart {
    let hidden = usize::from(dispatch.hidden);
    let mut payload = Vec::new();
    tensor::encode_rows(dispatch.dtype, rows, hidden, &mut payload);
    AnswerPart { expert, rows: (rows.len() / hidden) as u32, payload: payload.into() }
}
