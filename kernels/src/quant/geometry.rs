//! How the columns of an integer format are divided.

/// The fewest columns that share a scale of activations, and the columns that are quantised at once.
pub(crate) const UNIT: usize = 32;
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
    /// The value that stands for weight 0, where it is the same in all blocks and not 0 itself.
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
