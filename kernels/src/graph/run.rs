//! Runs a program over the rows of a step, operation after operation; pauses where experts may be computed elsewhere.

use super::{
    Activation, Columns, Heads, KvPool, Op, Program, Projection, RouterKind, RowCount, Span, TensorId,
    WantedLogits, Workspace, cpu::Sequences, workspace::Rows,
};
use crate::cpu::{self, DeltaNetWeights, Groups, OutOfVocabulary, RopeTable};

/// Where a step has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// It waits for the experts' sum.
    Experts(ExpertsWanted),
    /// It is done: the logits are there.
    Done,
}

/// The experts that a step waits for: see [`Program::experts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsWanted {
    /// The model's layer.
    pub layer: usize,
    x: TensorId,
    out: TensorId,
}

/// A step's request to the experts of a layer, and the destination of their sum.
pub struct ExpertsCall<'a> {
    /// (T, D).
    pub rows: &'a [f32],
    /// K.
    pub n_chosen: usize,
    /// (T, K), the expert with the largest gate first.
    pub experts: &'a [u16],
    /// (T, K).
    pub gates: &'a [f32],
    /// (T, D): to be filled with the chosen experts' gated sum.
    pub sum: &'a mut [f32],
}

impl Program {
    /// Starts a step with these rows.
    pub fn begin(&self, spans: &[Span<'_>], space: &mut Workspace) {
        let Rows { ids, places, wanted, ropes } = &mut space.rows;
        ids.clear();
        places.clear();
        wanted.clear();
        for (sequence, span) in spans.iter().enumerate() {
            let first = places.len();
            ids.extend_from_slice(span.ids);
            places.extend((0..span.ids.len()).map(|i| (sequence, span.start + i)));
            match span.wanted {
                WantedLogits::Nothing => {}
                WantedLogits::Last => {
                    wanted.extend(places.len().checked_sub(1).filter(|last| *last >= first));
                }
                WantedLogits::All => wanted.extend(first..places.len()),
            }
        }
        ropes.resize_with(self.graph.ropes.len(), RopeTable::default);
        for (rope, table) in self.graph.ropes.iter().zip(ropes) {
            rope.fill(places.iter().map(|(_, position)| *position as u32), table);
        }
        for (arena, rows) in [RowCount::Step, RowCount::WantedLogits].into_iter().enumerate() {
            let len = self.places.columns[arena] * space.rows.count(rows);
            if space.arenas[arena].len() < len {
                space.arenas[arena].resize(len, 0.0);
            }
        }
        space.next = 0;
    }

    /// Runs until the step pauses. Keys, values and states of its rows enter `kv`.
    ///
    /// # Errors
    /// A token that the embedding has no row for; the step is then void.
    ///
    /// # Panics
    /// If `spans` are not those it began with, or one has no room reserved in `kv`.
    pub fn advance(
        &self,
        spans: &[Span<'_>],
        kv: &mut KvPool,
        space: &mut Workspace,
    ) -> Result<Pause, OutOfVocabulary> {
        loop {
            if let Some(pause) = self.run_next(spans, kv, space)? {
                return Ok(pause);
            }
        }
    }

    /// Runs the next operation alone, for callers that look at intermediates; returns where the step stops, if it does.
    ///
    /// # Errors
    /// As [`Self::advance`].
    ///
    /// # Panics
    /// As [`Self::advance`].
    pub fn run_next(
        &self,
        spans: &[Span<'_>],
        kv: &mut KvPool,
        space: &mut Workspace,
    ) -> Result<Option<Pause>, OutOfVocabulary> {
        let Some(op) = self.ops.get(space.next) else { return Ok(Some(Pause::Done)) };
        space.next += 1;
        match op {
            Op::Experts { layer, x, out } => {
                return Ok(Some(Pause::Experts(ExpertsWanted { layer: *layer, x: *x, out: *out })));
            }
            Op::KeepWanted { .. } if space.rows.wanted.is_empty() => space.next = self.ops.len(),
            op => self.run(op, spans, kv, space)?,
        }
        Ok(None)
    }

    /// The request that the step waits for.
    pub fn experts<'w>(&self, space: &'w mut Workspace, wanted: ExpertsWanted) -> ExpertsCall<'w> {
        let routing = &space.routing;
        let [rows, sum] = parts(self, &mut space.arenas, &space.rows, [wanted.x, wanted.out]);
        ExpertsCall {
            rows,
            n_chosen: routing.n_chosen,
            experts: &routing.experts,
            gates: &routing.gates,
            sum,
        }
    }

    /// The logits (W, V) of a finished step; empty if it wanted none.
    pub fn logits<'w>(&self, space: &'w mut Workspace) -> &'w mut [f32] {
        match self.graph.logits {
            Some(logits) => self.tensor(logits, space),
            None => &mut [],
        }
    }

    /// A tensor's current values; they are valid during its lifetime.
    pub fn tensor<'w>(&self, id: TensorId, space: &'w mut Workspace) -> &'w mut [f32] {
        let [values] = parts(self, &mut space.arenas, &space.rows, [id]);
        values
    }

    fn run(
        &self,
        op: &Op,
        spans: &[Span<'_>],
        kv: &mut KvPool,
        space: &mut Workspace,
    ) -> Result<(), OutOfVocabulary> {
        if let Op::Done(stage) = op {
            space.done(*stage);
            return Ok(());
        }
        let (graph, engine) = (&self.graph, &self.cpu);
        let Workspace { arenas, rows, routing, scratch, .. } = space;
        let sequences = Sequences { places: &rows.places, spans };
        match *op {
            Op::Embed { table, out } => {
                let [out] = parts(self, arenas, rows, [out]);
                cpu::embed(&graph.matrices[table.0 as usize].0.view(), &rows.ids, out)?;
            }
            Op::Scale { x, by } => {
                let [x] = parts(self, arenas, rows, [x]);
                x.iter_mut().for_each(|x| *x *= by);
            }
            Op::Norm { x, weight, eps, out } => {
                let (width, weight) = (graph.width(x), graph.vector(weight));
                let [x, out] = parts(self, arenas, rows, [x, out]);
                engine
                    .each_row(out, width, |t, out| cpu::rms_norm(&x[t * width..][..width], weight, eps, out));
            }
            Op::NormInPlace { x, weight, eps } => {
                let (width, weight) = (graph.width(x), graph.vector(weight));
                let [x] = parts(self, arenas, rows, [x]);
                engine.each_row(x, width, |_, row| cpu::rms_norm_in_place(row, weight, eps));
            }
            Op::AddNorm { x, y, weight, eps, out } => {
                let (width, weight) = (graph.width(x), graph.vector(weight));
                let [x, y, out] = parts(self, arenas, rows, [x, y, out]);
                engine.each_two_rows((x, width), (out, width), |t, x, out| {
                    cpu::add(x, &y[t * width..][..width]);
                    cpu::rms_norm(x, weight, eps, out);
                });
            }
            Op::Linear { x, projection } => {
                let [x, out] = parts(self, arenas, rows, [x, projection.out]);
                engine.linears(graph, &self.matrices, [projection], x, scratch, [out]);
            }
            Op::Linears { x, ref projections } => match **projections {
                [a, b, c] => {
                    let [x, out @ ..] = parts(self, arenas, rows, [x, a.out, b.out, c.out]);
                    engine.linears(graph, &self.matrices, [a, b, c], x, scratch, out);
                }
                [a, b] => {
                    let [x, out @ ..] = parts(self, arenas, rows, [x, a.out, b.out]);
                    engine.linears(graph, &self.matrices, [a, b], x, scratch, out);
                }
                _ => projections.iter().for_each(|projection: &Projection| {
                    let [x, out] = parts(self, arenas, rows, [x, projection.out]);
                    engine.linears(graph, &self.matrices, [*projection], x, scratch, [out]);
                }),
            },
            Op::Clip { x, limit } => {
                let [x] = parts(self, arenas, rows, [x]);
                x.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
            }
            Op::Rope { x, head_width, rope, columns } => {
                let (width, table) = (graph.width(x), &rows.ropes[rope.0 as usize]);
                let [x] = parts(self, arenas, rows, [x]);
                engine.each_row(x, width, |t, row| cpu::rope_columns(row, head_width, columns, table, t));
            }
            Op::CacheWrite { slot, k, v } => {
                let width = graph.width(k);
                let [k, v] = parts(self, arenas, rows, [k, v]);
                cache_write(kv, slot, &sequences, (k, v), width);
            }
            Op::HeadsToCache { slot, q: queries, k: keys, v } => {
                let [q_width, k_width] = [queries.x, keys.x].map(|id| graph.width(id));
                let [q, k, v] = parts(self, arenas, rows, [queries.x, keys.x, v]);
                let make_ready = |heads: &Heads, t: usize, row: &mut [f32]| {
                    if let Some((weight, eps)) = heads.norm {
                        cpu::rms_norm_in_place(row, graph.vector(weight), eps);
                    }
                    let table = &rows.ropes[heads.rope.0 as usize];
                    cpu::rope_columns(row, heads.head_width, heads.columns, table, t);
                };
                engine.each_two_rows((q, q_width), (k, k_width), |t, q, k| {
                    make_ready(&queries, t, q);
                    make_ready(&keys, t, k);
                });
                cache_write(kv, slot, &sequences, (k, v), k_width);
            }
            Op::Attend { slot, q, ref attention, out } => {
                let sinks = attention.sinks.map_or(&[][..], |sinks| graph.vector(sinks));
                let [q, out] = parts(self, arenas, rows, [q, out]);
                engine.attend(attention, sinks, (&*kv, slot), &sequences, q, scratch, out);
            }
            Op::DeltaNet { state, qkvz, ba, ref net, out } => {
                let weights = DeltaNetWeights {
                    conv: graph.vector(net.conv),
                    a_log: graph.vector(net.a_log),
                    dt_bias: graph.vector(net.dt_bias),
                    norm: graph.vector(net.norm),
                    rms_eps: net.rms_eps,
                };
                let widths = [qkvz, ba, out].map(|id| graph.width(id));
                let [qkvz, ba, out] = parts(self, arenas, rows, [qkvz, ba, out]);
                let inputs = qkvz.chunks_exact(widths[0]).zip(ba.chunks_exact(widths[1]));
                let of_row = inputs.zip(out.chunks_exact_mut(widths[2]));
                // In order: a row starts from the state that the row before it left.
                for (&(sequence, position), ((qkvz, ba), out)) in rows.places.iter().zip(of_row) {
                    let state = kv.state(state, spans[sequence].table, position);
                    cpu::delta_net_row(&net.shape, &weights, qkvz, ba, state, out);
                }
            }
            Op::CopyColumns { x, columns, out } => {
                let widths = (graph.width(x), graph.width(out));
                let [x, out] = parts(self, arenas, rows, [x, out]);
                for (x, out) in x.chunks_exact(widths.0).zip(out.chunks_exact_mut(widths.1)) {
                    let Columns { n, width, from, to } = columns;
                    for group in 0..n {
                        out[to.0 + group * to.1..][..width]
                            .copy_from_slice(&x[from.0 + group * from.1..][..width]);
                    }
                }
            }
            Op::Zero { out } => {
                let [out] = parts(self, arenas, rows, [out]);
                out.fill(0.0);
            }
            Op::Activate { gate, up, activation } => {
                let width = graph.width(gate);
                let [gate, up] = parts(self, arenas, rows, [gate, up]);
                engine.each_row(gate, width, |t, gate| {
                    let up = &up[t * width..][..width];
                    match activation {
                        Activation::Silu => cpu::silu_mul(gate, up),
                        Activation::GeluTanh => cpu::gelu_mul(gate, up),
                    }
                });
            }
            Op::Mlp { x, matrices: [gate, ..], out } => {
                let [x, out] = parts(self, arenas, rows, [x, out]);
                engine.mlp(&self.matrices, gate, x, scratch, out);
            }
            Op::SigmoidMul { x, gates } => {
                let (width, gates_width) = (graph.width(x), graph.width(gates));
                let [x, gates] = parts(self, arenas, rows, [x, gates]);
                engine.each_row(x, width, |t, row| match &gates[t * gates_width..][..gates_width] {
                    [gate] => cpu::scale_by_sigmoid(row, *gate),
                    gates => cpu::sigmoid_mul(row, gates),
                });
            }
            Op::Route { logits, n_chosen: k, router, renormalise, gate_scale } => {
                let n_experts = graph.width(logits);
                let [logits] = parts(self, arenas, rows, [logits]);
                let n_rows = logits.len() / n_experts;
                routing.n_chosen = k;
                routing.experts.resize(n_rows * k, 0);
                routing.gates.resize(n_rows * k, 0.0);
                let chosen = (&mut routing.experts[..], &mut routing.gates[..]);
                match router {
                    RouterKind::Softmax => {
                        engine.route([n_experts, k], logits, chosen, |logits, experts, gates| {
                            cpu::route(logits, n_experts, k, renormalise, experts, gates);
                        });
                    }
                    RouterKind::SigmoidInGroups { correction, n_groups, n_chosen_groups } => {
                        let groups =
                            Groups { correction: graph.vector(correction), n_groups, n_chosen_groups };
                        let gates_of = (renormalise, gate_scale);
                        engine.route([n_experts, k], logits, chosen, |logits, experts, gates| {
                            cpu::route_in_groups(logits, &groups, k, gates_of, experts, gates);
                        });
                    }
                }
            }
            Op::Add { x, y } => {
                let width = graph.width(x);
                let [x, y] = parts(self, arenas, rows, [x, y]);
                engine.each_row(x, width, |t, x| cpu::add(x, &y[t * width..][..width]));
            }
            Op::KeepWanted { x, out } => {
                let width = graph.width(x);
                let [step, wanted] = arenas;
                let x = &step[self.places.range(graph, x, rows.count(RowCount::Step))];
                let out = &mut wanted[self.places.range(graph, out, rows.count(RowCount::WantedLogits))];
                for (out, row) in out.chunks_exact_mut(width).zip(&rows.wanted) {
                    out.copy_from_slice(&x[row * width..][..width]);
                }
            }
            Op::SoftCap { x, cap } => {
                let [x] = parts(self, arenas, rows, [x]);
                x.iter_mut().for_each(|x| *x = cpu::soft_cap(*x, cap));
            }
            Op::Experts { .. } | Op::Done(_) => {}
        }
        Ok(())
    }
}

/// Writes keys and values (T, `width`) of a step's rows into the cache.
fn cache_write(
    kv: &mut KvPool,
    slot: usize,
    sequences: &Sequences<'_>,
    (k, v): (&[f32], &[f32]),
    width: usize,
) {
    let cached = k.chunks_exact(width).zip(v.chunks_exact(width));
    for (&(sequence, position), (k, v)) in sequences.places.iter().zip(cached) {
        kv.write(slot, sequences.spans[sequence].table, position, k, v);
    }
}

/// Slices of tensors with the same rows.
fn parts<'w, const N: usize>(
    program: &Program,
    arenas: &'w mut [Vec<f32>; 2],
    rows: &Rows,
    ids: [TensorId; N],
) -> [&'w mut [f32]; N] {
    let of = program.graph.tensor(ids[0]).rows;
    let ranges = ids.map(|id| program.places.range(&program.graph, id, rows.count(of)));
    arenas[of as usize].get_disjoint_mut(ranges).expect("tensors that live together lie apart")
}
