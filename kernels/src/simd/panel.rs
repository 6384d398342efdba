//! Multiplies panels of an integer format with a few rows of activations.
//!
//! Written in loops, not in closures: a closure is a function of its own, compiled without the instructions that the
//! kernel around it is compiled for.

use crate::quant::{Integer, Scale, Terms, block_words, columns_at};

use super::{
    format::{Format, Panel, UNIT},
    isa::{Isa, QUAD_BYTES, ROWS},
};

/// The quads of a unit.
const QUADS: usize = UNIT / 4;

impl<F: Integer> Panel for F {
    #[inline(always)]
    fn product<I: Isa, const T: usize, const N: usize>(
        isa: I,
        panels: [&[u8]; N],
        x: [&[i32]; T],
    ) -> [[I::Floats; T]; N] {
        product::<I, F, T, N>(isa, panels, x)
    }
}

/// `panels[n][row] . x[t]` for N panels and T rows of activations, in the order that [`crate::quant::dot_int8`] defines.
///
/// The codes of a unit are unpacked once into registers and meet all T rows there; a row's columns, once in a register,
/// meet all N panels.
#[inline(always)]
fn product<I: Isa, F: Format, const T: usize, const N: usize>(
    isa: I,
    mut panels: [&[u8]; N],
    x: [&[i32]; T],
) -> [[I::Floats; T]; N] {
    let words = const { block_words(F::GEOMETRY) };
    let mut sums = [[isa.splat(0.0); T]; N];
    for block in 0..x[0].len() / words {
        let (mut codes, mut parameters) = ([&[][..]; N], [&[][..]; N]);
        for n in 0..N {
            let (bytes, rest) = panels[n].split_at(F::LAYOUT.bytes());
            (codes[n], parameters[n]) = bytes.split_at(F::LAYOUT.code_bytes);
            panels[n] = rest;
        }
        Block::<T, N> { codes, parameters, x: &x, x_at: block * words }.add::<I, F>(isa, &mut sums);
        for parameters in parameters {
            isa.prefetch_weights(parameters, T);
        }
    }
    sums
}

/// A block of N panels and T rows.
#[derive(Clone, Copy)]
struct Block<'a, const T: usize, const N: usize> {
    codes: [&'a [u8]; N],
    parameters: [&'a [u8]; N],
    /// Rows of activations.
    x: &'a [&'a [i32]; T],
    /// Where the block's words start in them.
    x_at: usize,
}

impl<const T: usize, const N: usize> Block<'_, T, N> {
    /// Adds the block's products to `sums`.
    #[inline(always)]
    fn add<I: Isa, F: Format>(&self, isa: I, sums: &mut [[I::Floats; T]; N]) {
        if F::GEOMETRY.group > UNIT {
            self.add_group::<I, F>(isa, sums);
        } else {
            for unit in 0..F::GEOMETRY.n_units() {
                self.add_unit::<I, F>(isa, unit, sums);
            }
        }
        if const { matches!(Terms::of(F::GEOMETRY), Terms::Biases { .. }) } {
            return;
        }
        for (sums, parameters) in sums.iter_mut().zip(self.parameters) {
            let depth = depth::<I, F>(isa, parameters);
            for (t, sum) in sums.iter_mut().enumerate() {
                let (lowered, scale) = lowered::<I, F>(isa, parameters, self.words::<F>(t));
                *sum = isa.sub(*sum, isa.mul(lowered, isa.mul(depth, isa.splat(scale))));
            }
        }
    }

    /// The words of row `t`. They are found where they are used: finding those of all rows ahead costs more than it
    /// saves.
    #[inline(always)]
    fn words<F: Format>(&self, t: usize) -> &[i32] {
        &self.x[t][self.x_at..][..const { block_words(F::GEOMETRY) }]
    }

    /// The codes of Q quads of a unit, from quad `first` on.
    #[inline(always)]
    fn unpack<I: Isa, F: Format, const Q: usize>(
        &self,
        isa: I,
        unit: usize,
        first: usize,
    ) -> [[I::Bytes; Q]; N] {
        let mut weights = [[isa.bytes(part(self.codes[0], 0)); Q]; N];
        for (weights, codes) in weights.iter_mut().zip(self.codes) {
            let codes = &codes[unit * F::LAYOUT.unit_bytes..][..F::LAYOUT.unit_bytes];
            if first == 0 {
                isa.prefetch_weights(codes, T);
            }
            *weights = unpack::<I, F, Q>(isa, codes, first);
        }
        weights
    }

    /// The scales of a group's rows.
    #[inline(always)]
    fn scales<I: Isa, F: Format>(&self, isa: I, group: usize) -> [I::Floats; N] {
        let mut scales = [isa.splat(0.0); N];
        for (scales, parameters) in scales.iter_mut().zip(self.parameters) {
            *scales = scale::<I, F>(isa, parameters);
            if let Some(at) = F::LAYOUT.scales {
                *scales = isa.mul(*scales, isa.signed(part(parameters, at + group * ROWS)));
            }
        }
        scales
    }

    /// Adds to `sums` the products of a block that is one group of several units of codes.
    #[inline(always)]
    fn add_group<I: Isa, F: Format>(&self, isa: I, sums: &mut [[I::Floats; T]; N]) {
        let mut ints = self.starts::<I, F>(isa, 0);
        for unit in 0..F::GEOMETRY.cols / UNIT {
            if const { by_quad::<I, F>() } {
                self.add_pairs::<I, F, QUADS>(isa, (unit, 0), &mut ints);
                continue;
            }
            let weights = self.unpack::<I, F, QUADS>(isa, unit, 0);
            for (t, ints) in ints.iter_mut().enumerate() {
                *ints =
                    dot_quads::<I, F, T, N, QUADS>(isa, *ints, &weights, self.words::<F>(t), unit * QUADS);
            }
        }
        let scales = self.scales::<I, F>(isa, 0);
        for (t, ints) in ints.into_iter().enumerate() {
            let scale = isa.splat(float(self.words::<F>(t), 0));
            add_products(isa, ints, &scales, scale, sums, t);
        }
    }

    /// Adds to `sums` the products of a unit that is one group, or two.
    #[inline(always)]
    fn add_unit<I: Isa, F: Format>(&self, isa: I, unit: usize, sums: &mut [[I::Floats; T]; N]) {
        if F::GEOMETRY.group == UNIT {
            self.add_quads::<I, F, QUADS>(isa, unit, 0, sums);
        } else {
            self.add_quads::<I, F, { QUADS / 2 }>(isa, unit, 0, sums);
            self.add_quads::<I, F, { QUADS / 2 }>(isa, unit, 1, sums);
        }
    }

    /// Adds to `sums` the products of group `part` of a unit, of Q quads.
    #[inline(always)]
    fn add_quads<I: Isa, F: Format, const Q: usize>(
        &self,
        isa: I,
        unit: usize,
        part: usize,
        sums: &mut [[I::Floats; T]; N],
    ) {
        let group = unit * (QUADS / Q) + part;
        if const { by_quad::<I, F>() } {
            let mut ints = self.starts::<I, F>(isa, group);
            self.add_pairs::<I, F, Q>(isa, (unit, part * Q), &mut ints);
            let scales = self.scales::<I, F>(isa, group);
            for (t, ints) in ints.into_iter().enumerate() {
                let scale = isa.splat(float(self.words::<F>(t), unit));
                add_products(isa, ints, &scales, scale, sums, t);
            }
            return;
        }
        let weights = self.unpack::<I, F, Q>(isa, unit, part * Q);
        let scales = self.scales::<I, F>(isa, group);
        // A row's integers become floats before the next row's are summed: registers hold those of few rows.
        for t in 0..T {
            let x = self.words::<F>(t);
            let start = [start::<I, F>(isa, x, group); N];
            let ints = dot_quads::<I, F, T, N, Q>(isa, start, &weights, x, unit * QUADS + part * Q);
            add_products(isa, ints, &scales, isa.splat(float(x, unit)), sums, t);
        }
    }

    /// Where each row's sums of a group start.
    #[inline(always)]
    fn starts<I: Isa, F: Format>(&self, isa: I, group: usize) -> [[I::Ints; N]; T] {
        let mut ints = [[isa.splat_int(0); N]; T];
        for (t, ints) in ints.iter_mut().enumerate() {
            *ints = [start::<I, F>(isa, self.words::<F>(t), group); N];
        }
        ints
    }

    /// Adds to the integers of each row those of Q quads of a unit, from `quad` on, by [`Isa::add_pairs`], as often as 16 bits hold the
    /// sums.
    #[inline(always)]
    fn add_pairs<I: Isa, F: Format, const Q: usize>(
        &self,
        isa: I,
        (unit, quad): (usize, usize),
        ints: &mut [[I::Ints; N]; T],
    ) {
        let at_once = const { i16::MAX as usize / (2 * 127 * F::DEFINITION.top() as usize) };
        let first = const { columns_at(F::GEOMETRY) } + unit * QUADS + quad;
        let mut x = [&[0; Q]; T];
        for (t, x) in x.iter_mut().enumerate() {
            *x = self.words::<F>(t)[first..].first_chunk().expect("a block's columns");
        }
        for start in (0..Q).step_by(at_once) {
            let mut pairs = [[isa.splat_int(0); N]; T];
            for q in start..Q.min(start + at_once) {
                let weights = self.unpack::<I, F, 1>(isa, unit, quad + q);
                for (pairs, x) in pairs.iter_mut().zip(x) {
                    for (pairs, [weights]) in pairs.iter_mut().zip(weights) {
                        *pairs = isa.add_pairs(*pairs, weights, x[q]);
                    }
                }
            }
            for (ints, pairs) in ints.as_flattened_mut().iter_mut().zip(pairs.as_flattened()) {
                *ints = isa.join_pairs(*ints, *pairs);
            }
        }
    }
}

/// Whether a unit's quads are unpacked one at a time.
const fn by_quad<I: Isa, F: Format>() -> bool {
    I::BY_QUAD && !F::IS_WIDE
}

/// Adds to the sums of row `t` its scaled products with a group.
#[inline(always)]
fn add_products<I: Isa, const T: usize, const N: usize>(
    isa: I,
    products: [I::Ints; N],
    scales: &[I::Floats; N],
    scale: I::Floats,
    sums: &mut [[I::Floats; T]; N],
    t: usize,
) {
    for n in 0..N {
        // The scales come first: they do not wait for the integers.
        let scale = isa.mul(scales[n], scale);
        sums[n][t] = isa.add(sums[n][t], isa.mul(isa.to_floats(products[n]), scale));
    }
}

/// The scales of a block's rows.
#[inline(always)]
fn scale<I: Isa, F: Format>(isa: I, parameters: &[u8]) -> I::Floats {
    match F::DEFINITION.scale {
        Scale::F16(_) => isa.halves(part(parameters, 0)),
        Scale::E8m0(_) => isa.powers(part(parameters, 0)),
    }
}

/// How far a block's rows lie below their codes: `m`, or zero points in steps of `d`.
#[inline(always)]
fn depth<I: Isa, F: Format>(isa: I, parameters: &[u8]) -> I::Floats {
    match (F::LAYOUT.m, F::LAYOUT.zeros) {
        (Some(at), _) => isa.halves(part(parameters, at)),
        (None, Some(at)) => isa.mul(scale::<I, F>(isa, parameters), isa.unsigned(part(parameters, at))),
        (None, None) => isa.splat(0.0),
    }
}

/// The factors of the depth: the sum of the columns, or of the groups weighted with their integer minimums; and its
/// scale.
#[inline(always)]
fn lowered<I: Isa, F: Format>(isa: I, parameters: &[u8], x: &[i32]) -> (I::Floats, f32) {
    let terms = const { F::GEOMETRY.n_units() };
    let Some(at) = F::LAYOUT.mins else { return (isa.splat(1.0), float(x, terms)) };
    let mut lowered = isa.splat_int(0);
    for pair in 0..F::GEOMETRY.n_groups() / 2 {
        lowered = isa.dot_pair(lowered, part(parameters, at + pair * 2 * ROWS), x[terms + 1 + pair]);
    }
    (isa.to_floats(lowered), float(x, terms))
}

/// Word `at` of a block of activations, an f32.
#[inline(always)]
fn float(x: &[i32], at: usize) -> f32 {
    f32::from_bits(x[at] as u32)
}

/// Adds to the sums of each panel the products of its Q quads with those of the block from quad `first` on.
#[inline(always)]
fn dot_quads<I: Isa, F: Format, const T: usize, const N: usize, const Q: usize>(
    isa: I,
    mut sums: [I::Ints; N],
    weights: &[[I::Bytes; Q]; N],
    x: &[i32],
    first: usize,
) -> [I::Ints; N] {
    let first = const { columns_at(F::GEOMETRY) } + first;
    // With few rows, each panel has two independent sums; groups of half a unit are independent anyway.
    let apart = if T <= 2 && Q == QUADS { 2 } else { 1 };
    let mut odd = [isa.splat_int(0); N];
    for q in 0..Q {
        for n in 0..N {
            let sum = if q % apart == 1 { &mut odd[n] } else { &mut sums[n] };
            *sum = if F::IS_WIDE {
                isa.dot_codes(*sum, weights[n][q], x[first + q])
            } else {
                isa.dot(*sum, weights[n][q], x[first + q])
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

/// The start of a group's sums: its bias, if the format has a fixed zero that the dot product does not take off.
#[inline(always)]
fn start<I: Isa, F: Format>(isa: I, x: &[i32], group: usize) -> I::Ints {
    match const { Terms::of(F::GEOMETRY) } {
        Terms::Biases { .. } if I::RAISED || !F::IS_WIDE => isa.splat_int(x[F::GEOMETRY.n_units() + group]),
        _ => isa.splat_int(0),
    }
}

/// The values of a unit's codes, a vector for each of Q quads from `first` on.
#[inline(always)]
fn unpack<I: Isa, F: Format, const Q: usize>(isa: I, codes: &[u8], first: usize) -> [I::Bytes; Q] {
    let mut quads = [isa.bytes(part(codes, 0)); Q];
    for (index, quad) in quads.iter_mut().enumerate() {
        let q = first + index;
        *quad = match F::LAYOUT.code_bits {
            8 => isa.codes(vector(isa, codes, q)),
            5 => isa.or(nibbles(isa, codes, q), isa.bits(vector(isa, codes, 4), q as i32 - 4, 16)),
            6 => {
                let high = isa.bits(vector(isa, codes, 4 + q / 4), 2 * (q as i32 % 4) - 4, 48);
                isa.or(nibbles(isa, codes, q), high)
            }
            4 => nibbles(isa, codes, q),
            _ => {
                let pairs = isa.bits(vector(isa, codes, q / 4), 2 * (q as i32 % 4), 3);
                match F::LAYOUT.code_bits {
                    3 => isa.or(pairs, isa.bits(vector(isa, codes, 2), q as i32 - 2, 4)),
                    _ => pairs,
                }
            }
        };
        if let Some(table) = F::TABLE {
            *quad = isa.lookup(table, *quad);
            if F::IS_WIDE {
                *quad = isa.codes(*quad);
            }
        }
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
