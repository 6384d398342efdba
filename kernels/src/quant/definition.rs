//! An integer format as data: where the bits of a block lie, and what they mean.
//!
//! A format's file holds its [`Definition`]. Reading and writing a block, packing panels, random weights and the tests'
//! expected numbers follow from it. `shader/shared/weights_*.wgsl` say what a shader does with the same bytes.

use half::f16;

use super::{
    affine_scales::{read_scales, write_scales},
    geometry::{Geometry, MAX_GROUPS, UNIT},
    parts::Parts,
    planes::{LOW_BITS, Plane, read_planes, write_planes},
};

/// An integer format. A block is a run of columns of one row with their parameters; fields count bytes from its start, or
/// from the start of its parameters where those have a plane of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Definition {
    /// Columns of a block: those that share `d`, `m` and the zero.
    pub(crate) cols: usize,
    /// Columns of a group: those that share an integer scale and minimum.
    pub(crate) group: usize,
    /// The bytes of a block, without parameters that lie elsewhere.
    pub(crate) bytes: usize,
    /// The bytes of a block's parameters in a plane behind all blocks; 0 where they lie in the block.
    pub(crate) plane_bytes: usize,
    /// The bits of the codes, the lowest first.
    pub(crate) codes: &'static [Plane],
    /// XORed with the codes, so that they count from 0.
    pub(crate) flip: u8,
    /// The values of the codes, where a code is not its own value: at most sixteen.
    pub(crate) table: Option<&'static [u8; 16]>,
    /// `d`.
    pub(crate) scale: Scale,
    /// `m`.
    pub(crate) minimum: Option<Minimum>,
    /// The value that stands for weight 0, where it is not 0 itself.
    pub(crate) zero: Zero,
    /// Integer scales and minimums of the groups.
    pub(crate) steps: Steps,
    /// Its type number in a GGUF.
    pub(crate) gguf: Option<u32>,
}

/// The scale of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    /// An f16 at this byte.
    F16(usize),
    /// A byte `e` at this place, for `2^(e - 128)`: half of the standard's e8m0, since our values are twice those of
    /// its e2m1.
    E8m0(usize),
}

impl Scale {
    /// The byte of the smallest power of two that integer dot products use: 2^-32.
    pub(crate) const SMALLEST: u8 = 128 - 32;

    /// `2^(e - 128)`, exactly: the two smallest are subnormal.
    pub(crate) fn power(e: u8) -> f32 {
        f32::from_bits(if e < 2 { 0x20_0000 << e } else { u32::from(e - 1) << 23 })
    }

    /// The byte of the power of two that is `d`, or of the next one below.
    pub(super) fn exponent(d: f32) -> u8 {
        let bits = d.to_bits();
        if bits < 1 << 23 { (bits >> 22) as u8 } else { (bits >> 23) as u8 + 1 }
    }
}

/// The minimum of a block, an f16.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Minimum {
    /// It is subtracted.
    Subtracted(usize),
    /// It is added: [`Parts::m`] is its negative.
    Added(usize),
}

/// The value that stands for weight 0.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Zero {
    /// The same in all blocks.
    Fixed(u8),
    /// In each block the byte at this place.
    At(usize),
}

/// The integer scales of a block's groups, and behind them their minimums if the format has any.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Steps {
    /// One group, or groups without integer scales.
    None,
    /// Numbers in planes, the lowest bits first; a scale is its number less `zero`.
    Planes {
        /// Their bits.
        planes: &'static [Plane],
        /// The number of scale 0.
        zero: i8,
        /// The largest magnitude of a scale.
        top: u8,
    },
    /// Eight scales and eight minimums of six bits in twelve bytes, as `affine_scales` draws them.
    Affine(usize),
}

impl Definition {
    /// Blocks of 32 columns, without anything else.
    pub(crate) const BLOCK: Self = Self {
        cols: UNIT,
        group: UNIT,
        bytes: 0,
        plane_bytes: 0,
        codes: &[],
        flip: 0,
        table: None,
        scale: Scale::F16(0),
        minimum: None,
        zero: Zero::Fixed(0),
        steps: Steps::None,
        gguf: None,
    };

    /// Its geometry.
    pub(crate) const fn geometry(&self) -> Geometry {
        let has_minimums = self.minimum.is_some();
        let zero = match self.zero {
            Zero::Fixed(zero) if !has_minimums => Some(zero),
            _ => None,
        };
        Geometry { cols: self.cols, group: self.group, has_minimums, zero }
    }

    /// The bits of a code.
    pub(crate) const fn code_bits(&self) -> usize {
        let (mut bits, mut i) = (0, 0);
        while i < self.codes.len() {
            bits += self.codes[i].bits;
            i += 1;
        }
        bits
    }

    /// The largest value of a code.
    pub(crate) const fn top(&self) -> u8 {
        let Some(table) = self.table else { return (u16::MAX >> (16 - self.code_bits())) as u8 };
        let (mut top, mut i) = (0, 0);
        while i < table.len() {
            if table[i] > top {
                top = table[i];
            }
            i += 1;
        }
        top
    }

    /// The value of a code.
    #[inline(always)]
    pub(crate) fn value(&self, code: u8) -> u8 {
        match self.table {
            Some(table) => table[usize::from(code & 15)],
            None => code,
        }
    }

    /// The largest integer scale of a group.
    pub(crate) const fn top_step(&self) -> u8 {
        match self.steps {
            Steps::None => 1,
            Steps::Planes { top, .. } => top,
            Steps::Affine(_) => 63,
        }
    }

    /// The bytes of block `i` of a row, and the bytes that contain its parameters: the same unless parameters have a
    /// plane.
    #[inline]
    pub(crate) fn block<'a>(&self, blocks: &'a [u8], parameters: &'a [u8], i: usize) -> (&'a [u8], &'a [u8]) {
        let block = &blocks[i * self.bytes..][..self.bytes];
        match self.plane_bytes {
            0 => (block, block),
            n => (block, &parameters[i * n..][..n]),
        }
    }

    /// Opens a block; fields that the format lacks stay as [`Parts::default`] has them.
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    pub(crate) fn read(&self, block: &[u8], parameters: &[u8], parts: &mut Parts) {
        let codes = &mut parts.codes[..self.cols];
        read_planes(self.codes, block, codes);
        if self.flip != 0 {
            codes.iter_mut().for_each(|code| *code ^= self.flip);
        }
        self.read_floats(parameters, parts);
        self.read_steps(parameters, parts);
    }

    /// The first `out.len()` values of an opened block.
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    pub(crate) fn values(&self, parts: &Parts, out: &mut [f32]) {
        let groups = out.chunks_mut(self.group).zip(parts.codes.chunks(self.group));
        for ((out, codes), (&scale, &min)) in groups.zip(parts.scales.iter().zip(&parts.mins)) {
            let (scale, min) = (parts.d * f32::from(scale), parts.m * f32::from(min));
            for (value, &code) in out.iter_mut().zip(codes) {
                *value = scale * (f32::from(self.value(code)) - f32::from(parts.zero)) - min;
            }
        }
    }

    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    fn read_floats(&self, bytes: &[u8], parts: &mut Parts) {
        let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
        parts.d = match self.scale {
            Scale::F16(at) => half(at),
            Scale::E8m0(at) => Scale::power(bytes[at]),
        };
        match self.minimum {
            Some(Minimum::Subtracted(at)) => parts.m = half(at),
            Some(Minimum::Added(at)) => parts.m = -half(at),
            None => {}
        }
        parts.zero = match self.zero {
            Zero::Fixed(zero) => zero,
            Zero::At(at) => bytes[at],
        };
    }

    /// Reads the integer scales and minimums of a block.
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    pub(crate) fn read_steps(&self, bytes: &[u8], parts: &mut Parts) {
        match self.steps {
            Steps::None => {}
            Steps::Planes { planes, zero, .. } => {
                let mut numbers = [0; 2 * MAX_GROUPS];
                let n_groups = self.n_groups();
                read_planes(planes, bytes, &mut numbers[..self.n_steps()]);
                for (scale, number) in parts.scales.iter_mut().zip(&numbers[..n_groups]) {
                    *scale = (*number as i8).wrapping_sub(zero);
                }
                if self.minimum.is_some() {
                    parts.mins[..n_groups].copy_from_slice(&numbers[n_groups..][..n_groups]);
                }
            }
            Steps::Affine(at) => read_scales(&bytes[at..at + 12], parts),
        }
    }

    /// Writes a block and its parameters, in the order of [`Self::block`]; `parameters` is `None` where they lie in the
    /// block.
    pub(crate) fn write(&self, parts: &Parts, block: &mut [u8], parameters: Option<&mut [u8]>) {
        let mut codes = parts.codes;
        codes.iter_mut().for_each(|code| *code ^= self.flip);
        block.fill(0);
        write_planes(self.codes, &codes[..self.cols], block);
        self.write_parameters(parts, parameters.unwrap_or(block));
    }

    fn write_parameters(&self, parts: &Parts, bytes: &mut [u8]) {
        let mut put_half = |at: usize, value: f32| {
            bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        };
        if let Scale::F16(at) = self.scale {
            put_half(at, parts.d);
        }
        match self.minimum {
            Some(Minimum::Subtracted(at)) => put_half(at, parts.m),
            Some(Minimum::Added(at)) => put_half(at, -parts.m),
            None => {}
        }
        if let Scale::E8m0(at) = self.scale {
            bytes[at] = Scale::exponent(parts.d);
        }
        if let Zero::At(at) = self.zero {
            bytes[at] = parts.zero;
        }
        match self.steps {
            Steps::None => {}
            Steps::Planes { planes, zero, .. } => {
                let mut numbers = [0; 2 * MAX_GROUPS];
                let n_groups = self.n_groups();
                for (number, scale) in numbers[..n_groups].iter_mut().zip(parts.scales) {
                    *number = scale.wrapping_add(zero) as u8;
                }
                numbers[n_groups..2 * n_groups].copy_from_slice(&parts.mins[..n_groups]);
                write_planes(planes, &numbers[..self.n_steps()], bytes);
            }
            Steps::Affine(at) => write_scales(parts, &mut bytes[at..at + 12]),
        }
    }

    const fn n_groups(&self) -> usize {
        self.cols / self.group
    }

    /// The integer scales and minimums of a block.
    const fn n_steps(&self) -> usize {
        self.n_groups() * if self.minimum.is_some() { 2 } else { 1 }
    }

    /// The codes of columns `column` to `column + 3`, a multiple of 4, as they are stored: a byte each, the first in the
    /// lowest.
    #[inline(always)]
    pub(crate) fn quad(&self, block: &[u8], column: usize) -> u32 {
        let (mut quad, mut place) = (u32::from(self.flip) * LOW_BITS, 0);
        for plane in self.codes {
            quad ^= plane.quad(block, column) << place;
            place += plane.bits;
        }
        quad
    }
}
