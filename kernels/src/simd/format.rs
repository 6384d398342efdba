//! Formats as types, so that kernels are compiled for each.

/// The columns whose codes a kernel holds in registers at once.
pub(super) use crate::quant::UNIT;
use crate::{WeightFormat, quant::Geometry};

use super::{
    isa::{Isa, QUAD_BYTES, ROWS},
    panel,
};

/// A format whose panels can be multiplied.
pub(super) trait Panel {
    /// `panels[n][row] . x[t]` for N panels and T rows of activations of this format.
    fn product<I: Isa, const T: usize, const N: usize>(
        isa: I,
        panels: [&[u8]; N],
        x: [&[i32]; T],
    ) -> [[I::Floats; T]; N];
}

/// An integer format, packed. A panel is its rows' codes, block by block, then their parameters, block by block:
///
/// * codes of a block: for each unit of 32 columns, that is eight quads of four, vectors of 64 bytes (16 rows of 4 columns):
///   of eight bits, one vector a quad; of less, four vectors with quad `v` in the low nibbles of vector `v` and quad `v + 4`
///   in the high ones; then, of five bits, one vector whose bit `q` is bit 4 of quad `q`; of six bits, two vectors whose bits
///   `2 q, 2 q + 1` are bits 4 and 5 of quad `q`, and of quad `q + 4`.
/// * parameters of a block, each for 16 rows: `d` as f16; `m` as f16 in formats with minimums; the zero as u8 where it
///   differs between blocks; with integer scales, an i8 for each group; with integer minimums, for every two groups pairs
///   of u8.
pub(super) trait Format {
    const FORMAT: WeightFormat;
    const GEOMETRY: Geometry = match Self::FORMAT.geometry() {
        Some(geometry) => geometry,
        None => panic!("an integer format"),
    };
    const LAYOUT: BlockLayout = BlockLayout::of(Self::GEOMETRY, Self::FORMAT.code_bits());
}

/// Where a block's parts lie in a panel.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockLayout {
    /// The bytes of a unit's codes.
    pub(super) unit_bytes: usize,
    /// The bytes of a block's codes.
    pub(super) code_bytes: usize,
    /// The bytes of a block's parameters.
    pub(super) parameter_bytes: usize,
    /// `m`, if the format has minimums.
    pub(super) m: Option<usize>,
    /// Zero points, if they differ between blocks.
    pub(super) zeros: Option<usize>,
    /// Integer scales, if a block has several groups.
    pub(super) scales: Option<usize>,
    /// Integer minimums, if a block has several groups and minimums.
    pub(super) mins: Option<usize>,
}

impl BlockLayout {
    pub(super) const fn of(geometry: Geometry, code_bits: u32) -> Self {
        let n_groups = geometry.n_groups();
        let unit_bytes = QUAD_BYTES * if code_bits == 8 { 8 } else { code_bits as usize };
        let several = n_groups > 1;
        let m = if geometry.has_minimums { Some(2 * ROWS) } else { None };
        let zeros = if !geometry.has_minimums && geometry.zero.is_none() { Some(2 * ROWS) } else { None };
        let after =
            2 * ROWS + if m.is_some() { 2 * ROWS } else { 0 } + if zeros.is_some() { ROWS } else { 0 };
        let after_scales = after + if several { n_groups * ROWS } else { 0 };
        let with_mins = several && geometry.has_minimums;
        Self {
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

macro_rules! formats {
    ($($name:ident),*) => {
        $(
            pub(super) struct $name;
            impl Format for $name {
                const FORMAT: WeightFormat = WeightFormat::$name;
            }
            impl Panel for $name {
                #[inline(always)]
                fn product<I: Isa, const T: usize, const N: usize>(
                    isa: I,
                    panels: [&[u8]; N],
                    x: [&[i32]; T],
                ) -> [[I::Floats; T]; N] {
                    panel::product::<I, Self, T, N>(isa, panels, x)
                }
            }
        )*
    };
}
formats!(Int4G128, Int4ZpG128, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4K, Q5K, Q6K);
