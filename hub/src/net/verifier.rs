//! Checks what workers answered, on the engine's thread and its pool: nothing that a worker says reaches a text before it has passed here.
//!
//! ```text
//! part --> a projection of its expert? --yes--> passes the check? --yes--> used
//!              |no: being made                      |no
//!              +--------------> computed here from the hub's own block, which is used <---+   answer or products differ?
//!                                                                                             a lie, told to the swarm
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use moex_kernels::check::{
    AnsweredRow, CheckScratch, KernelRows, Projection, f16_rounding, norm, products_nmse,
};
use moex_kernels::engine::ActivationFormat;
use moex_kernels::simd::{Processor, Simd, widen_halves};
use moex_protocol::{Block, Dtype, ProductFormat, tensor};
use moex_swarm::{LayerResult, Lie, SwarmStatus, TOLERANCE_NMSE, Unchecked};

use super::projections::{MAX_PROJECTION_BYTES, Projections};
use crate::shards::ShardStore;

/// Rows from which other threads help: a check of one takes 2 to 8 us, most of it memory that no processor has read lately; a
/// thread that still looks for work takes it up within one, and one that sleeps is needed soon.
const ROWS_FOR_THREADS: usize = 4;

/// See the [module's description](self).
pub(super) struct Verifier {
    store: Arc<ShardStore>,
    projections: Projections,
    /// Whose threads share the checks; without it the calling thread does them all.
    processor: Option<Arc<Processor>>,
    simd: Simd,
    activations: ActivationFormat,
    /// One for each check that was ever under way at once.
    spaces: Mutex<Vec<Space>>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    checked: AtomicU64,
    recomputed: AtomicU64,
    refuted: AtomicU64,
    lies: AtomicU64,
}

/// What the check of a part needs in between.
#[derive(Default)]
struct Space {
    scratch: CheckScratch,
    /// (D).
    answer: Vec<f32>,
    /// (2F).
    products: Vec<f32>,
}

/// What the check of a layer needs in between, kept by whoever asks for layers.
#[derive(Default)]
pub(super) struct VerifierSpace {
    /// (T, D).
    rows: Vec<f32>,
    met: KernelRows,
    projections: Vec<Option<Arc<Projection>>>,
    is_right: Vec<AtomicBool>,
}

/// Why a layer could not be checked. Each is one sentence.
#[derive(Debug, thiserror::Error)]
pub(super) enum VerifyError {
    /// The hub cannot compute what a worker answered wrong.
    #[error("an answer could not be checked: {0}")]
    Compute(String),
    /// The hub's own result is not finite.
    #[error("the hub's own result is not finite")]
    NotFinite,
}

impl Verifier {
    /// A verifier of answers for experts of `store`; none if it has no experts.
    ///
    /// # Errors
    /// If the system gives no thread, or no random bytes.
    pub(super) fn start(
        store: Arc<ShardStore>,
        activations: ActivationFormat,
    ) -> std::io::Result<Option<Self>> {
        let processor = store.processor().cloned();
        let simd = processor.as_ref().map_or_else(Simd::detect, |processor| processor.simd());
        let projections = Projections::start(store.clone(), simd, MAX_PROJECTION_BYTES)?;
        let Some(projections) = projections else { return Ok(None) };
        let (spaces, counts) = (Mutex::default(), Counts::default());
        Ok(Some(Self { store, projections, processor, simd, activations, spaces, counts }))
    }

    /// Whether whatever passes is what the hub computes, in every bit: then nothing but a lie changes when it is checked after its
    /// use.
    pub(super) fn is_exact(&self) -> bool {
        self.activations == ActivationFormat::Int8
    }

    /// Has made, soon, what answers for these blocks are checked by.
    pub(super) fn prepare(&self, blocks: impl Iterator<Item = Block>) {
        self.projections.prepare(blocks);
    }

    /// Checks all that workers answered, and uses the hub's own results where that fails or cannot be done. Gives the answers
    /// that were not what the hub computed.
    ///
    /// # Errors
    /// If the hub cannot compute what it has to.
    pub(super) fn verify(
        &self,
        result: &mut LayerResult,
        space: &mut VerifierSpace,
    ) -> Result<Vec<Lie>, VerifyError> {
        let (own, refuted) = self.to_compute(result, space);
        if own.is_empty() {
            return Ok(Vec::new());
        }
        let false_products = refuted.and_then(|item| self.false_products(result, item, &space.met));
        let answer = self.store.answer(&result.dispatch(&own));
        let answer = answer.map_err(|error| VerifyError::Compute(error.to_string()))?;
        let mut lies = result.replace(&own, &answer, self.is_exact()).ok_or(VerifyError::NotFinite)?;
        // A true answer beside false products makes the hub compute as well.
        lies.extend(false_products.filter(|lie| lies.iter().all(|known| known.worker != lie.worker)));
        self.counts.lies.fetch_add(lies.len() as u64, Relaxed);
        Ok(lies)
    }

    /// That a worker said products of this item which are not its expert's, if so.
    fn false_products(&self, result: &LayerResult, item: usize, rows: &KernelRows) -> Option<Lie> {
        let part = result.unchecked().find(|part| part.item == item)?;
        let expert = self.store.shape(part.block.layer)?;
        let expert = expert.view(self.store.block(part.block).ok()?).ok()?;
        let of_rows = part.products.chunks_exact(part.products.len() / part.pairs.len().max(1));
        let mut said = Vec::new();
        part.pairs.iter().zip(of_rows).find_map(|(pair, products)| {
            read_products(self.simd, result.product_format(), products, &mut said);
            let nmse = products_nmse(&expert, rows, usize::from(pair.row), &said);
            let is_false = nmse.is_nan() || nmse > TOLERANCE_NMSE;
            is_false.then(|| result.false_products(item, nmse)).flatten()
        })
    }

    /// The items, ascending, that workers answered and that did not pass, or could not be checked; and one that did not pass.
    fn to_compute(&self, result: &LayerResult, space: &mut VerifierSpace) -> (Vec<usize>, Option<usize>) {
        let parts: Vec<Unchecked<'_>> = result.unchecked().collect();
        let Some(layer) = parts.first().map(|part| part.block.layer) else { return (Vec::new(), None) };
        let VerifierSpace { rows, met, projections, is_right } = space;
        self.projections.of(parts.iter().map(|part| part.block), projections);
        let (dtype, bytes) = result.rows();
        let formats = (dtype, result.product_format());
        if let Some(shape) = self.store.shape(layer)
            && projections.iter().any(Option::is_some)
        {
            self.read(dtype, bytes, shape.hidden, rows);
            met.fill(self.simd, self.activations, shape.format.gate_up, shape.hidden, rows);
        }
        is_right.clear();
        is_right.resize_with(parts.len(), || AtomicBool::new(false));
        let check = |index: usize| {
            if let Some(projection) = &projections[index] {
                let mut space = self.spaces().pop().unwrap_or_default();
                let is_so = self.passes(projection, met, formats, &parts[index], &mut space);
                is_right[index].store(is_so, Relaxed);
                self.spaces().push(space);
            }
        };
        let n_rows: usize = parts.iter().map(|part| part.pairs.len()).sum();
        match &self.processor {
            Some(processor) if n_rows >= ROWS_FOR_THREADS => processor.pool().run(parts.len(), &check),
            _ => (0..parts.len()).for_each(check),
        }
        let is_unprepared = |index: &usize| projections[*index].is_none();
        let n_unprepared = (0..parts.len()).filter(is_unprepared).count();
        let mut wrong: Vec<usize> =
            (0..parts.len()).filter(|index| !is_right[*index].load(Relaxed)).collect();
        self.counts.checked.fetch_add(parts.len() as u64, Relaxed);
        self.counts.recomputed.fetch_add(n_unprepared as u64, Relaxed);
        self.counts.refuted.fetch_add((wrong.len() - n_unprepared) as u64, Relaxed);
        let refuted =
            wrong.iter().find(|index| projections[**index].is_some()).map(|index| parts[*index].item);
        wrong.iter_mut().for_each(|index| *index = parts[*index].item);
        wrong.sort_unstable();
        (wrong, refuted)
    }

    /// Whether each row of a part passes.
    fn passes(
        &self,
        projection: &Projection,
        rows: &KernelRows,
        (dtype, product_format): (Dtype, ProductFormat),
        part: &Unchecked<'_>,
        space: &mut Space,
    ) -> bool {
        let n_rows = part.pairs.len();
        if n_rows == 0 || part.products.is_empty() {
            return false;
        }
        let answers = part.answer.chunks_exact(part.answer.len() / n_rows);
        let products = part.products.chunks_exact(part.products.len() / n_rows);
        let Space { scratch, answer, products: said } = space;
        part.pairs.iter().zip(answers.zip(products)).all(|(pair, (bytes, products))| {
            read_products(self.simd, product_format, products, said);
            self.read(dtype, bytes, projection.hidden(), answer);
            let Some(wire_rounding) = wire_rounding(self.simd, dtype, answer) else { return false };
            let (row, gate) = (usize::from(pair.row), pair.gate.to_f32());
            let answered = AnsweredRow { row, gate, products: said, answer, wire_rounding };
            projection.check(self.simd, self.activations, rows, &answered, scratch).is_ok()
        })
    }

    /// Rows of the wire's number format, (n, D), to `out`.
    fn read(&self, dtype: Dtype, bytes: &[u8], hidden: usize, out: &mut Vec<f32>) {
        out.resize(bytes.len() / dtype.row_bytes(hidden).max(1) * hidden, 0.0);
        match dtype {
            Dtype::F16 => widen_halves(self.simd, bytes, out),
            // They were whole rows when they came.
            _ => drop(tensor::decode_rows_into(dtype, bytes, hidden, out)),
        }
    }

    fn spaces(&self) -> std::sync::MutexGuard<'_, Vec<Space>> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills the counts into a status.
    pub(super) fn fill_in(&self, status: &mut SwarmStatus) {
        let Counts { checked, recomputed, refuted, lies } = &self.counts;
        let [checked, recomputed, refuted, lies] =
            [checked, recomputed, refuted, lies].map(|count| count.load(Relaxed));
        let verification = &mut status.verification;
        let bytes = self.projections.n_bytes() as u64;
        *verification =
            moex_swarm::Verification { mode: verification.mode, checked, recomputed, refuted, lies, bytes };
    }
}

/// Products (2F) as they went over the wire, to `said`.
fn read_products(simd: Simd, format: ProductFormat, products: &[u8], said: &mut Vec<f32>) {
    said.resize(products.len() / format.bytes(), 0.0);
    match format {
        ProductFormat::F16 => widen_halves(simd, products, said),
        ProductFormat::F32 => {
            let (values, _) = products.as_chunks::<4>();
            said.iter_mut().zip(values).for_each(|(said, value)| *said = f32::from_le_bytes(*value));
        }
    }
}

/// How far rounding to this format moves `answer` at most, as a length. None where that is more than a lie may be: an answer
/// in such a format is computed by the hub.
fn wire_rounding(simd: Simd, dtype: Dtype, answer: &[f32]) -> Option<f32> {
    match dtype {
        Dtype::F16 => Some(f16_rounding(simd, answer)),
        Dtype::Bf16 => Some(norm(simd, answer) / 256.0),
        Dtype::Int8 | Dtype::Int4 => None,
    }
}
