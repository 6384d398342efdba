//! The operations of a layer other than products: norms, heads, attention, the router. What they are told is in `structs.rs`.

use super::{
    compile::{Builder, MAX_ROWS, Routed, View},
    one_row::{RowGateUp, choice},
    products::{Pairs, few_rows},
    row_attend::RowHeads,
    row_norm::RowNorm,
    structs::{Heads, Norm, Router, Width},
    tiles::{Extent, InOrder, When},
};
use crate::{
    WeightFormat,
    cpu::{Renormalise, RopePairs},
    engine::gpu::{
        int8::{self, WIDE_TILE},
        shaders::Resource,
        structs::{TILE_PAIRS, Tile},
    },
    graph::{self, Op, Prepared, RowCount, TensorId, VectorId},
    quant::row_stride,
};

const ONE: Extent = Extent::Fixed(1);
/// Threads of `shader/route.wgsl`.
const ROUTE_THREADS: usize = 256;

impl Builder<'_> {
    /// `x += y`, then the norm of `x` to `out` and to the activations that its first reader takes; either may be missing.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn norm(
        &mut self,
        index: usize,
        x: TensorId,
        y: Option<TensorId>,
        normed: Option<(VectorId, f32, TensorId)>,
    ) -> Result<(), String> {
        let columns = self.program.graph.width(x);
        let View::Rows { place: x_place, .. } = self.views[&x] else {
            unreachable!("what is normed lies in rows");
        };
        let mut is_sum_of_one = false;
        let (addends, of_rows, n_addends) = match y.map(|y| self.views[&y]) {
            None => (None, None, 0),
            Some(View::Rows { place, .. }) => (Some(place), None, 1),
            Some(View::Pairs { place, of_rows, n_chosen, is_sum_of_one: is_sum }) => {
                is_sum_of_one = is_sum;
                (Some(place), Some(of_rows), n_chosen)
            }
            Some(View::Ranges { .. }) => unreachable!("attention is multiplied, not added"),
        };
        if y.is_some() {
            self.forget_activations(x);
        }
        let reader = normed.and_then(|(_, _, out)| self.first_reader(index, out));
        let geometry = reader.and_then(WeightFormat::geometry);
        let stride = row_stride(None, columns);
        let result_stride = row_stride(geometry, columns);
        let norm = Norm {
            has_places: u32::from(of_rows.is_some()),
            is_normed: u32::from(normed.is_some()),
            is_rounded: u32::from(geometry.is_some()),
            stride: stride as u32,
            result_stride: result_stride as u32,
            eps: normed.map_or(0.0, |(_, eps, _)| eps),
        };
        let count = self.row_count(x);
        // Bound where nothing is read or written: two bindings that are written are two buffers.
        let unused = [(); 4].map(|()| self.places.take(0));
        let [read, mut out, mut rounded, mut sum] = unused;
        if y.is_some() {
            sum = self.places.take(4 * MAX_ROWS * columns);
            self.views.insert(x, View::Rows { place: sum, start: 0, stride: columns });
        }
        let mut weights = self.places.get(read);
        if let Some((weight, _, id)) = normed {
            weights = self.weights.upload_floats(self.program.graph.vector(weight))?;
            out = self.places.take(4 * MAX_ROWS * stride);
            self.views.insert(id, View::Rows { place: out, start: 0, stride });
            // With the stride of activations, it is what matrices of floats read.
            self.places.share(out);
            self.keep_activations(id, None, out);
            if geometry.is_some() {
                rounded = self.places.take(4 * MAX_ROWS * result_stride);
                self.keep_activations(id, geometry, rounded);
            }
        }
        let buffer = |place| self.places.get(place);
        let buffers = vec![
            (Resource::Weights, weights),
            (Resource::X, buffer(x_place)),
            (Resource::Result, buffer(rounded)),
            (Resource::Y, buffer(addends.unwrap_or(read))),
            (Resource::Places, buffer(of_rows.unwrap_or(read))),
            (Resource::Normed, buffer(out)),
            (Resource::Sum, buffer(sum)),
        ];
        let one_addend = n_addends <= 1 || is_sum_of_one;
        let has_own = one_addend && normed.is_some_and(|(_, _, out)| self.takes_norm(index, out));
        let mut constants = int8::rows(reader.unwrap_or(WeightFormat::F32));
        constants.push(("QUADS", (columns / 4) as f64));
        if has_own {
            // The sum as well: behind the last norm nothing reads it, and the products that write it give logits.
            let held = [&unused[..], &[x_place, addends.unwrap_or(x_place), sum]].concat();
            held[unused.len()..].iter().for_each(|place| self.places.share(*place));
            let (has_addend, buffers) = (y.is_some(), buffers.clone());
            self.row_norm = Some(RowNorm { norm, has_addend, constants: constants.clone(), buffers, held });
        }
        constants.push(("THREADS", self.device.usual_threads() as f64));
        let of_all = (When::Always, n_addends, norm);
        let of_several = (When::Several(count), n_addends, norm);
        let of_one = (When::One(count), 1, Norm { has_places: 0, ..norm });
        let variants = match (has_own, is_sum_of_one) {
            (true, _) => vec![of_several],
            (false, true) => vec![of_several, of_one],
            (false, false) => vec![of_all],
        };
        for (when, n_addends, norm) in variants {
            self.when = when;
            let constants = [&constants[..], &[("N_ADDENDS", n_addends as f64)]].concat();
            let grid = [Extent::Rows(count), ONE, ONE];
            self.push("norm_rows", constants, bytemuck::bytes_of(&norm), buffers.clone(), grid);
        }
        self.when = When::Always;
        if !has_own {
            unused.into_iter().for_each(|place| self.places.release(place));
        }
        if y.is_some() {
            self.places.release(x_place);
        }
        Ok(())
    }

    /// The format of the first matrices of integers that `x` is multiplied by after operation `index`.
    fn first_reader(&self, index: usize, x: TensorId) -> Option<WeightFormat> {
        let program = self.program;
        let formats = |op: &Op| -> Vec<WeightFormat> {
            let packed = |matrix: &Prepared| match matrix {
                Prepared::Packed { shape, .. } => Some(shape.format),
                Prepared::Mlp { shape, .. } => Some(shape.format.gate_up),
                _ => None,
            };
            match op {
                Op::Linear { x: read, .. } | Op::Linears { x: read, .. } if *read == x => {
                    let matrices = op.projections().iter();
                    matrices.filter_map(|p| packed(&program.matrices[p.matrix.0 as usize])).collect()
                }
                Op::Mlp { x: read, matrices: [gate, ..], .. } if *read == x => {
                    packed(&program.matrices[gate.0 as usize]).into_iter().collect()
                }
                Op::Experts { layer, x: read, .. } if *read == x => {
                    self.experts.shape(*layer).map(|shape| shape.format.gate_up).into_iter().collect()
                }
                _ => Vec::new(),
            }
        };
        self.ops[index + 1..].iter().flat_map(formats).find(|format| format.geometry().is_some())
    }

    pub(super) fn heads(
        &mut self,
        (index, slot): (usize, usize),
        q: graph::Heads,
        k: graph::Heads,
        v: TensorId,
    ) -> Result<(), String> {
        let graph = &self.program.graph;
        let columns = q.head_width;
        let rows = |id: TensorId| match self.views[&id] {
            View::Rows { place, start, stride } => (place, start as u32, stride as u32),
            _ => unreachable!("a projection lies in rows"),
        };
        let (q_rows, k_rows, v_rows) = (rows(q.x), rows(k.x), rows(v));
        let n_heads = graph.width(q.x) / columns;
        let n_kv_heads = graph.width(k.x) / columns;
        let weight = |heads: &graph::Heads| match heads.norm {
            Some((weight, _)) => graph.vector(weight).to_vec(),
            None => vec![0.0; columns],
        };
        let weights = self.weights.upload_floats(&[weight(&q), weight(&k)].concat())?;
        let parameters = Heads {
            n_heads: n_heads as u32,
            n_kv_heads: n_kv_heads as u32,
            columns: columns as u32,
            rope: u32::from(u8::try_from(q.rope.0).unwrap_or(u8::MAX)),
            half: graph.ropes[q.rope.0 as usize].half() as u32,
            first: 0,
            is_neighbours: u32::from(q.columns.0 == RopePairs::Neighbours),
            has_q_norm: u32::from(q.norm.is_some()),
            has_k_norm: u32::from(k.norm.is_some()),
            q_eps: q.norm.map_or(0.0, |(_, eps)| eps),
            k_eps: k.norm.map_or(0.0, |(_, eps)| eps),
            q_stride: q_rows.2,
            k_stride: k_rows.2,
            v_stride: v_rows.2,
            k_start: k_rows.1,
            v_start: v_rows.1,
        };
        let out = self.places.take(4 * MAX_ROWS * n_heads * columns);
        let [q_in, k_in, v_in, result] =
            [q_rows.0, k_rows.0, v_rows.0, out].map(|place| self.places.get(place));
        let buffers = vec![
            (Resource::Weights, weights),
            (Resource::Q, q_in),
            (Resource::Result, result),
            (Resource::K, k_in),
            (Resource::V, v_in),
        ];
        let n = (n_heads + 2 * n_kv_heads) as u32;
        let grid = [Extent::Fixed(n), Extent::Rows(RowCount::Step), ONE];
        let next = self.ops_after(index).next();
        if matches!(next, Some(Op::Attend { slot: of, q: of_heads, .. }) if (*of, *of_heads) == (slot, q.x)) {
            let held = [q_rows.0, k_rows.0, v_rows.0];
            held.iter().for_each(|place| self.places.share(*place));
            self.row_heads = Some(RowHeads { parameters, buffers: buffers.clone(), held });
            self.when = When::ButShallowRow;
        }
        self.push_paged(("heads_to_cache", Vec::new()), bytemuck::bytes_of(&parameters), buffers, grid, slot);
        self.when = When::Always;
        // From here on queries are what the kernel wrote.
        self.places.release(q_rows.0);
        self.views.insert(q.x, View::Rows { place: out, start: 0, stride: n_heads * columns });
        Ok(())
    }

    /// Chooses experts by `logits`, and computes those of the layer that follows operation `index`, if they are here.
    pub(super) fn route(
        &mut self,
        index: usize,
        logits: TensorId,
        n_chosen: usize,
        renormalise: Renormalise,
    ) -> Result<(), String> {
        let following = self.ops[index..].iter().find_map(|op| match *op {
            Op::Experts { layer, x, out } => Some((layer, x, out)),
            _ => None,
        });
        let Some((layer, x, out)) = following else { return Ok(()) };
        let shape = self.experts.shape(layer).ok_or_else(|| format!("layer {layer} has no experts"))?;
        let n_experts = self.program.graph.width(logits);
        let is_resident = self.routers.len() < self.n_resident;
        let count = self.row_count(x);
        let pairs_of = |size| Extent::Pairs {
            rows: count,
            n_experts: n_experts as u32,
            n_chosen: n_chosen as u32,
            size,
        };
        let (few, many) = (pairs_of(TILE_PAIRS as u32), pairs_of(WIDE_TILE));
        let few_rows = few_rows(shape.format);
        let max_tiles = few.most(few_rows as usize).max(many.most(MAX_ROWS));
        let router = Router {
            n_experts: n_experts as u32,
            n_chosen: n_chosen as u32,
            layer: self.routers.len() as u32,
            of_wanted: u32::from(count == RowCount::WantedLogits),
            renormalise: u32::from(renormalise == Renormalise::Yes),
            block: (shape.bytes() / 16) as u32,
            x_stride: row_stride(shape.format.gate_up.geometry(), shape.hidden) as u32,
            max_tiles,
        };
        self.routers.push(Routed { layer, n_chosen, rows: count, is_resident });
        let tiles = self.places.take(max_tiles as usize * size_of::<Tile>());
        let of_rows = self.places.take(4 * MAX_ROWS * n_chosen);
        let list = self.places.take(8 * MAX_ROWS * n_chosen);
        let View::Rows { place: logits, .. } = self.views[&logits] else {
            unreachable!("logits lie in rows");
        };
        let [tiles_buffer, of_rows_buffer, list_buffer, logits] =
            [tiles, of_rows, list, logits].map(|place| self.places.get(place));
        let written =
            vec![(Resource::Result, tiles_buffer.clone()), (Resource::Places, of_rows_buffer.clone())];
        let with_logits = [written.clone(), vec![(Resource::Logits, logits.clone())]].concat();
        let parameters = bytemuck::bytes_of(&router);
        let chosen = (router, [logits, of_rows_buffer], self.n_logit_parts);
        let gate_up = RowGateUp::of(&shape, chosen, self.device).filter(|_| is_resident);
        self.when = gate_up.as_ref().map_or(When::Always, |_| When::Several(count));
        let constants = choice(n_experts, self.n_logit_parts, ROUTE_THREADS);
        self.push("route", constants, parameters, with_logits, [Extent::Rows(count), ONE, ONE]);
        self.when = When::Always;
        if !is_resident {
            self.places.release(tiles);
            self.places.release(of_rows);
            self.places.release(list);
            self.pause(x, out);
            return Ok(());
        }
        let constants = vec![("FEW_ROWS", f64::from(few_rows)), ("WIDE_TILE", f64::from(WIDE_TILE))];
        let grouped = [written, vec![(Resource::Pairs, list_buffer.clone())]].concat();
        self.when = When::Several(count);
        self.push("group_pairs", constants, parameters, grouped, [ONE; 3]);
        self.when = When::Always;

        let slab = self.weights.upload_experts(self.experts, layer, (n_experts, shape.bytes()))?;
        let activations = self.activations(x, shape.format.gate_up, shape.hidden);
        let n_pairs = MAX_ROWS * n_chosen;
        let place = self.places.take(4 * n_pairs * shape.hidden);
        let pairs = Pairs {
            most: n_pairs,
            n_chosen,
            rows: count,
            in_order: InOrder::pairs(count, n_chosen),
            few: (few, tiles_buffer.clone()),
            many: (many, tiles_buffer),
            list: Some(list_buffer),
            gate_up,
        };
        let is_sum_of_one = self.expert_steps(shape, slab, &pairs, [activations, place]);
        self.places.release(tiles);
        self.places.release(list);
        self.views.insert(out, View::Pairs { place, of_rows, n_chosen, is_sum_of_one });
        Ok(())
    }

    pub(super) fn keep_wanted(&mut self, x: TensorId, out: TensorId) {
        let View::Rows { place: from, .. } = self.views[&x] else {
            unreachable!("the rows of a step lie in rows");
        };
        let columns = self.program.graph.width(x) as u32;
        let to = self.rows_of(out);
        let [from, to] = [from, to].map(|place| self.places.get(place));
        let buffers = vec![(Resource::X, from), (Resource::Result, to)];
        let grid = [Extent::Fixed(columns.div_ceil(256)), Extent::Rows(RowCount::WantedLogits), ONE];
        self.push("keep_rows", Vec::new(), bytemuck::bytes_of(&Width { columns }), buffers, grid);
    }
}
