//! A graph prepared for an engine: its operations joined, its weights packed, its intermediates placed.

use std::{fmt, io, sync::Arc};

use super::{
    Graph, Op, Workspace,
    cpu::{Cpu, Prepared},
    fuse::fuse,
    places::Places,
    weights::{MatrixSource, packed_format},
};
#[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
use super::{MatrixId, Projection};
use crate::{
    ExpertView, WeightFormat,
    simd::{PackedExpertShape, PackedShape, PageSize, Processor, Slab},
};

/// What an engine runs for every step.
pub struct Program {
    pub(crate) graph: Graph,
    pub(super) ops: Vec<Op>,
    pub(super) places: Places,
    pub(super) cpu: Cpu,
    pub(crate) matrices: Vec<Prepared>,
}

impl Program {
    /// For the oracle: in f32, nothing joined, matrices where they lie.
    pub fn exact(graph: Graph) -> Self {
        let ops = graph.ops.clone();
        let matrices = graph.matrices.iter().map(|(source, _)| Prepared::Source(source.clone())).collect();
        Self { places: Places::new(&graph, &ops), cpu: Cpu::Exact, matrices, ops, graph }
    }

    /// For vector instructions: matrices are packed in panels, and float matrices that may be rounded take the format
    /// `weights`, if there is one. `packed` is called after each matrix, whose source is no longer needed then.
    ///
    /// # Errors
    /// If there is no memory for the panels.
    pub fn simd(
        graph: Graph,
        processor: Arc<Processor>,
        weights: Option<WeightFormat>,
        mut packed: impl FnMut(),
    ) -> io::Result<Self> {
        let ops = fuse(&graph);
        let source = |(source, _): &(Arc<_>, _)| Prepared::Source(Arc::clone(source));
        let mut matrices: Vec<Prepared> = graph.matrices.iter().map(source).collect();
        for op in &ops {
            for projection in op.projections() {
                let index = projection.matrix.0 as usize;
                if let Prepared::Source(_) = matrices[index] {
                    matrices[index] = pack(&graph, index, &processor, weights)?;
                    packed();
                }
            }
            if let Op::Mlp { matrices: [gate, up, down], .. } = op {
                let indices = [gate, up, down].map(|matrix| matrix.0 as usize);
                matrices[indices[0]] = pack_mlp(&graph, indices, &processor)?;
                indices[1..].iter().for_each(|index| matrices[*index] = Prepared::Elsewhere);
                packed();
            }
        }
        Ok(Self { places: Places::new(&graph, &ops), cpu: Cpu::Simd(processor), matrices, ops, graph })
    }

    /// The recorded graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The operations that run: the graph's, joined where this engine joins them.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The biases of projections, one after another with zeros where one has none, padded to whole panels of sixteen; none if
    /// none has any. `n_rows` are their outputs together.
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    pub(crate) fn biases(&self, projections: &[Projection], n_rows: usize) -> Option<Vec<f32>> {
        projections.iter().any(|projection| projection.bias.is_some()).then(|| {
            let mut biases = Vec::with_capacity(n_rows.next_multiple_of(16));
            for projection in projections {
                let end = biases.len() + self.graph.width(projection.out);
                biases.extend_from_slice(projection.bias.map_or(&[][..], |bias| self.graph.vector(bias)));
                biases.resize(end, 0.0);
            }
            biases.resize(n_rows.next_multiple_of(16), 0.0);
            biases
        })
    }

    /// Bytes of all weights of the graph in the form that is computed with.
    pub fn weight_bytes(&self) -> usize {
        let tables = self.ops.iter().filter_map(|op| match op {
            // The embedding is read at its source, even if the head is packed from it.
            Op::Embed { table, .. } => match &self.matrices[table.0 as usize] {
                Prepared::Source(_) => None,
                _ => Some(Prepared::Source(self.graph.matrices[table.0 as usize].0.clone()).n_bytes()),
            },
            _ => None,
        });
        self.matrices.iter().map(Prepared::n_bytes).chain(tables).sum()
    }

    /// Bytes of the matrices that rows are multiplied by in some of the operations.
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    pub(crate) fn matrix_bytes(&self, ops: &[Op]) -> usize {
        let of_op = |op: &Op| -> usize {
            let bytes = |matrix: MatrixId| self.matrices[matrix.0 as usize].n_bytes();
            match op {
                Op::Mlp { matrices: [gate, ..], .. } => bytes(*gate),
                op => op.projections().iter().map(|projection| bytes(projection.matrix)).sum(),
            }
        };
        ops.iter().map(of_op).sum()
    }

    /// Memory for steps of up to `n_rows`, `n_wanted` of which want logits.
    pub fn workspace(&self, n_rows: usize, n_wanted: usize) -> Workspace {
        let mut space = Workspace::default();
        for (arena, n) in [n_rows, n_wanted].into_iter().enumerate() {
            space.arenas[arena].reserve_exact(self.places.columns[arena] * n);
        }
        space
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("ops", &self.ops.len()).finish_non_exhaustive()
    }
}

fn pack(
    graph: &Graph,
    index: usize,
    processor: &Processor,
    weights: Option<WeightFormat>,
) -> io::Result<Prepared> {
    let (source, rounding) = &graph.matrices[index];
    let (rows, cols) = source.shape();
    let format = match packed_format(source.format(), *rounding, weights) {
        WeightFormat::F32 if is_bf16(&**source) => WeightFormat::Bf16,
        format => format,
    };
    let shape = PackedShape { format, rows, cols };
    let mut panels = Slab::new(shape.bytes(), PageSize::Huge)?;
    source.read(&mut |view| shape.pack_as(processor.pool(), &view, &mut panels));
    Ok(Prepared::Packed { shape, panels })
}

/// Whether bf16 has all values of an f32 matrix: llama.cpp writes routers in f32, which were published in bf16. The products are
/// the same to the bit, and half the bytes are read for them.
fn is_bf16(source: &dyn MatrixSource) -> bool {
    let mut all = false;
    source.read(&mut |view| {
        all = view.format() == WeightFormat::F32
            && view.bytes().as_chunks().0.iter().all(|[low, next, ..]: &[u8; 4]| [*low, *next] == [0, 0]);
    });
    all
}

fn pack_mlp(graph: &Graph, indices: [usize; 3], processor: &Processor) -> io::Result<Prepared> {
    let [gate, up, down] = indices.map(|index| &graph.matrices[index].0);
    let mut prepared = Err(io::Error::other("nothing was read"));
    gate.read(&mut |gate| {
        up.read(&mut |up| {
            down.read(&mut |down| {
                let expert = ExpertView { gate, up, down, biases: None };
                let shape = PackedExpertShape::of(&expert);
                prepared = Slab::new(shape.bytes(), PageSize::Huge).map(|mut panels| {
                    shape.pack(processor.pool(), &expert, &mut panels);
                    Prepared::Mlp { shape, panels }
                });
            });
        });
    });
    prepared
}
