//! The compile-time description of a kernel's format, and where a block of it lies in a panel.

/// The columns whose codes a kernel holds in registers at once.
pub(super) use crate::quant::UNIT;
use crate::quant::{Definition, Geometry, Integer, Scale};

use super::isa::{Isa, QUAD_BYTES, ROWS};

/// A format whose panels can be multiplied.
pub(super) trait Panel {
    /// The most rows that meet a panel at once; an instruction set may take fewer.
    const MAX_TILE: usize = 16;

    /// `panels[n][row] . x[t]` for N panels and T rows of activations of this format.
    fn product<I: Isa, const T: usize, const N: usize>(
        isa: I,
        panels: [&[u8]; N],
        x: [&[i32]; T],
    ) -> [[I::Floats; T]; N];
}

/// An integer format, packed. A panel is its rows' blocks, one after the other, so that it is read straight on: for each
/// block its codes, then its parameters.
///
/// * its codes: for each unit of 32 columns, that is eight quads of four, vectors of 64 bytes (16 rows of 4 columns).
///   Of eight bits, one vector a quad. Of four to six, four vectors with quad `v` in the low nibbles of vector `v` and quad
///   `v + 4` in the high ones; then, of five bits, one vector whose bit `q` is bit 4 of quad `q`; of six bits, two vectors
///   whose bits `2 q, 2 q + 1` are bits 4 and 5 of quad `q`, and of quad `q + 4`. Of two and three, two vectors whose bits
///   `2 q, 2 q + 1` are the lowest of quad `q`, and of quad `q + 4`; then, of three bits, one vector whose bit `q` is bit 2
///   of quad `q`;
/// * its parameters, each for 16 rows: `d` as f16, or its exponent as u8 if it is a power of two; `m` as f16 in
///   formats with minimums; the zero as u8 where it differs between blocks; with integer scales, an i8 for each group;
///   with integer minimums, for every two groups pairs of u8.
pub(super) trait Format: Integer {
    const GEOMETRY: Geometry = Self::DEFINITION.geometry();
    const LAYOUT: BlockLayout = BlockLayout::of(&Self::DEFINITION);
    /// The values of codes, where the panel's own bits do not give them.
    const TABLE: Option<&'static [u8; 16]> = Self::DEFINITION.table;
    /// Whether values need the eighth bit.
    const IS_WIDE: bool = Self::DEFINITION.top() > 127;
}

impl<F: Integer> Format for F {}

/// Where the parts of a panel's block lie. The places of parameters count from where those start, behind the codes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockLayout {
    /// The bits of a code.
    pub(crate) code_bits: usize,
    /// The bytes of a unit's codes.
    pub(crate) unit_bytes: usize,
    /// The bytes of a block's codes.
    pub(crate) code_bytes: usize,
    /// The bytes of a block's parameters.
    pub(crate) parameter_bytes: usize,
    /// `m`, if the format has minimums.
    pub(crate) m: Option<usize>,
    /// Zero points, if they differ between blocks.
    pub(crate) zeros: Option<usize>,
    /// Integer scales, if a block has several groups.
    pub(crate) scales: Option<usize>,
    /// Integer minimums, if a block has several groups and minimums.
    pub(crate) mins: Option<usize>,
}

impl BlockLayout {
    /// The bytes of a block of sixteen rows.
    pub(crate) const fn bytes(&self) -> usize {
        self.parameter_bytes + self.code_bytes
    }

    pub(crate) const fn of(definition: &Definition) -> Self {
        let geometry = definition.geometry();
        let n_groups = geometry.n_groups();
        let code_bits = definition.code_bits();
        let unit_bytes = QUAD_BYTES * code_bits;
        let several = n_groups > 1;
        let scale_bytes = match definition.scale {
            Scale::F16(_) => 2 * ROWS,
            Scale::E8m0(_) => ROWS,
        };
        let m = if geometry.has_minimums { Some(scale_bytes) } else { None };
        let zeros = if !geometry.has_minimums && geometry.zero.is_none() { Some(scale_bytes) } else { None };
        let after =
            scale_bytes + if m.is_some() { 2 * ROWS } else { 0 } + if zeros.is_some() { ROWS } else { 0 };
        let after_scales = after + if several { n_groups * ROWS } else { 0 };
        let with_mins = several && geometry.has_minimums;
        Self {
            code_bits,
            unit_bytes,
            code_bytes: geometry.cols / UNIT * unit_bytes,
            parameter_bytes: after_scales + if with_mins { n_groups * ROWS } else { 0 },
            m,
            zeros,
            scales: if several { Some(after) } else { None },
            mins: if with_mins { Some(after_scales) } else { None },
        }
    }
}
