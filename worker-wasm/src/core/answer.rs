//! Answers a dispatch in f32 from packed blocks, without a session, a slot or a device; the result equals that of any worker
//! with f32 activations, without the products of gate and up. Used by the hub for its own answers, by the simulator's workers and by tests.

use moex_kernels::{ExpertShape, cpu, engine::Pair};
use moex_protocol::{Answer, AnswerPart, Block, Dispatch, ExpertId, tensor};

/// Why a dispatch could not be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ComputeError {
    /// There is no such block.
    #[error("{0} is not in the packed experts")]
    NoSuchBlock(Block),
    /// The dispatch's rows, pairs or width do not fit together, or do not fit the model.
    #[error("the rows do not have the model's shape")]
    Shape,
}

/// The answer to `dispatch`: decodes rows from the wire's number format, computes each expert's gated rows as every
/// worker does, and encodes them again. The experts are of `shape`; `find` returns them.
///
/// # Errors
/// If a block does not exist or the dispatch is not of `shape`.
pub fn answer<'a>(
    shape: &ExpertShape,
    find: impl Fn(Block) -> Option<&'a [u8]>,
    dispatch: &Dispatch,
) -> Result<Answer, ComputeError> {
    let rows = rows_of(shape, dispatch)?; // (R, D)
    let mut answer = Answering::new(dispatch);
    for call in &dispatch.calls {
        let block = Block { layer: dispatch.layer, expert: call.expert };
        let bytes = find(block).ok_or(ComputeError::NoSuchBlock(block))?;
        let view = shape.view(bytes).map_err(|_| ComputeError::Shape)?;
        let pairs: Vec<Pair> = call.pairs.iter().map(pair).collect();
        let mut out = vec![0.0; pairs.len() * shape.hidden]; // (P, D)
        cpu::expert_ffn(&view, &rows, &pairs, &mut out);
        answer.take(call.expert, &out);
    }
    Ok(answer.finish())
}

/// The rows (R, D) of a dispatch that fits `shape`. All its pairs refer to one of them.
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

/// A pair in the kernels' form.
pub fn pair(pair: &moex_protocol::Pair) -> Pair {
    Pair { row: u32::from(pair.row), gate: pair.gate.to_f32() }
}

/// Builds an answer, expert by expert.
pub struct Answering<'a> {
    dispatch: &'a Dispatch,
    parts: Vec<AnswerPart>,
}

impl<'a> Answering<'a> {
    /// An empty answer to `dispatch`.
    pub fn new(dispatch: &'a Dispatch) -> Self {
        Self { dispatch, parts: Vec::with_capacity(dispatch.calls.len()) }
    }

    /// Adds one expert's gated rows `out` (P, D).
    pub fn take(&mut self, expert: ExpertId, out: &[f32]) {
        self.parts.push(part(self.dispatch, expert, out));
    }

    /// The complete answer.
    pub fn finish(self) -> Answer {
        let Dispatch { layer, hidden, dtype, .. } = *self.dispatch;
        Answer { layer, hidden, dtype, parts: self.parts, products: None }
    }
}

/// `rows` (n, D) of one expert, in the dispatch's dtype.
fn part(dispatch: &Dispatch, expert: ExpertId, rows: &[f32]) -> AnswerPart {
    let hidden = usize::from(dispatch.hidden);
    let n_rows = rows.len() / hidden;
    let mut payload = Vec::with_capacity(n_rows * dispatch.dtype.row_bytes(hidden));
    tensor::encode_rows(dispatch.dtype, rows, hidden, &mut payload);
    AnswerPart { expert, rows: n_rows as u32, payload: payload.into() }
}
