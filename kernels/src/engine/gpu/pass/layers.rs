//! Divides a pass among GPUs by layers. Between two layers nothing lives but the rows (T, D): they are read from one GPU and written
//! to the next.

use crate::graph::{Op, Stage, TensorId};

/// The operations of neighbouring layers, for one GPU.
#[derive(Debug, PartialEq)]
pub(super) struct PartOps {
    pub(super) ops: Vec<Op>,
    /// The rows (T, D) that come from the part before; none in the first, which looks up an embedding.
    pub(super) from: Option<TensorId>,
    /// The rows (T, D) that go to the part behind; none in the last, which ends with logits.
    pub(super) to: Option<TensorId>,
}

/// The operations of each layer. Those before the first layer are the first's, those behind the last are the last's.
pub(super) fn layers(ops: &[Op]) -> Vec<&[Op]> {
    let ends = (1..ops.len()).filter(|index| {
        let is_end = matches!(ops[index - 1], Op::Done(Stage::Experts));
        is_end && matches!(ops[*index], Op::Norm { .. } | Op::AddNorm { .. })
    });
    let mut ends: Vec<usize> = ends.collect();
    // Behind the last layer comes the norm of the head.
    ends.pop();
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends.iter().copied().chain([ops.len()])).map(|(start, end)| &ops[start..end]).collect()
}

/// Parts of so many layers each, which are all of `ops`.
pub(super) fn cut(ops: &[Op], n_layers: &[usize]) -> Vec<PartOps> {
    let mut rest = layers(ops).into_iter();
    let mut parts: Vec<PartOps> = Vec::with_capacity(n_layers.len());
    for n in n_layers {
        let mut ops = rest.by_ref().take(*n).flatten().cloned();
        let first = ops.next();
        let Some(before) = parts.last_mut() else {
            parts.push(PartOps { ops: first.into_iter().chain(ops).collect(), from: None, to: None });
            continue;
        };
        // The sum is the end of one part, and its norm the beginning of the next.
        let (x, first) = match first {
            Some(Op::AddNorm { x, y, weight, eps, out }) => {
                before.ops.push(Op::Add { x, y });
                (x, Op::Norm { x, weight, eps, out })
            }
            Some(Op::Norm { x, weight, eps, out }) => (x, Op::Norm { x, weight, eps, out }),
            _ => unreachable!("a layer begins with a norm"),
        };
        before.to = Some(x);
        parts.push(PartOps { ops: std::iter::once(first).chain(ops).collect(), from: Some(x), to: None });
    }
    parts
}
