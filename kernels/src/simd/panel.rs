//! A panel of an integer format times a few rows of activations.
//!
//! Written in loops, not in closures: a closure is a function of its own, compiled without the instructions that the
//! kernel around it is compiled for.

use crate::quant::{Terms, block_words};

use super::{
    format::{Format, UNIT},
    isa::{Isa, QUAD_BYTES, ROWS},
};

/// The quads of a unit.
const QUADS: usize = UNIT / 4;

/// `panel[row] . x[t]` for T rows of activations, in the order that [`crate::quant::dot_int8`] defines.
///
/// The codes of a unit are unpacked once into registers and meet all T rows there.
#[inline(always)]
pub(super) fn product<I: Isa, F: Format, const T: usize>(
    isa: I,
    panel: &[u8],
    x: [&[i32]; T],
) -> [I::Floats; T] {
    let words = const { block_words(F::GEOMETRY) };
    let n_blocks = x[0].len() / words;
    let (codes, parameters) = panel.split_at(n_blocks * F::LAYOUT.code_bytes);
    let codes = codes.chunks_exact(F::LAYOUT.code_bytes);
    let parameters = parameters.chunks_exact(F::LAYOUT.parameter_bytes);
    let mut sums = [isa.splat(0.0); T];
    for (block, (codes, parameters)) in codes.zip(parameters).enumerate() {
        let at = block * words;
        match F::LAYOUT.scales {
            None if F::GEOMETRY.cols == UNIT => one_unit::<I, F, T>(isa, codes, parameters, x, at, &mut sums),
            None => one_group::<I, F, T>(isa, codes, parameters, x, at, &mut sums),
            Some(_) => many_groups::<I, F, T>(isa, codes, parameters, x, at, &mut sums),
        }
    }
    sums
}

/// A block that is one unit.
#[inline(always)]
fn one_unit<I: Isa, F: Format, const T: usize>(
    isa: I,
    codes: &[u8],
    parameters: &[u8],
    x: [&[i32]; T],
    at: usize,
    sums: &mut [I::Floats; T],
) {
    let weights = unpack::<I, F>(isa, codes);
    let scales = Scales::of::<F>(isa, parameters);
    for t in 0..T {
        let x = words::<F>(x[t], at);
        let ints = dot_quads::<I, F>(isa, start::<I, F>(isa, x, 0), &weights, x, 0);
        sums[t] = scales.add::<F>(isa, sums[t], isa.to_floats(ints), parameters, x);
    }
}

/// A block of several units that share all scales.
#[inline(always)]
fn one_group<I: Isa, F: Format, const T: usize>(
    isa: I,
    codes: &[u8],
    parameters: &[u8],
    x: [&[i32]; T],
    at: usize,
    sums: &mut [I::Floats; T],
) {
    let mut ints = [[isa.splat_int(0); 2]; T];
    for t in 0..T {
        ints[t][0] = start::<I, F>(isa, words::<F>(x[t], at), 0);
    }
    for (unit, codes) in codes.chunks_exact(F::LAYOUT.unit_bytes).enumerate() {
        let weights = unpack::<I, F>(isa, codes);
        for t in 0..T {
            // With few rows, sums that do not wait for each other.
            let ints = &mut ints[t][if T <= 2 { unit % 2 } else { 0 }];
            *ints = dot_quads::<I, F>(isa, *ints, &weights, words::<F>(x[t], at), unit * QUADS);
        }
    }
    let scales = Scales::of::<F>(isa, parameters);
    for t in 0..T {
        let ints = if T <= 2 { isa.add_ints(ints[t][0], ints[t][1]) } else { ints[t][0] };
        sums[t] = scales.add::<F>(isa, sums[t], isa.to_floats(ints), parameters, words::<F>(x[t], at));
    }
}

/// A block whose groups have integer scales: a unit is one group, or two.
#[inline(always)]
fn many_groups<I: Isa, F: Format, const T: usize>(
    isa: I,
    codes: &[u8],
    parameters: &[u8],
    x: [&[i32]; T],
    at: usize,
    sums: &mut [I::Floats; T],
) {
    let mut scaled = [isa.splat(0.0); T];
    for (unit, codes) in codes.chunks_exact(F::LAYOUT.unit_bytes).enumerate() {
        let weights = unpack::<I, F>(isa, codes);
        if F::GEOMETRY.group == UNIT {
            let scale = group_scale::<I, F>(isa, parameters, unit);
            for t in 0..T {
                let x = words::<F>(x[t], at);
                let ints = dot_quads::<I, F>(isa, start::<I, F>(isa, x, unit), &weights, x, unit * QUADS);
                scaled[t] = isa.add(scaled[t], isa.mul(isa.to_floats(ints), scale));
            }
        } else {
            let (low, high) = weights.split_at(QUADS / 2);
            let low_scale = group_scale::<I, F>(isa, parameters, 2 * unit);
            let high_scale = group_scale::<I, F>(isa, parameters, 2 * unit + 1);
            for t in 0..T {
                let x = words::<F>(x[t], at);
                let ints = dot_quads::<I, F>(isa, start::<I, F>(isa, x, 2 * unit), low, x, unit * QUADS);
                let sum = isa.add(scaled[t], isa.mul(isa.to_floats(ints), low_scale));
                let start = start::<I, F>(isa, x, 2 * unit + 1);
                let ints = dot_quads::<I, F>(isa, start, high, x, unit * QUADS + QUADS / 2);
                scaled[t] = isa.add(sum, isa.mul(isa.to_floats(ints), high_scale));
            }
        }
    }
    let scales = Scales::of::<F>(isa, parameters);
    for t in 0..T {
        sums[t] = scales.add::<F>(isa, sums[t], scaled[t], parameters, words::<F>(x[t], at));
    }
}

/// The scales of a block's rows.
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

/// To `ints` the products of the quads that `weights` holds, from quad `first` of the block on.
#[inline(always)]
fn dot_quads<I: Isa, F: Format>(
    isa: I,
    mut ints: I::Ints,
    weights: &[I::Bytes],
    x: &[i32],
    first: usize,
) -> I::Ints {
    let first = const { 1 + Terms::of(F::GEOMETRY).words(F::GEOMETRY) } + first;
    for q in 0..weights.len() {
        ints = match F::FORMAT.code_bits() {
            8 => isa.dot_codes(ints, weights[q], x[first + q]),
            _ => isa.dot(ints, weights[q], x[first + q]),
        };
    }
    ints
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
