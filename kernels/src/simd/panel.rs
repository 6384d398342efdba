//! Panels of an integer format times a few rows of activations.
//!
//! Written in loops, not in closures: a closure is a function of its own, compiled without the instructions that the
//! kernel around it is compiled for.

use crate::quant::{Terms, block_words};

use super::{
    format::{Format, UNIT},
    isa::{AHEAD, Isa, QUAD_BYTES, ROWS},
};

/// The quads of a unit.
const QUADS: usize = UNIT / 4;

/// `panels[n][row] . x[t]` for N panels and T rows of activations, in the order that [`crate::quant::dot_int8`] defines.
///
/// The codes of a unit are unpacked once into registers and meet all T rows there; a row's columns, once in a register,
/// meet all N panels.
#[inline(always)]
pub(super) fn product<I: Isa, F: Format, const T: usize, const N: usize>(
    isa: I,
    panels: [&[u8]; N],
    x: [&[i32]; T],
) -> [[I::Floats; T]; N] {
    let words = const { block_words(F::GEOMETRY) };
    let n_blocks = x[0].len() / words;
    let parameters_at = n_blocks * F::LAYOUT.code_bytes;
    let mut sums = [[isa.splat(0.0); T]; N];
    for block in 0..n_blocks {
        let (mut codes, mut parameters) = ([&[][..]; N], [&[][..]; N]);
        for n in 0..N {
            codes[n] = &panels[n][block * F::LAYOUT.code_bytes..][..F::LAYOUT.code_bytes];
            let at = parameters_at + block * F::LAYOUT.parameter_bytes;
            parameters[n] = &panels[n][at..][..F::LAYOUT.parameter_bytes];
            isa.prefetch(parameters[n], panels[n].len());
        }
        let block = Block::<N> { codes, parameters, x_at: block * words };
        match F::LAYOUT.scales {
            None if F::GEOMETRY.cols == UNIT => one_unit::<I, F, T, N>(isa, block, x, &mut sums),
            None => one_group::<I, F, T, N>(isa, block, x, &mut sums),
            Some(_) => many_groups::<I, F, T, N>(isa, block, x, &mut sums),
        }
    }
    sums
}

/// A block of N panels.
#[derive(Clone, Copy)]
struct Block<'a, const N: usize> {
    codes: [&'a [u8]; N],
    parameters: [&'a [u8]; N],
    /// Where its words start in a row of activations.
    x_at: usize,
}

impl<const N: usize> Block<'_, N> {
    /// The codes of a unit.
    #[inline(always)]
    fn unpack<I: Isa, F: Format>(&self, isa: I, unit: usize) -> [[I::Bytes; QUADS]; N] {
        let mut weights = [[isa.bytes(part(self.codes[0], 0)); QUADS]; N];
        for (weights, codes) in weights.iter_mut().zip(self.codes) {
            let codes = &codes[unit * F::LAYOUT.unit_bytes..][..F::LAYOUT.unit_bytes];
            isa.prefetch(codes, AHEAD);
            *weights = unpack::<I, F>(isa, codes);
        }
        weights
    }

    #[inline(always)]
    fn scales<I: Isa, F: Format>(&self, isa: I) -> [Scales<I>; N] {
        let mut scales = [Scales::of::<F>(isa, self.parameters[0]); N];
        for (scales, parameters) in scales.iter_mut().zip(self.parameters) {
            *scales = Scales::of::<F>(isa, parameters);
        }
        scales
    }

    #[inline(always)]
    fn group_scales<I: Isa, F: Format>(&self, isa: I, group: usize) -> [I::Floats; N] {
        let mut scales = [isa.splat(0.0); N];
        for (scales, parameters) in scales.iter_mut().zip(self.parameters) {
            *scales = group_scale::<I, F>(isa, parameters, group);
        }
        scales
    }
}

/// A block that is one unit.
#[inline(always)]
fn one_unit<I: Isa, F: Format, const T: usize, const N: usize>(
    isa: I,
    block: Block<'_, N>,
    x: [&[i32]; T],
    sums: &mut [[I::Floats; T]; N],
) {
    let weights = block.unpack::<I, F>(isa, 0);
    let scales = block.scales::<I, F>(isa);
    for t in 0..T {
        let x = words::<F>(x[t], block.x_at);
        let ints = dot_quads::<I, F, T, N, QUADS>(isa, [start::<I, F>(isa, x, 0); N], &weights, x, 0);
        for n in 0..N {
            let products = isa.to_floats(ints[n]);
            sums[n][t] = scales[n].add::<F>(isa, sums[n][t], products, block.parameters[n], x);
        }
    }
}

/// A block of several units that share all scales.
#[inline(always)]
fn one_group<I: Isa, F: Format, const T: usize, const N: usize>(
    isa: I,
    block: Block<'_, N>,
    x: [&[i32]; T],
    sums: &mut [[I::Floats; T]; N],
) {
    let mut ints = [[isa.splat_int(0); N]; T];
    for t in 0..T {
        ints[t] = [start::<I, F>(isa, words::<F>(x[t], block.x_at), 0); N];
    }
    for unit in 0..F::GEOMETRY.cols / UNIT {
        let weights = block.unpack::<I, F>(isa, unit);
        for t in 0..T {
            let x = words::<F>(x[t], block.x_at);
            ints[t] = dot_quads::<I, F, T, N, QUADS>(isa, ints[t], &weights, x, unit * QUADS);
        }
    }
    let scales = block.scales::<I, F>(isa);
    for t in 0..T {
        let x = words::<F>(x[t], block.x_at);
        for n in 0..N {
            let products = isa.to_floats(ints[t][n]);
            sums[n][t] = scales[n].add::<F>(isa, sums[n][t], products, block.parameters[n], x);
        }
    }
}

/// A block whose groups have integer scales: a unit is one group, or two.
#[inline(always)]
fn many_groups<I: Isa, F: Format, const T: usize, const N: usize>(
    isa: I,
    block: Block<'_, N>,
    x: [&[i32]; T],
    sums: &mut [[I::Floats; T]; N],
) {
    const HALF: usize = QUADS / 2;
    let mut scaled = [[isa.splat(0.0); N]; T];
    for unit in 0..F::GEOMETRY.cols / UNIT {
        let weights = block.unpack::<I, F>(isa, unit);
        if F::GEOMETRY.group == UNIT {
            let unit_scales = block.group_scales::<I, F>(isa, unit);
            for t in 0..T {
                let x = words::<F>(x[t], block.x_at);
                let start = [start::<I, F>(isa, x, unit); N];
                let ints = dot_quads::<I, F, T, N, QUADS>(isa, start, &weights, x, unit * QUADS);
                for n in 0..N {
                    scaled[t][n] = isa.add(scaled[t][n], isa.mul(isa.to_floats(ints[n]), unit_scales[n]));
                }
            }
        } else {
            let (mut low, mut high) = ([[weights[0][0]; HALF]; N], [[weights[0][0]; HALF]; N]);
            for n in 0..N {
                low[n].copy_from_slice(&weights[n][..HALF]);
                high[n].copy_from_slice(&weights[n][HALF..]);
            }
            let low_scales = block.group_scales::<I, F>(isa, 2 * unit);
            let high_scales = block.group_scales::<I, F>(isa, 2 * unit + 1);
            for t in 0..T {
                let x = words::<F>(x[t], block.x_at);
                let starts = [[start::<I, F>(isa, x, 2 * unit); N], [start::<I, F>(isa, x, 2 * unit + 1); N]];
                let low = dot_quads::<I, F, T, N, HALF>(isa, starts[0], &low, x, unit * QUADS);
                let high = dot_quads::<I, F, T, N, HALF>(isa, starts[1], &high, x, unit * QUADS + HALF);
                for n in 0..N {
                    let sum = isa.add(scaled[t][n], isa.mul(isa.to_floats(low[n]), low_scales[n]));
                    scaled[t][n] = isa.add(sum, isa.mul(isa.to_floats(high[n]), high_scales[n]));
                }
            }
        }
    }
    let scales = block.scales::<I, F>(isa);
    for t in 0..T {
        let x = words::<F>(x[t], block.x_at);
        for n in 0..N {
            sums[n][t] = scales[n].add::<F>(isa, sums[n][t], scaled[t][n], block.parameters[n], x);
        }
    }
}

/// The scales of a block's rows.
#[derive(Clone, Copy)]
struct Scales<I: Isa> {
    d: I::Floats,
    /// Of the minimums; zeros in formats without.
    m: I::Floats,
}

impl<I: Isa> Scales<I> {
    #[inline(always)]
    fn of<F: Format>(isa: I, parameters: &[u8]) -> Self {
        let m = match F::LAYOUT.m {
            Some(at) => isa.halves(part(parameters, at)),
            None => isa.splat(0.0),
        };
        Self { d: isa.halves(part(parameters, 0)), m }
    }

    /// `sum` and a block's integer products, scaled, less its minimums.
    #[inline(always)]
    fn add<F: Format>(
        &self,
        isa: I,
        sum: I::Floats,
        products: I::Floats,
        parameters: &[u8],
        x: &[i32],
    ) -> I::Floats {
        let float = |at: usize| f32::from_bits(x[at] as u32);
        let scale = isa.splat(float(0));
        let products = match F::LAYOUT.zeros {
            // Integers below 2^24 each, and their difference: exact.
            Some(at) => isa.sub(products, isa.mul(isa.unsigned(part(parameters, at)), isa.splat(float(1)))),
            None => products,
        };
        let sum = isa.add(sum, isa.mul(products, isa.mul(self.d, scale)));
        if F::LAYOUT.m.is_none() {
            return sum;
        }
        let lowered = match F::LAYOUT.mins {
            None => isa.splat(float(1)),
            Some(at) => {
                let mut lowered = isa.splat_int(0);
                for pair in 0..F::GEOMETRY.n_groups() / 2 {
                    let mins = part(parameters, at + pair * 2 * ROWS);
                    lowered = isa.dot_pair(lowered, mins, x[1 + pair]);
                }
                isa.to_floats(lowered)
            }
        };
        isa.sub(sum, isa.mul(lowered, isa.mul(self.m, scale)))
    }
}

/// The words of a block of activations.
#[inline(always)]
fn words<F: Format>(x: &[i32], at: usize) -> &[i32] {
    &x[at..][..const { block_words(F::GEOMETRY) }]
}

/// To the sums of each panel the products of its Q quads, with those from quad `first` of the block on.
#[inline(always)]
fn dot_quads<I: Isa, F: Format, const T: usize, const N: usize, const Q: usize>(
    isa: I,
    mut sums: [I::Ints; N],
    weights: &[[I::Bytes; Q]; N],
    x: &[i32],
    first: usize,
) -> [I::Ints; N] {
    let first = const { 1 + Terms::of(F::GEOMETRY).words(F::GEOMETRY) } + first;
    // With few rows, two sums a panel that do not wait for each other.
    let apart = if T <= 2 { 2 } else { 1 };
    let mut odd = [isa.splat_int(0); N];
    for q in 0..Q {
        for n in 0..N {
            let sum = if q % apart == 1 { &mut odd[n] } else { &mut sums[n] };
            *sum = match F::FORMAT.code_bits() {
                8 => isa.dot_codes(*sum, weights[n][q], x[first + q]),
                _ => isa.dot(*sum, weights[n][q], x[first + q]),
            };
        }
    }
    if apart == 2 {
        for n in 0..N {
            sums[n] = isa.add_ints(sums[n], odd[n]);
        }
    }
    sums
}

/// Where the products of a group start: at its bias, if the format has a fixed zero that the dot product does not take off.
#[inline(always)]
fn start<I: Isa, F: Format>(isa: I, x: &[i32], group: usize) -> I::Ints {
    match const { Terms::of(F::GEOMETRY) } {
        Terms::Biases { .. } if I::RAISED || F::FORMAT.code_bits() < 8 => isa.splat_int(x[1 + group]),
        _ => isa.splat_int(0),
    }
}

#[inline(always)]
fn group_scale<I: Isa, F: Format>(isa: I, parameters: &[u8], group: usize) -> I::Floats {
    match F::LAYOUT.scales {
        Some(at) => isa.signed(part(parameters, at + group * ROWS)),
        None => isa.splat(1.0),
    }
}

/// A unit's codes, a vector for each quad.
#[inline(always)]
fn unpack<I: Isa, F: Format>(isa: I, codes: &[u8]) -> [I::Bytes; QUADS] {
    let mut quads = [isa.bytes(part(codes, 0)); QUADS];
    for (q, quad) in quads.iter_mut().enumerate() {
        *quad = match F::FORMAT.code_bits() {
            8 => isa.codes(vector(isa, codes, q)),
            5 => isa.or(nibbles(isa, codes, q), isa.bits(vector(isa, codes, 4), q as i32 - 4, 16)),
            6 => {
                let high = isa.bits(vector(isa, codes, 4 + q / 4), 2 * (q as i32 % 4) - 4, 48);
                isa.or(nibbles(isa, codes, q), high)
            }
            _ => nibbles(isa, codes, q),
        };
    }
    quads
}

/// Bits 0 to 4 of quad `q`.
#[inline(always)]
fn nibbles<I: Isa>(isa: I, codes: &[u8], q: usize) -> I::Bytes {
    isa.bits(vector(isa, codes, q % 4), if q < 4 { 0 } else { 4 }, 15)
}

#[inline(always)]
fn vector<I: Isa>(isa: I, codes: &[u8], v: usize) -> I::Bytes {
    isa.bytes(part(codes, v * QUAD_BYTES))
}

/// The `N` bytes at `at`.
#[inline(always)]
fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("a panel is whole blocks of its layout")
}
