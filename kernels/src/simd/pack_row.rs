//! Packs rows of an integer format into panels: four columns at a time, by the masks and shifts that the format's
//! definition gives.

use super::{
    format::{BlockLayout, UNIT},
    isa::{QUAD_BYTES, ROWS},
};
use crate::quant::{Definition, Integer, Minimum, Parts, Scale, Zero};

/// A format whose rows can be packed.
pub(super) trait PackRow {
    /// Packs a row, its blocks or values and their parameters, as row `place` of `panel`, which is zeros there.
    fn pack_row(values: &[u8], parameters: &[u8], place: usize, panel: &mut [u8]);
}

impl<I: Integer> PackRow for I {
    fn pack_row(values: &[u8], parameters: &[u8], place: usize, panel: &mut [u8]) {
        pack_blocks(const { &I::DEFINITION }, values, parameters, place, panel);
    }
}

// One function for all formats where code size counts.
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
fn pack_blocks(definition: &Definition, values: &[u8], parameters: &[u8], place: usize, panel: &mut [u8]) {
    let layout = BlockLayout::of(definition);
    let n_blocks = values.len() / definition.bytes;
    for (i, out) in panel.chunks_exact_mut(layout.bytes()).take(n_blocks).enumerate() {
        let (codes, out) = out.split_at_mut(layout.code_bytes);
        let (block, parameters) = definition.block(values, parameters, i);
        pack_parameters(definition, &layout, parameters, place, out);
        if matches!(definition.scale, Scale::E8m0(at) if parameters[at] < Scale::SMALLEST) {
            continue; // a scale that counts as 0: its codes stay those of 0
        }
        for (unit, out) in codes.chunks_exact_mut(layout.unit_bytes).enumerate() {
            let mut quads = [0; UNIT / 4];
            for (q, quad) in quads.iter_mut().enumerate() {
                *quad = definition.quad(block, unit * UNIT + 4 * q);
            }
            let vectors = vectors(layout.code_bits, &quads);
            for (out, vector) in out.chunks_exact_mut(QUAD_BYTES).zip(vectors) {
                out[4 * place..4 * place + 4].copy_from_slice(&vector.to_le_bytes());
            }
        }
    }
}

/// One row's four bytes of each vector of a unit, from its eight quads, as `Format` draws them.
#[inline(always)]
fn vectors(code_bits: usize, quads: &[u32; UNIT / 4]) -> [u32; UNIT / 4] {
    let mut vectors = *quads;
    // Some bits of each quad, from `from` on, side by side.
    let join = |quads: &[u32], from: usize, bits: usize| {
        let mask = 0x0101_0101 * (0xff >> (8 - bits));
        quads.iter().enumerate().fold(0, |joined, (q, quad)| joined | (quad >> from & mask) << (q * bits))
    };
    match code_bits {
        8 => {}
        2 | 3 => {
            vectors = [join(&quads[..4], 0, 2), join(&quads[4..], 0, 2), join(quads, 2, 1), 0, 0, 0, 0, 0];
        }
        _ => {
            for v in 0..4 {
                vectors[v] = join(&[quads[v], quads[v + 4]], 0, 4);
            }
            if code_bits == 5 {
                vectors[4] = join(quads, 4, 1);
            }
            if code_bits == 6 {
                vectors[4] = join(&quads[..4], 4, 2);
                vectors[5] = join(&quads[4..], 4, 2);
            }
        }
    }
    vectors
}

/// Packs a row's parameters, from a block's.
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
fn pack_parameters(
    definition: &Definition,
    layout: &BlockLayout,
    parameters: &[u8],
    place: usize,
    out: &mut [u8],
) {
    match definition.scale {
        Scale::F16(at) => out[2 * place..2 * place + 2].copy_from_slice(&parameters[at..at + 2]),
        Scale::E8m0(at) => out[place] = parameters[at].max(Scale::SMALLEST),
    }
    if let (Some(to), Some(minimum)) = (layout.m, definition.minimum) {
        let (at, sign) = match minimum {
            Minimum::Subtracted(at) => (at, 0),
            Minimum::Added(at) => (at, 0x80),
        };
        let to = to + 2 * place;
        out[to..to + 2].copy_from_slice(&[parameters[at], parameters[at + 1] ^ sign]);
    }
    if let (Some(to), Zero::At(at)) = (layout.zeros, definition.zero) {
        out[to + place] = parameters[at];
    }
    let Some(scales) = layout.scales else { return };
    let mut parts = Parts::default();
    definition.read_steps(parameters, &mut parts);
    let n_groups = definition.geometry().n_groups();
    for (g, scale) in parts.scales[..n_groups].iter().enumerate() {
        out[scales + g * ROWS + place] = *scale as u8;
    }
    let Some(mins) = layout.mins else { return };
    for (g, min) in parts.mins[..n_groups].iter().enumerate() {
        out[mins + g / 2 * 2 * ROWS + 2 * place + g % 2] = *min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MatrixView, WeightFormat, noise::noise_bytes};

    #[test]
    fn four_columns_at_a_time_are_the_codes_that_the_reader_finds() {
        for format in WeightFormat::ALL {
            let Some(definition) = format.definition() else { continue };
            let bytes = noise_bytes(3, format.matrix_bytes(2, 3 * definition.cols));
            let matrix = MatrixView::new(format, 2, 3 * definition.cols, &bytes).unwrap();
            for (row, block) in [(0, 0), (0, 2), (1, 1)] {
                let mut parts = Parts::default();
                matrix.read_block(row, block, &mut parts);
                let (block, _) = definition.block(matrix.values(row), matrix.scales(row), block);
                let quads = (0..definition.cols).step_by(4).map(|column| definition.quad(block, column));
                let codes: Vec<u8> = quads.flat_map(u32::to_le_bytes).collect();
                assert_eq!(codes, parts.codes[..definition.cols], "{format}");
            }
        }
    }
}
