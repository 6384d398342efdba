//! What a step needs in between: it grows to the largest step, then allocates no more.

use std::fmt;

use moex_kernels::{
    cpu::{Rope, RopeTable},
    engine::Pair,
    quant::Activations,
    simd::{AttentionScratch, ExpertScratch},
};

use moex_protocol::Routing;

use super::step::{Span, Wanted};

/// The memory of a step's values, kept from one to the next. One serves any number of steps of one model after another.
#[derive(Default)]
pub struct Workspace {
    /// The residual stream (T, D), of the last layer's second half on (W, D).
    pub(super) x: Vec<f32>,
    /// Normalised rows, what attention and the experts get (T, D).
    pub(super) rows: Vec<f32>,
    pub(super) attention: AttentionSpace,
    /// (T, E).
    pub(super) router_logits: Vec<f32>,
    pub(super) routing: Routing,
    /// The MLP's output (T, D).
    pub(super) sum: Vec<f32>,
    pub(super) int8: Activations,
    /// What the expert that every row goes to gave (T, D).
    pub(super) shared: Vec<f32>,
    pub(super) mlp: MlpSpace,
    /// (W, V).
    pub(super) logits: Vec<f32>,
    pub(super) step: Step,
    observer: Option<Box<dyn FnMut(Stage) + Send>>,
}

/// Between a layer's input and its attention's output.
#[derive(Default)]
pub(super) struct AttentionSpace {
    /// (T, H*C).
    pub(super) q: Vec<f32>,
    /// (T, G*C).
    pub(super) k: Vec<f32>,
    /// (T, G*C).
    pub(super) v: Vec<f32>,
    /// (T, H*C).
    pub(super) heads: Vec<f32>,
    /// (T, D).
    pub(super) out: Vec<f32>,
    /// Rows on their way through narrow projections.
    pub(super) narrow: Vec<f32>,
    /// Keys and values of all heads (T, H, own + Cv), before they are told apart.
    pub(super) wide: Vec<f32>,
    pub(super) scratch: AttentionScratch,
}

/// What an MLP on the hub needs in between.
#[derive(Default)]
pub(super) struct MlpSpace {
    pub(super) scratch: ExpertScratch,
    /// Each row once (T).
    pub(super) all_rows: Vec<Pair>,
    /// (T, F).
    pub(super) gate: Vec<f32>,
    /// (T, F).
    pub(super) up: Vec<f32>,
    pub(super) int8: Activations,
}

/// The rows of a step, as the layers see them.
#[derive(Default)]
pub(super) struct Step {
    /// The span and the position of each row (T).
    pub(super) places: Vec<(usize, usize)>,
    /// The rotation of each row, by each of the model's ropes.
    pub(super) ropes: Vec<RopeTable>,
}

/// What a step has just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The embedding.
    Embed,
    /// A layer's first norm, the projections of queries, keys and values, their norms and rotations.
    Projections,
    /// A layer's keys and values written, and its attention.
    Attention,
    /// A layer's output projection.
    Output,
    /// A layer's second norm and its router, or its dense MLP.
    Router,
    /// A layer's experts.
    Experts,
    /// The last norm and the head.
    Head,
}

impl Stage {
    /// All, in the order of a step.
    pub const ALL: [Self; 7] = [
        Self::Embed,
        Self::Projections,
        Self::Attention,
        Self::Output,
        Self::Router,
        Self::Experts,
        Self::Head,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Projections => "projections",
            Self::Attention => "attention",
            Self::Output => "output",
            Self::Router => "router",
            Self::Experts => "experts",
            Self::Head => "head",
        }
    }
}

impl Workspace {
    /// Has `observer` told of every stage when it is done: for those who have a clock.
    pub fn observe(&mut self, observer: impl FnMut(Stage) + Send + 'static) {
        self.observer = Some(Box::new(observer));
    }

    pub(super) fn done(&mut self, stage: Stage) {
        if let Some(observer) = &mut self.observer {
            observer(stage);
        }
    }

    /// Takes up the rows of `spans`.
    pub(super) fn begin(&mut self, spans: &[Span<'_>], ropes: &[Rope]) {
        let Step { places, ropes: tables } = &mut self.step;
        places.clear();
        for (index, span) in spans.iter().enumerate() {
            places.extend((0..span.ids.len()).map(|i| (index, span.start + i)));
        }
        tables.resize_with(ropes.len(), RopeTable::default);
        for (rope, table) in ropes.iter().zip(tables) {
            rope.fill(places.iter().map(|(_, position)| *position as u32), table);
        }
    }

    /// Leaves of x (T, D) the rows whose logits are wanted (W, D).
    pub(super) fn keep_wanted(&mut self, spans: &[Span<'_>], hidden: usize) {
        let (mut start, mut kept) = (0, 0);
        for span in spans {
            let rows = start..start + span.ids.len();
            start = rows.end;
            let rows = match span.wanted {
                Wanted::Nothing => continue,
                Wanted::Last => rows.end.saturating_sub(1)..rows.end,
                Wanted::All => rows,
            };
            self.x.copy_within(rows.start * hidden..rows.end * hidden, kept * hidden);
            kept += rows.len();
        }
        self.x.truncate(kept * hidden);
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace").field("rows", &self.step.places.len()).finish_non_exhaustive()
    }
}

/// `len` zeros or whatever stood there before: to be written whole.
pub(super) fn sized(values: &mut Vec<f32>, len: usize) -> &mut [f32] {
    values.resize(len, 0.0);
    values
}
