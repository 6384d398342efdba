//! What a DISPATCH is to be answered with, which the flags of all its frames say.

use crate::error::DecodeError;
use crate::header::Flags;

/// What a dispatch is to be answered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reply {
    /// The rows.
    #[default]
    Rows,
    /// The rows, and the products by which they can be checked.
    RowsAndProducts,
    /// A digest of each expert's rows.
    Digests,
}

impl Reply {
    /// The flags that say it.
    pub(crate) const fn flags(self) -> Flags {
        match self {
            Self::Rows => Flags::NONE,
            Self::RowsAndProducts => Flags::PRODUCTS,
            Self::Digests => Flags::DIGESTS,
        }
    }

    /// What the flags of a frame say.
    pub(crate) fn of(flags: Flags) -> Result<Self, DecodeError> {
        match (flags.has(Flags::PRODUCTS), flags.has(Flags::DIGESTS)) {
            (false, false) => Ok(Self::Rows),
            (true, false) => Ok(Self::RowsAndProducts),
            (false, true) => Ok(Self::Digests),
            (true, true) => Err(DecodeError::Mixed { reason: "products and digests wanted" }),
        }
    }
}
