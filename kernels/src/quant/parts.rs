//! What every integer format has in common: a block of columns, opened.
//!
//! A format's own file says where its bits lie; what they mean is said here, once, for decoding, for the integer dot
//! product and for the packing of weights alike.

use half::f16;

use super::activations::UNIT;

/// The columns of the widest block.
pub(crate) const MAX_COLS: usize = 256;
/// The most groups of a block.
pub(crate) const MAX_GROUPS: usize = 16;

/// How the columns of a format are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Columns of a block: those that share `d`, `m` and `zero`.
    pub(crate) cols: usize,
    /// Columns of a group: those that share an integer scale and minimum.
    pub(crate) group: usize,
    /// Whether values are lowered by a minimum.
    pub(crate) has_minimums: bool,
    /// The code of weight 0, where it is the same in all blocks and not 0 itself.
    pub(crate) zero: Option<u8>,
}

impl Geometry {
    pub(crate) const fn n_groups(self) -> usize {
        self.cols / self.group
    }

    /// Columns that share a scale of activations: a group, or two if groups are narrow.
    pub(crate) const fn unit(self) -> usize {
        if self.group > UNIT { self.group } else { UNIT }
    }

    pub(crate) const fn n_units(self) -> usize {
        self.cols / self.unit()
    }
}

/// A block, opened: column `i` of group `g = i / group` is `d * scales[g] * (codes[i] - zero) - m * mins[g]`, rounded
/// after each operation from the left.
///
/// Formats without integer scales have the scale 1, those without minimums an `m` of 0: both change no bit.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    /// The scale, an f16 in every format.
    pub(crate) d: f32,
    /// The scale of the minimums, an f16 in every format.
    pub(crate) m: f32,
    /// The code that stands for zero.
    pub(crate) zero: u8,
    /// One for each column.
    pub(crate) codes: [u8; MAX_COLS],
    /// One for each group.
    pub(crate) scales: [i8; MAX_GROUPS],
    /// One for each group.
    pub(crate) mins: [u8; MAX_GROUPS],
}

impl Default for Parts {
    fn default() -> Self {
        Self { d: 0.0, m: 0.0, zero: 0, codes: [0; MAX_COLS], scales: [1; MAX_GROUPS], mins: [1; MAX_GROUPS] }
    }
}

impl Parts {
    /// The first `out.len()` values of the block.
    #[inline]
    pub(crate) fn values(&self, geometry: Geometry, out: &mut [f32]) {
        let groups = out.chunks_mut(geometry.group).zip(self.codes.chunks(geometry.group));
        for ((out, codes), (&scale, &min)) in groups.zip(self.scales.iter().zip(&self.mins)) {
            let (scale, min) = (self.d * f32::from(scale), self.m * f32::from(min));
            for (value, &code) in out.iter_mut().zip(codes) {
                *value = scale * (f32::from(code) - f32::from(self.zero)) - min;
            }
        }
    }
}

/// A format whose rows are whole blocks of bytes, the layout of GGUF files.
pub(super) trait Block {
    const GEOMETRY: Geometry;
    /// Of a block of `GEOMETRY.cols` columns.
    const BYTES: usize;

    /// Opens `BYTES` bytes; what it leaves alone stays as [`Parts::default`] has it.
    fn read(bytes: &[u8], parts: &mut Parts);

    /// Writes `BYTES` bytes.
    fn write(parts: &Parts, bytes: &mut [u8]);

    /// The parts nearest to `GEOMETRY.cols` values.
    fn fit(values: &[f32], parts: &mut Parts);
}

/// Rows of `cols` values in blocks, the last one of each filled up with zeros.
pub(super) fn encode<B: Block>(cols: usize, values: &[f32]) -> Vec<u8> {
    let block_cols = B::GEOMETRY.cols;
    let rows = values.len().checked_div(cols).unwrap_or(0);
    let mut bytes = vec![0; rows * cols.div_ceil(block_cols) * B::BYTES];
    let mut blocks = bytes.chunks_exact_mut(B::BYTES);
    let mut parts = Parts::default();
    for row in values.chunks_exact(cols.max(1)) {
        for (values, bytes) in row.chunks(block_cols).zip(&mut blocks) {
            let mut padded = [0.0; MAX_COLS];
            padded[..values.len()].copy_from_slice(values);
            B::fit(&padded[..block_cols], &mut parts);
            B::write(&parts, bytes);
        }
    }
    bytes
}

/// One row of blocks, to the first `out.len()` columns.
pub(super) fn decode_row<B: Block>(bytes: &[u8], out: &mut [f32]) {
    let mut parts = Parts::default();
    for (bytes, out) in bytes.chunks_exact(B::BYTES).zip(out.chunks_mut(B::GEOMETRY.cols)) {
        B::read(bytes, &mut parts);
        parts.values(B::GEOMETRY, out);
    }
}

/// The f16 at `at`.
pub(super) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Writes `value` as f16 at `at`.
pub(super) fn put_f16(bytes: &mut [u8], at: usize, value: f32) {
    bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// The f16 nearest to `value`, as f32: the largest there is for what lies beyond, 0 for what is not a number.
pub(super) fn to_f16(value: f32) -> f32 {
    let max = f16::MAX.to_f32();
    if value.is_nan() { 0.0 } else { f16::from_f32(value.clamp(-max, max)).to_f32() }
}

/// `1 / x`, or 0 for 0.
pub(super) fn reciprocal(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The value of the largest magnitude, with its sign; the first of equals.
pub(super) fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |m: f32, &x| if x.abs() > m.abs() { x } else { m })
}

/// The nearest integer to `x`, ties to even, where `|x|` is at most 2^22. An addition and a subtraction, which every
/// processor has for whole vectors: `f32::round` is a call where the instruction is not known to be there.
pub(super) fn nearest(x: f32) -> f32 {
    const BIAS: f32 = 12_582_912.0; // 1.5 x 2^23: above it, one step is 1
    (x + BIAS) - BIAS
}
