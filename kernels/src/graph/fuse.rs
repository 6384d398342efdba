//! Joins operations that one kernel does better than several: gate, up, the activation and down; projections of the
//! same rows; norms and rotations of heads, and the cache write after them; a sum and its norm.

use super::{Activation, Graph, Heads, Op, Projection, TensorId};

/// The graph's operations, joined where they can be.
pub(super) fn fuse(graph: &Graph) -> Vec<Op> {
    sums_and_norms(heads(projections(mlps(graph))))
}

/// gate, up, SiLU, down -> [`Op::Mlp`].
fn mlps(graph: &Graph) -> Vec<Op> {
    let mut fused = Vec::with_capacity(graph.ops.len());
    let mut rest = graph.ops.as_slice();
    while let Some(op) = rest.first() {
        let (op, taken) = match mlp(graph, rest) {
            Some(mlp) => (mlp, 4),
            None => (op.clone(), 1),
        };
        fused.push(op);
        rest = &rest[taken..];
    }
    fused
}

fn mlp(graph: &Graph, ops: &[Op]) -> Option<Op> {
    let [
        Op::Linear { x, projection: gate },
        Op::Linear { x: of_up, projection: up },
        Op::Activate { gate: activated, up: multiplied, activation: Activation::Silu },
        Op::Linear { x: inner, projection: down },
        ..,
    ] = ops
    else {
        return None;
    };
    let are_linked = x == of_up && *activated == gate.out && *multiplied == up.out && *inner == gate.out;
    let have_no_bias = [gate, up, down].iter().all(|projection| projection.bias.is_none());
    let format = |projection: &Projection| graph.matrices[projection.matrix.0 as usize].0.format();
    let fits = are_linked && have_no_bias && format(gate) == format(up);
    fits.then(|| Op::Mlp { x: *x, matrices: [gate, up, down].map(|p| p.matrix), out: down.out })
}

/// Neighbours with the same rows -> [`Op::Linears`].
fn projections(ops: Vec<Op>) -> Vec<Op> {
    let mut fused: Vec<Op> = Vec::with_capacity(ops.len());
    for op in ops {
        match (fused.last_mut(), op) {
            (Some(Op::Linears { x, projections }), Op::Linear { x: same, projection }) if *x == same => {
                projections.push(projection);
            }
            (Some(last), Op::Linear { x, projection }) => match last {
                Op::Linear { x: same, projection: first } if *same == x => {
                    *last = Op::Linears { x, projections: vec![*first, projection] };
                }
                _ => fused.push(Op::Linear { x, projection }),
            },
            (_, op) => fused.push(op),
        }
    }
    fused
}

/// Norms and rotations of queries and of keys, and the cache write after them -> [`Op::HeadsToCache`].
fn heads(ops: Vec<Op>) -> Vec<Op> {
    let mut fused: Vec<Op> = Vec::with_capacity(ops.len());
    for op in ops {
        let joined = match op {
            Op::CacheWrite { slot, k, v } => heads_before(&fused, k)
                .and_then(|(k, rest)| Some((k, queries_before(rest)?)))
                .map(|(k, (q, rest))| (Op::HeadsToCache { slot, q, k, v }, rest.len())),
            _ => None,
        };
        match joined {
            Some((joined, n_before)) => {
                fused.truncate(n_before);
                fused.push(joined);
            }
            None => fused.push(op),
        }
    }
    fused
}

/// The rotation of `x` at the end of `ops` and the norm before it, if there is one; and the operations before both.
fn heads_before(ops: &[Op], x: TensorId) -> Option<(Heads, &[Op])> {
    let (Op::Rope { x: rotated, head_width, rope, columns }, before) = ops.split_last()? else { return None };
    if *rotated != x {
        return None;
    }
    let (norm, before) = match before {
        [before @ .., Op::NormInPlace { x: normed, weight, eps }] if *normed == x => {
            (Some((*weight, *eps)), before)
        }
        _ => (None, before),
    };
    Some((Heads { x, norm, head_width: *head_width, rope: *rope, columns: *columns }, before))
}

/// [`heads_before`] for the tensor that was rotated last.
fn queries_before(ops: &[Op]) -> Option<(Heads, &[Op])> {
    match ops.last()? {
        Op::Rope { x, .. } => heads_before(ops, *x),
        _ => None,
    }
}

/// A sum and its norm, with nothing but a stage's end between -> [`Op::AddNorm`].
fn sums_and_norms(ops: Vec<Op>) -> Vec<Op> {
    let mut fused: Vec<Op> = Vec::with_capacity(ops.len());
    for op in ops {
        let Op::Norm { x, weight, eps, out } = op else {
            fused.push(op);
            continue;
        };
        let before = fused.iter().rposition(|op| !matches!(op, Op::Done(_)));
        match before.map(|index| (index, &fused[index])) {
            Some((index, Op::Add { x: sum, y })) if *sum == x => {
                let y = *y;
                fused.remove(index);
                fused.push(Op::AddNorm { x, y, weight, eps, out });
            }
            _ => fused.push(Op::Norm { x, weight, eps, out }),
        }
    }
    fused
}
