//! The formats of an expert's matrices: one for all three, or another one for the down projection.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::quant::{ShapeError, WeightFormat};

/// How an expert's matrices are stored. Mixes of llama.cpp give down more bits than gate and up.
///
/// Its name is the format's, or `q4_K+q6_K`: gate and up's, then down's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ExpertFormat {
    /// Of the gate and up projections (F, D).
    pub gate_up: WeightFormat,
    /// Of the down projection (D, F).
    pub down: WeightFormat,
}

impl ExpertFormat {
    /// One format for all three.
    pub const fn uniform(format: WeightFormat) -> Self {
        Self { gate_up: format, down: format }
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
            true => f.write_str(self.gate_up.name()),
            false => write!(f, "{}+{}", self.gate_up, self.down),
        }
    }
}

impl FromStr for ExpertFormat {
    type Err = ShapeError;

    fn from_str(name: &str) -> Result<Self, ShapeError> {
        match name.split_once('+') {
            Some((gate_up, down)) => Ok(Self { gate_up: gate_up.parse()?, down: down.parse()? }),
            None => Ok(Self::uniform(name.parse()?)),
        }
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
                let format = ExpertFormat { gate_up, down };
                assert_eq!(format.to_string().parse(), Ok(format));
            }
        }
        assert_eq!(ExpertFormat::uniform(WeightFormat::Q4K).to_string(), "q4_K");
        assert_eq!(
            ExpertFormat { gate_up: WeightFormat::Q4K, down: WeightFormat::Q6K }.to_string(),
            "q4_K+q6_K"
        );
        for wrong in ["", "+", "q4_K+", "q4_K+q9_K", "q4_K+q6_K+q6_K"] {
            assert!(wrong.parse::<ExpertFormat>().is_err(), "{wrong}");
        }
    }
}
