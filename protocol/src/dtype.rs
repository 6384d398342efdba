//! The number formats of activations on the wire, and how many bytes a row takes in each. Converting to and from
//! f32 is [`crate::tensor`]'s; the formats of weights are `moex-kernels`'.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How the values of one row (D,) are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE half precision, 2 bytes a value.
    #[default]
    F16,
    /// The upper half of an f32, 2 bytes a value.
    Bf16,
    /// Per row an f16 scale, then one signed byte a value.
    Int8,
    /// Per group of [`INT4_GROUP`] values an f16 scale, then half a byte a value.
    Int4,
}

/// Values that share a scale in [`Dtype::Int4`]. The last group of a row may be shorter; its bytes are rounded up.
pub const INT4_GROUP: usize = 128;

impl Dtype {
    /// All of them, in the order of their wire values.
    pub const ALL: [Self; 4] = [Self::F16, Self::Bf16, Self::Int8, Self::Int4];

    /// Bytes of one row of `hidden` values.
    pub const fn row_bytes(self, hidden: usize) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2 * hidden,
            Self::Int8 => 2 + hidden,
            // A scale a group; only the last group can have an odd number of values.
            Self::Int4 => 2 * hidden.div_ceil(INT4_GROUP) + hidden.div_ceil(2),
        }
    }

    /// The name in text: `f16`, `bf16`, `int8`, `int4`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// The header's byte.
    pub const fn wire(self) -> u8 {
        match self {
            Self::F16 => 1,
            Self::Bf16 => 2,
            Self::Int8 => 3,
            Self::Int4 => 4,
        }
    }

    /// The format that the header's byte names, if any.
    pub const fn from_wire(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::F16),
            2 => Some(Self::Bf16),
            3 => Some(Self::Int8),
            4 => Some(Self::Int4),
            _ => None,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is none of [`Dtype`]'s.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown wire format {0:?}: one of f16, bf16, int8, int4")]
pub struct ParseDtypeError(pub String);

impl FromStr for Dtype {
    type Err = ParseDtypeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name() == text)
            .ok_or_else(|| ParseDtypeError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_wire_values_come_back() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(Dtype::from_wire(dtype.wire()), Some(dtype));
            assert_eq!(serde_json::to_string(&dtype).unwrap(), format!("\"{dtype}\""));
        }
        assert!("f32".parse::<Dtype>().is_err());
        assert_eq!((Dtype::from_wire(0), Dtype::from_wire(5)), (None, None));
    }

    #[test]
    fn row_bytes_round_the_last_int4_group_up() {
        assert_eq!(Dtype::F16.row_bytes(2048), 4096);
        assert_eq!(Dtype::Int8.row_bytes(2048), 2050);
        assert_eq!(Dtype::Int4.row_bytes(2048), 16 * 66);
        assert_eq!(Dtype::Int4.row_bytes(129), 66 + 2 + 1);
        assert_eq!(Dtype::Int4.row_bytes(3), 2 + 2);
    }
}
