//! How an expert is stored: the formats of its matrices, and its kind.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    expert_kind::ExpertKind,
    quant::{ShapeError, WeightFormat},
};

/// How an expert is stored. Mixes of llama.cpp give down more bits than gate and up.
///
/// Its name is the format's, or `q4_K+q6_K`: that of gate and up, then that of down. A kind other than the usual one
/// follows a slash: `mxfp4/clamped-swiglu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ExpertFormat {
    /// Of the gate and up projections (F, D).
    pub gate_up: WeightFormat,
    /// Of the down projection (D, F).
    pub down: WeightFormat,
    /// The function between them, and whether there are biases.
    pub kind: ExpertKind,
}

impl ExpertFormat {
    /// Experts of the usual kind.
    pub const fn new(gate_up: WeightFormat, down: WeightFormat) -> Self {
        Self { gate_up, down, kind: ExpertKind::Silu }
    }

    /// One format for all three, of the usual kind.
    pub const fn uniform(format: WeightFormat) -> Self {
        Self::new(format, format)
    }

    /// The same formats for experts of another kind.
    pub const fn of_kind(self, kind: ExpertKind) -> Self {
        Self { kind, ..self }
    }
}

impl From<WeightFormat> for ExpertFormat {
    fn from(format: WeightFormat) -> Self {
        Self::uniform(format)
    }
}

impl fmt::Display for ExpertFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gate_up == self.down {
            true => f.write_str(self.gate_up.name())?,
            false => write!(f, "{}+{}", self.gate_up, self.down)?,
        }
        f.write_str(self.kind.suffix())
    }
}

impl FromStr for ExpertFormat {
    type Err = ShapeError;

    fn from_str(name: &str) -> Result<Self, ShapeError> {
        let (formats, kind) = match name.split_once('/') {
            Some((formats, kind)) => (formats, kind.parse()?),
            None => (name, ExpertKind::Silu),
        };
        let format = match formats.split_once('+') {
            Some((gate_up, down)) => Self::new(gate_up.parse()?, down.parse()?),
            None => Self::uniform(formats.parse()?),
        };
        Ok(format.of_kind(kind))
    }
}

impl From<ExpertFormat> for String {
    fn from(format: ExpertFormat) -> Self {
        format.to_string()
    }
}

impl TryFrom<String> for ExpertFormat {
    type Error = ShapeError;

    fn try_from(name: String) -> Result<Self, ShapeError> {
        name.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for gate_up in WeightFormat::ALL {
            for down in WeightFormat::ALL {
                for kind in ExpertKind::ALL {
                    let format = ExpertFormat { gate_up, down, kind };
                    assert_eq!(format.to_string().parse(), Ok(format));
                }
            }
        }
        assert_eq!(ExpertFormat::uniform(WeightFormat::Q4K).to_string(), "q4_K");
        let mixed = ExpertFormat::new(WeightFormat::Q4K, WeightFormat::Q6K);
        assert_eq!(mixed.to_string(), "q4_K+q6_K");
        assert_eq!(mixed.of_kind(ExpertKind::ClampedSwiglu).to_string(), "q4_K+q6_K/clamped-swiglu");
        for wrong in
            ["", "+", "q4_K+", "q4_K+q9_K", "q4_K+q6_K+q6_K", "q4_K/", "q4_K/silu", "/clamped-swiglu"]
        {
            assert!(wrong.parse::<ExpertFormat>().is_err(), "{wrong}");
        }
    }
}
