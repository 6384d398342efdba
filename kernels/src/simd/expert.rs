//! Computes the experts of a layer as one parallel job: `gate * down(silu(gate_proj(x)) * up(x))`, or their kind's own
//! function between the projections, for each of their rows. The products of gate and up with int8 rows are rounded to f16,
//! so that a worker returns them in two bytes each.

use super::{
    PackedShape, Simd,
    disjoint::Disjoint,
    isa::{Isa, Kernel, ROWS},
    linear::panels_of_task,
    round::{RoundProducts, rounded},
    rows::{MAX_ROWS, fill, multiply},
    silu_mul::{ClampedSwiglu, SiluMul},
};
use crate::{
    ExpertFormat, ExpertKind, ExpertShape, ExpertView, ShapeError, cpu, engine::Pair, pool::Pool,
    quant::Activations,
};

/// The shape of a packed expert: panels of gate and up in turn, then those of down. Biases follow, if there are any, in
/// f32: those of gate and up, then of down, padded to whole panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedExpertShape {
    /// D, the width of a row.
    pub hidden: usize,
    /// F, the width between the projections.
    pub inner: usize,
    /// The formats that its panels are made of.
    pub format: ExpertFormat,
}

/// Smaller results count as 0: 2^-100. So no device meets a subnormal number.
const SMALLEST_RESULT: f32 = f32::from_bits((127 - 100) << 23);

/// The rows of one expert.
#[derive(Clone, Copy, Debug)]
pub struct ExpertCall<'a> {
    /// Its packed weights, [`PackedExpertShape::bytes`].
    pub expert: &'a [u8],
    /// Its rows, in the order of the answer.
    pub pairs: &'a [Pair],
}

/// Working memory of [`experts`]. It grows to the largest batch, then allocates no more.
#[derive(Clone, Debug, Default)]
pub struct ExpertScratch {
    /// (R, D).
    x: Activations,
    /// (P, F).
    inner: Vec<f32>,
    /// (P, F).
    h: Activations,
    /// Where each call's pairs start among all of them.
    starts: Vec<usize>,
    /// (P, 2F), where they are kept.
    products: Option<Vec<f32>>,
    /// Whether results are rounded to f16.
    is_rounded: bool,
}

impl ExpertScratch {
    /// Sets whether [`experts`] keeps the products of gate and up, for [`Self::products`].
    pub fn keep_products(&mut self, is_kept: bool) {
        match is_kept {
            true => drop(self.products.get_or_insert_default()),
            false => self.products = None,
        }
    }

    /// Sets whether [`experts`] rounds its results to the nearest f16, as [`super::round_to_f16`] does.
    pub fn round_results(&mut self, is_rounded: bool) {
        self.is_rounded = is_rounded;
    }

    /// (P, 2F): for each pair of the last [`experts`] the products with gate, then those with up, without biases; empty
    /// unless they are kept.
    pub fn products(&self) -> &[f32] {
        self.products.as_deref().unwrap_or_default()
    }
}

impl From<ExpertShape> for PackedExpertShape {
    fn from(shape: ExpertShape) -> Self {
        Self { hidden: shape.hidden, inner: shape.inner, format: shape.format }
    }
}

impl PackedExpertShape {
    /// The shape of an expert.
    pub fn of(expert: &ExpertView<'_>) -> Self {
        let format =
            ExpertFormat { gate_up: expert.gate.format(), down: expert.down.format(), kind: expert.kind() };
        Self { hidden: expert.gate.cols(), inner: expert.gate.rows(), format }
    }

    /// The bytes of an expert; `usize::MAX` if they cannot be addressed.
    pub fn bytes(&self) -> usize {
        self.biases_start().saturating_add(self.bias_bytes().iter().fold(0, |sum, n| n.saturating_add(sum)))
    }

    /// Packs an expert of this shape into `out` ([`Self::bytes`]), on all threads of `pool`.
    ///
    /// # Panics
    /// If one of them has another shape.
    #[cfg_attr(target_arch = "wasm32", inline(never))]
    pub fn pack(&self, pool: &Pool, expert: &ExpertView<'_>, out: &mut [u8]) {
        let (shape, down) = (self.gate_up_shape(), self.down_shape());
        for matrix in [&expert.gate, &expert.up] {
            assert_eq!(PackedShape::of(matrix), shape, "the shape of gate and up");
        }
        let (panels, mut biases) = out.split_at_mut(self.biases_start());
        let (both, rest) = panels.split_at_mut(self.gate_up_bytes());
        let n = shape.panel_bytes();
        let both = Disjoint::new(both);
        pool.run(shape.n_panels(), &|index| {
            // SAFETY: task `index` alone touches panel `index` of both.
            let (gate, up) = unsafe { both.part(2 * n * index..2 * n * (index + 1)) }.split_at_mut(n);
            shape.pack_panel(&expert.gate, index, gate);
            shape.pack_panel(&expert.up, index, up);
        });
        down.pack(pool, &expert.down, rest);
        if let Some(from) = &expert.biases {
            for (bias, n_bytes) in [&from.gate, &from.up, &from.down].into_iter().zip(self.bias_bytes()) {
                let (place, rest) = biases.split_at_mut(n_bytes);
                let (values, padding) = place.split_at_mut(bias.bytes().len());
                values.copy_from_slice(bias.bytes());
                padding.fill(0);
                biases = rest;
            }
        }
    }

    pub(crate) fn gate_up_shape(&self) -> PackedShape {
        PackedShape { format: self.format.gate_up, rows: self.inner, cols: self.hidden }
    }

    pub(crate) fn down_shape(&self) -> PackedShape {
        PackedShape { format: self.format.down, rows: self.hidden, cols: self.inner }
    }

    pub(crate) fn gate_up_bytes(&self) -> usize {
        self.gate_up_shape().bytes().saturating_mul(2)
    }

    fn biases_start(&self) -> usize {
        self.gate_up_bytes().saturating_add(self.down_shape().bytes())
    }

    /// Where the biases of gate, up and down start.
    #[cfg(feature = "gpu")]
    pub(crate) fn biases_at(&self) -> [usize; 3] {
        let [gate, up, _] = self.bias_bytes();
        [0, gate, gate + up].map(|before| self.biases_start() + before)
    }

    /// Of gate, up and down: whole panels.
    fn bias_bytes(&self) -> [usize; 3] {
        let of = |width: usize| match self.format.kind.has_biases() {
            true => width.checked_next_multiple_of(ROWS).map_or(usize::MAX, |n| n.saturating_mul(4)),
            false => 0,
        };
        [of(self.inner), of(self.inner), of(self.hidden)]
    }

    /// A panel of the bias of gate (0), up (1) or down (2).
    fn bias(&self, expert: &[u8], which: usize, panel: usize) -> [f32; ROWS] {
        let before: usize = self.bias_bytes()[..which].iter().sum();
        let panel = &expert[self.biases_start() + before + panel * 4 * ROWS..][..4 * ROWS];
        let (values, _) = panel.as_chunks::<4>();
        std::array::from_fn(|row| f32::from_le_bytes(values[row]))
    }
}

/// `out[p] = pair.gate * expert(rows[pair.row])` for every pair of every call, in order: `rows` (R, D), `out` (P, D).
///
/// There are three steps, each spread over all threads: gate, up and the activation, panel by panel; quantisation to
/// int8; down.
///
/// # Errors
/// [`ShapeError::BlockLength`] if an expert is not of this shape.
///
/// # Panics
/// If a pair names a row that is not there, or `out` is not P rows of D.
pub fn experts(
    simd: Simd,
    pool: &Pool,
    shape: &PackedExpertShape,
    scratch: &mut ExpertScratch,
    calls: &[ExpertCall<'_>],
    rows: &[f32],
    out: &mut [f32],
) -> Result<(), ShapeError> {
    let expected = shape.bytes();
    if let Some(call) = calls.iter().find(|call| call.expert.len() != expected) {
        return Err(ShapeError::BlockLength { expected, actual: call.expert.len() });
    }
    let ExpertScratch { x, inner, h, starts, products, is_rounded } = scratch;
    starts.clear();
    let mut n_pairs = 0; // P
    for call in calls {
        starts.push(n_pairs);
        n_pairs += call.pairs.len();
    }
    assert_eq!(out.len(), n_pairs * shape.hidden, "a row for each pair");
    inner.resize(n_pairs * shape.inner, 0.0);

    if let Some(products) = products {
        products.resize(n_pairs * 2 * shape.inner, 0.0);
    }

    fill(simd, pool, x, shape.format.gate_up, shape.hidden, rows);
    let between = Between { inner, products: products.as_deref_mut() };
    gate_up(simd, pool, shape, calls, starts, x, between);
    fill(simd, pool, h, shape.format.down, shape.inner, inner);
    down(simd, pool, shape, calls, starts, h, (out, *is_rounded));
    Ok(())
}

/// The outputs of [`gate_up`].
struct Between<'a> {
    /// (P, F): the input of down.
    inner: &'a mut [f32],
    /// (P, 2F): the products themselves, where they are wanted.
    products: Option<&'a mut [f32]>,
}

fn gate_up(
    simd: Simd,
    pool: &Pool,
    shape: &PackedExpertShape,
    calls: &[ExpertCall<'_>],
    starts: &[usize],
    x: &Activations,
    out: Between<'_>,
) {
    let matrix = shape.gate_up_shape();
    let panel_bytes = matrix.panel_bytes();
    let inner = Disjoint::new(out.inner);
    let kept = out.products.map(Disjoint::new);
    for_panels(pool, calls.len(), matrix, 2 * panel_bytes, |call, panels| {
        let ExpertCall { expert, pairs } = calls[call];
        for (tile, pairs) in pairs.chunks(MAX_ROWS).enumerate() {
            let rows: [&[i32]; MAX_ROWS] =
                std::array::from_fn(|t| pairs.get(t).map_or(&[][..], |pair| x.row(pair.row as usize)));
            let rows = &rows[..pairs.len()];
            for panel in panels.clone() {
                let both = &expert[panel * 2 * panel_bytes..][..2 * panel_bytes];
                let (gate_panel, up_panel) = both.split_at(panel_bytes);
                let mut products = [[0.0; ROWS]; 2 * MAX_ROWS];
                let products = &mut products[..2 * rows.len()];
                multiply(simd, shape.format.gate_up, &[gate_panel, up_panel], rows, products);
                if shape.format.gate_up.is_quantised() {
                    simd.run(RoundProducts { products: products.as_flattened_mut() });
                }
                let (gate, up) = products.split_at_mut(rows.len());
                let width = ROWS.min(shape.inner - panel * ROWS);
                if let Some(kept) = &kept {
                    for (t, (gate, up)) in gate.iter().zip(&*up).enumerate() {
                        let start = (starts[call] + tile * MAX_ROWS + t) * 2 * shape.inner + panel * ROWS;
                        for (start, products) in [(start, gate), (start + shape.inner, up)] {
                            // SAFETY: these columns of this call's pairs are this panel's, and this task's alone.
                            unsafe { kept.part(start..start + width) }.copy_from_slice(&products[..width]);
                        }
                    }
                }
                match shape.format.kind {
                    ExpertKind::Silu => simd.run(SiluMul { gate, up }),
                    ExpertKind::ClampedSwiglu => {
                        let [gate_bias, up_bias] = &[0, 1].map(|which| shape.bias(expert, which, panel));
                        simd.run(ClampedSwiglu { gate, up, gate_bias, up_bias });
                    }
                }
                for (t, h) in gate.iter().enumerate() {
                    let start = (starts[call] + tile * MAX_ROWS + t) * shape.inner + panel * ROWS;
                    // SAFETY: these columns of this call's pairs are this panel's, and this task's alone.
                    unsafe { inner.part(start..start + width) }.copy_from_slice(&h[..width]);
                }
            }
        }
    });
}

/// Computes `out` (P, D), times the gates, rounded to f16 if that is wanted.
fn down(
    simd: Simd,
    pool: &Pool,
    shape: &PackedExpertShape,
    calls: &[ExpertCall<'_>],
    starts: &[usize],
    h: &Activations,
    (out, is_rounded): (&mut [f32], bool),
) {
    let matrix = shape.down_shape();
    let panel_bytes = matrix.panel_bytes();
    let out = Disjoint::new(out);
    for_panels(pool, calls.len(), matrix, panel_bytes, |call, panels| {
        let ExpertCall { expert, pairs } = calls[call];
        let weights = &expert[shape.gate_up_bytes()..];
        for (tile, pairs) in pairs.chunks(MAX_ROWS).enumerate() {
            let first = starts[call] + tile * MAX_ROWS;
            let rows: [&[i32]; MAX_ROWS] =
                std::array::from_fn(|t| if t < pairs.len() { h.row(first + t) } else { &[] });
            for panel in panels.clone().step_by(2) {
                let both: [&[u8]; 2] = std::array::from_fn(|n| {
                    let start = (panel + n).min(panels.end - 1) * panel_bytes;
                    &weights[start..][..panel_bytes]
                });
                let n_panels = both.len().min(panels.end - panel);
                let mut products = [[0.0; ROWS]; 2 * MAX_ROWS];
                let products = &mut products[..n_panels * pairs.len()];
                multiply(simd, shape.format.down, &both[..n_panels], &rows[..pairs.len()], products);
                for (n, products) in products.chunks_exact_mut(pairs.len()).enumerate() {
                    if shape.format.kind.has_biases() {
                        let bias = shape.bias(expert, 2, panel + n);
                        products.as_flattened_mut().chunks_exact_mut(ROWS).for_each(|y| cpu::add(y, &bias));
                    }
                    let column = (panel + n) * ROWS;
                    let width = ROWS.min(shape.hidden - column);
                    simd.run(Results { products, pairs, is_rounded });
                    for (t, product) in products.iter().enumerate() {
                        let start = (first + t) * shape.hidden + column;
                        // SAFETY: these columns of this call's pairs are this panel's, and this task's alone.
                        unsafe { out.part(start..start + width) }.copy_from_slice(&product[..width]);
                    }
                }
            }
        }
    });
}

/// Multiplies products of down with the gates of their pairs.
struct Results<'a> {
    /// A panel of each pair.
    products: &'a mut [[f32; ROWS]],
    pairs: &'a [Pair],
    is_rounded: bool,
}

impl Kernel for Results<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        for (product, pair) in self.products.iter_mut().zip(self.pairs) {
            for y in &mut *product {
                let result = pair.gate * *y;
                *y = if result.abs() < SMALLEST_RESULT { 0.0 } else { result };
            }
            if self.is_rounded {
                product.iter_mut().for_each(|y| *y = rounded(*y));
            }
        }
    }
}

/// Runs `work(call, panels)` for all panels of all calls, some at once.
fn for_panels(
    pool: &Pool,
    n_calls: usize,
    matrix: PackedShape,
    panel_bytes: usize,
    work: impl Fn(usize, std::ops::Range<usize>) + Sync,
) {
    let n_bytes = n_calls.saturating_mul(matrix.n_panels()).saturating_mul(panel_bytes);
    let panels_each = panels_of_task(pool, n_bytes, panel_bytes);
    let tasks_each = matrix.n_panels().div_ceil(panels_each);
    pool.run(n_calls * tasks_each, &|task| {
        let (call, first) = (task / tasks_each, task % tasks_each * panels_each);
        work(call, first..matrix.n_panels().min(first + panels_each));
    });
}
