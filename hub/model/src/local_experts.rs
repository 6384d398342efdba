//! Computes experts on this machine: as the oracle, as the last replica, and when there is no worker.
//!
//! Experts come from the checkpoint's own weights or from packed blocks ([`ExpertSource`]), and are computed in f32 by
//! the naive kernels or in int8 from panels. When they replace workers, values are rounded as on the wire, so that an
//! answer has the bytes of a worker's.

mod calls;
mod panels;
mod source;

pub use panels::{ExpertPanels, PanelSpace};
pub use source::{Blocks, ExpertSource, MemoryBlocks};

use std::sync::Arc;

use moex_kernels::{
    cpu,
    simd::{Processor, round_to_f16},
};
use moex_protocol::{Dtype, tensor};

use self::{calls::SortedCalls, source::Resident};
use super::{
    experts::{Experts, ExpertsError, LayerRequest, Ticket},
    transformer::Model,
};

/// Columns of a row's sum that a thread takes.
const SUMMED_AT_ONCE: usize = 256;

/// Computes experts locally, and sums their results in f32, in ascending expert order.
pub struct LocalExperts {
    arithmetic: Arithmetic,
    /// Wire format to which rows, gates and answers are rounded; none for the oracle.
    wire: Option<Dtype>,
    calls: SortedCalls,
    /// The rows as the wire carries them (T, D).
    rows: Vec<f32>,
    /// (P, D).
    answers: Vec<f32>,
    bytes: Vec<u8>,
}

enum Arithmetic {
    /// In f32, from the weights as stored.
    Exact(Box<dyn ExpertSource>),
    /// In int8, from panels.
    Panels { panels: Arc<ExpertPanels>, space: Box<PanelSpace> },
}

impl LocalExperts {
    /// Exact f32 from the checkpoint's weights: the oracle.
    pub fn of_checkpoint(model: Arc<Model>) -> Self {
        Self::new(Arithmetic::Exact(Box::new(Resident(model))), None)
    }

    /// The same results as workers with f32 activations, from the blocks that they hold.
    pub fn exact(source: impl ExpertSource + 'static, wire: Dtype) -> Self {
        Self::new(Arithmetic::Exact(Box::new(source)), Some(wire))
    }

    /// The same results as workers with int8 activations.
    pub fn from_panels(panels: Arc<ExpertPanels>, wire: Dtype) -> Self {
        let space = Box::new(PanelSpace::new(wire == Dtype::F16));
        Self::new(Arithmetic::Panels { panels, space }, Some(wire))
    }

    fn new(arithmetic: Arithmetic, wire: Option<Dtype>) -> Self {
        let (rows, answers, bytes) = (Vec::new(), Vec::new(), Vec::new());
        Self { arithmetic, wire, calls: SortedCalls::default(), rows, answers, bytes }
    }
}

impl Experts for LocalExperts {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        let LayerRequest { layer, rows, routing } = asked;
        assert_eq!(rows.len(), sum.len(), "a sum for each row");
        let Self { arithmetic, wire, calls, rows: carried, answers, bytes } = self;
        calls.sort(routing, wire.is_some());
        let hidden = rows.len() / calls.n_rows().max(1);
        let processor = match arithmetic {
            Arithmetic::Exact(_) => None,
            Arithmetic::Panels { panels, .. } => Some(panels.processor().clone()),
        };
        let mut round = |values: &mut [f32]| {
            if let Some(wire) = *wire {
                through_wire(processor.as_deref(), wire, values, hidden, bytes);
            }
        };
        carried.resize(rows.len(), 0.0);
        match &processor {
            Some(processor) => processor
                .each_row(carried, hidden, |t, row| row.copy_from_slice(&rows[t * hidden..][..hidden])),
            None => carried.copy_from_slice(rows),
        }
        round(carried);
        answers.resize(calls.pairs().len() * hidden, 0.0);
        let computed = match arithmetic {
            Arithmetic::Exact(source) => compute_exactly(&**source, layer, calls, carried, answers),
            Arithmetic::Panels { panels, space } => {
                panels.compute(layer, calls.ends(), calls.pairs(), carried, space, answers)
            }
        };
        computed.map_err(|(expert, reason)| ExpertsError::Block { layer: layer as u16, expert, reason })?;
        // Panels' results of f16 were rounded where they were computed.
        if processor.is_none() || *wire != Some(Dtype::F16) {
            round(answers);
        }
        // A row in parts, so that threads share a single one.
        let width = if hidden.is_multiple_of(SUMMED_AT_ONCE) { SUMMED_AT_ONCE } else { hidden };
        let add = |part: usize, sum: &mut [f32]| {
            let (t, first) = (part * width / hidden, part * width % hidden);
            sum.fill(0.0);
            for p in calls.of_row(t) {
                cpu::add(sum, &answers[*p as usize * hidden + first..][..width]);
            }
        };
        match &processor {
            Some(processor) => processor.each_row_reading(sum, width, width * routing.k, add),
            None => sum.chunks_exact_mut(width.max(1)).enumerate().for_each(|(part, sum)| add(part, sum)),
        }
        Ok(None)
    }
}

/// Writes the results to `answers` (P, D); fails with the expert that cannot be read and the reason.
fn compute_exactly(
    source: &dyn ExpertSource,
    layer: usize,
    calls: &SortedCalls,
    rows: &[f32],
    answers: &mut [f32],
) -> Result<(), (u16, String)> {
    let hidden = answers.len() / calls.pairs().len().max(1);
    let mut rest = answers;
    for (expert, pairs) in calls.iter() {
        let part;
        (part, rest) = rest.split_at_mut(pairs.len() * hidden);
        let mut compute = |view: &moex_kernels::ExpertView<'_>| cpu::expert_ffn(view, rows, pairs, part);
        source.read(layer, usize::from(expert), &mut compute).map_err(|reason| (expert, reason))?;
    }
    Ok(())
}

/// `rows` (N, D) as the receiver decodes them from the wire.
fn through_wire(
    processor: Option<&Processor>,
    wire: Dtype,
    rows: &mut [f32],
    hidden: usize,
    bytes: &mut Vec<u8>,
) {
    if let (Some(processor), Dtype::F16) = (processor, wire) {
        return processor.each_row(rows, hidden, |_, row| round_to_f16(processor.simd(), row));
    }
    bytes.clear();
    tensor::encode_rows(wire, rows, hidden, bytes);
    tensor::decode_rows_into(wire, bytes, hidden, rows).expect("what was just encoded is whole rows");
}
