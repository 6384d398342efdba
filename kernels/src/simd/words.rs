//! Panels packed straight from the bytes of the formats that large models come in: four columns of a row at a time, by
//! masks and shifts, where `pack` opens a block into single codes. The same bytes, many times sooner.

use super::{
    format::{BlockLayout, UNIT},
    isa::{QUAD_BYTES, ROWS},
};
use crate::{MatrixView, WeightFormat};

/// The lower nibble of each byte.
const NIBBLES: u32 = 0x0f0f_0f0f;
/// The lowest two bits of each byte.
const PAIRS: u32 = 0x0303_0303;

/// Packs the sixteen rows from `first_row` on, as `PackedShape::pack_panel` does; false, and nothing done, for formats
/// without a short way.
pub(super) fn pack_panel(
    matrix: &MatrixView<'_>,
    first_row: usize,
    layout: BlockLayout,
    codes: &mut [u8],
    parameters: &mut [u8],
) -> bool {
    let pack = match matrix.format() {
        WeightFormat::Q4_0 => pack::<Q4_0>,
        WeightFormat::Q8_0 => pack::<Q8_0>,
        WeightFormat::Int4G128 => pack::<Int4>,
        WeightFormat::Q4K => pack::<Q4K>,
        WeightFormat::Q6K => pack::<Q6K>,
        _ => return false,
    };
    pack(matrix, first_row, layout, codes, parameters);
    true
}

/// A format whose codes are found by masks and shifts.
trait Words {
    /// The vectors of a unit of 32 columns.
    const VECTORS: usize;

    /// One row's four bytes of each vector of unit `unit`, from the codes of a block.
    fn unit(codes: &[u8], unit: usize, vectors: &mut [u32; 8]);

    /// Writes a row's parameters, from a block and its scales.
    fn parameters(block: &[u8], scales: &[u8], row: usize, layout: BlockLayout, out: &mut [u8]);

    /// The codes of a block.
    fn codes(block: &[u8]) -> &[u8];
}

fn pack<W: Words>(
    matrix: &MatrixView<'_>,
    first_row: usize,
    layout: BlockLayout,
    codes: &mut [u8],
    parameters: &mut [u8],
) {
    for row in 0..ROWS {
        let blocks = codes.chunks_exact_mut(layout.code_bytes);
        let blocks = blocks.zip(parameters.chunks_exact_mut(layout.parameter_bytes));
        for (index, (codes, parameters)) in blocks.enumerate() {
            let (block, scales) = matrix.block_bytes(first_row + row, index);
            W::parameters(block, scales, row, layout, parameters);
            for (unit, out) in codes.chunks_exact_mut(W::VECTORS * QUAD_BYTES).enumerate() {
                let mut vectors = [0; 8];
                W::unit(W::codes(block), unit, &mut vectors);
                for (out, word) in out.chunks_exact_mut(QUAD_BYTES).zip(vectors) {
                    out[4 * row..4 * row + 4].copy_from_slice(&word.to_le_bytes());
                }
            }
        }
    }
}

/// Word `i`: bytes `4 i` to `4 i + 3`.
#[inline(always)]
fn word(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes(*bytes[4 * i..].first_chunk().expect("whole blocks"))
}

fn put_half(out: &mut [u8], at: usize, row: usize, half: &[u8]) {
    out[at + 2 * row..at + 2 * row + 2].copy_from_slice(half);
}

struct Q4_0;

impl Words for Q4_0 {
    const VECTORS: usize = 4;

    /// Byte `i` holds columns `i` and `16 + i`: already as a panel wants them.
    #[inline(always)]
    fn unit(codes: &[u8], _: usize, vectors: &mut [u32; 8]) {
        for (v, vector) in vectors[..4].iter_mut().enumerate() {
            *vector = word(codes, v);
        }
    }
    fn parameters(block: &[u8], _: &[u8], row: usize, _: BlockLayout, out: &mut [u8]) {
        put_half(out, 0, row, &block[..2]);
    }
    fn codes(block: &[u8]) -> &[u8] {
        &block[2..]
    }
}

struct Q8_0;

impl Words for Q8_0 {
    const VECTORS: usize = 8;

    #[inline(always)]
    fn unit(codes: &[u8], _: usize, vectors: &mut [u32; 8]) {
        for (q, vector) in vectors.iter_mut().enumerate() {
            *vector = word(codes, q) ^ 0x8080_8080; // a code is the value and 128
        }
    }
    fn parameters(block: &[u8], _: &[u8], row: usize, _: BlockLayout, out: &mut [u8]) {
        put_half(out, 0, row, &block[..2]);
    }
    fn codes(block: &[u8]) -> &[u8] {
        &block[2..]
    }
}

struct Int4;

impl Words for Int4 {
    const VECTORS: usize = 4;

    /// Two neighbouring columns a byte.
    #[inline(always)]
    fn unit(codes: &[u8], unit: usize, vectors: &mut [u32; 8]) {
        let quad = |q: usize| {
            let bytes = &codes[unit * (UNIT / 2) + 2 * q..];
            let (first, second) = (u32::from(bytes[0]), u32::from(bytes[1]));
            first & 15 | first >> 4 << 8 | (second & 15) << 16 | second >> 4 << 24
        };
        for (v, vector) in vectors[..4].iter_mut().enumerate() {
            *vector = quad(v) | quad(v + 4) << 4;
        }
    }
    fn parameters(_: &[u8], scales: &[u8], row: usize, _: BlockLayout, out: &mut [u8]) {
        put_half(out, 0, row, scales);
    }
    fn codes(block: &[u8]) -> &[u8] {
        block
    }
}

struct Q4K;

impl Words for Q4K {
    const VECTORS: usize = 4;

    /// Of each 64 columns, the first 32 in the low nibbles of 32 bytes.
    #[inline(always)]
    fn unit(codes: &[u8], unit: usize, vectors: &mut [u32; 8]) {
        let bytes = &codes[unit / 2 * UNIT..][..UNIT];
        let quad = |q: usize| word(bytes, q) >> (unit % 2 * 4) & NIBBLES;
        for (v, vector) in vectors[..4].iter_mut().enumerate() {
            *vector = quad(v) | quad(v + 4) << 4;
        }
    }
    fn parameters(block: &[u8], _: &[u8], row: usize, layout: BlockLayout, out: &mut [u8]) {
        put_half(out, 0, row, &block[..2]);
        let (Some(m), Some(scales), Some(mins)) = (layout.m, layout.scales, layout.mins) else { return };
        put_half(out, m, row, &block[2..4]);
        let bits = &block[4..16];
        for g in 0..4 {
            let high = g + 4;
            out[scales + g * ROWS + row] = bits[g] & 63;
            out[scales + high * ROWS + row] = bits[g + 8] & 15 | bits[g] >> 6 << 4;
            let mut min = |g: usize, min: u8| out[mins + g / 2 * 2 * ROWS + 2 * row + g % 2] = min;
            min(g, bits[g + 4] & 63);
            min(high, bits[g + 8] >> 4 | bits[g + 4] >> 6 << 4);
        }
    }
    fn codes(block: &[u8]) -> &[u8] {
        &block[16..]
    }
}

struct Q6K;

impl Words for Q6K {
    const VECTORS: usize = 6;

    /// Of each 128 columns, nibbles in 64 bytes and bits 4 and 5 in 32, as `quant::q6_k` draws them.
    #[inline(always)]
    fn unit(codes: &[u8], unit: usize, vectors: &mut [u32; 8]) {
        let (half, s) = (unit / 4, unit % 4);
        let nibbles = &codes[64 * half + s % 2 * UNIT..][..UNIT];
        let pairs = &codes[128 + 32 * half..][..UNIT];
        let quad = |q: usize| word(nibbles, q) >> (s / 2 * 4) & NIBBLES;
        for (v, vector) in vectors[..4].iter_mut().enumerate() {
            *vector = quad(v) | quad(v + 4) << 4;
        }
        for high in 0..2 {
            let pair = |q: usize| (word(pairs, 4 * high + q) >> (2 * s) & PAIRS) << (2 * q);
            vectors[4 + high] = pair(0) | pair(1) | pair(2) | pair(3);
        }
    }
    fn parameters(block: &[u8], _: &[u8], row: usize, layout: BlockLayout, out: &mut [u8]) {
        put_half(out, 0, row, &block[208..210]);
        let Some(scales) = layout.scales else { return };
        for (g, scale) in block[192..208].iter().enumerate() {
            out[scales + g * ROWS + row] = *scale;
        }
    }
    fn codes(block: &[u8]) -> &[u8] {
        block
    }
}
