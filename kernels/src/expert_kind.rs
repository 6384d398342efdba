//! The function between an expert's projections, and whether these have biases.

use std::str::FromStr;

use crate::quant::ShapeError;

/// The function of an expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExpertKind {
    /// `down(silu(gate(x)) * up(x))`, without biases: most families.
    #[default]
    Silu,
    /// `down((up(x) + 1) * g * sigmoid(1.702 g))` with `g = gate(x)`, a bias for each projection, g cut to at most 7 and
    /// `up(x)` to between -7 and 7: GPT-OSS.
    ClampedSwiglu,
}

impl ExpertKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Silu, Self::ClampedSwiglu];

    /// What a format's name ends with for this kind.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Silu => "",
            Self::ClampedSwiglu => "/clamped-swiglu",
        }
    }

    /// Whether each projection has a bias.
    pub const fn has_biases(self) -> bool {
        match self {
            Self::Silu => false,
            Self::ClampedSwiglu => true,
        }
    }
}

impl FromStr for ExpertKind {
    type Err = ShapeError;

    /// The suffix of a format's name, the slash left out.
    fn from_str(name: &str) -> Result<Self, ShapeError> {
        let known = Self::ALL.into_iter().find(|kind| kind.suffix().strip_prefix('/') == Some(name));
        known.ok_or_else(|| ShapeError::UnknownFormat(name.chars().take(32).collect()))
    }
}
