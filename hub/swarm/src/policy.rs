//! Policies: how many workers are asked for the same item, and when; and which answers are checked before they are used.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Default fraction of bytes for second copies.
pub const DEFAULT_HEDGE_BUDGET: f64 = 0.05;
/// Maximum workers asked for a work item at once.
pub const MAX_HEDGE: u8 = 4;

/// Hedging policy: how many workers are asked for the same item, and when.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hedge {
    /// This many at once, 1 to [`MAX_HEDGE`]: the paper's h.
    Fixed(u8),
    /// One, and a second when the first is later than usual.
    Adaptive {
        /// Limit for bytes of second copies, relative to those of first copies.
        budget: f64,
    },
}

impl Default for Hedge {
    fn default() -> Self {
        Self::Adaptive { budget: DEFAULT_HEDGE_BUDGET }
    }
}

/// `adaptive`, or a number of workers.
impl FromStr for Hedge {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<u8>() {
            _ if text == "adaptive" => Ok(Self::default()),
            Ok(h) if (1..=MAX_HEDGE).contains(&h) => Ok(Self::Fixed(h)),
            _ => Err(format!("it must be adaptive, or 1 to {MAX_HEDGE} workers")),
        }
    }
}

impl Hedge {
    /// Workers asked at once for a work item that no worker was asked for yet.
    pub(crate) fn copies(self) -> usize {
        match self {
            Self::Fixed(h) => usize::from(h.clamp(1, MAX_HEDGE)),
            Self::Adaptive { .. } => 1,
        }
    }

    pub(crate) fn is_adaptive(self) -> bool {
        matches!(self, Self::Adaptive { .. })
    }
}

/// What workers may hold whose keys have not proven themselves, while proven workers have free memory: one replica of one
/// block in [`Self::every`]. All such workers share these blocks, so that many keys hold no more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probation {
    /// Work items that a key must have answered truly.
    pub items: u64,
    /// One block in this many, at least 1.
    pub every: u32,
}

impl Default for Probation {
    /// 64 work items are a few tokens of a model of 48 layers.
    fn default() -> Self {
        Self { items: 64, every: 4 }
    }
}

impl Probation {
    /// Whether the block at this index of the catalog is one of those. They are spread over all layers, and the first
    /// block always is, so that every worker can prove itself.
    pub(crate) fn admits(self, index: u32) -> bool {
        index.is_multiple_of(self.every.max(1))
    }
}

/// What is known of a worker's answer before a text depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// Nothing: some answers are compared with the hub's own or with another worker's, and what was wrong may have been used.
    Audit,
    /// That it passed the hub's check: workers return by what each of their answers can be checked, and what fails is computed
    /// by the hub.
    #[default]
    Blocking,
    /// That, and that two workers at different addresses gave the same bits: what they disagree about is computed by the hub.
    Exact,
}

impl Verify {
    /// What a hub does unless told otherwise: one that computes no experts has none to check by.
    pub fn by_default(hub_computes: bool) -> Self {
        if hub_computes { Self::default() } else { Self::Audit }
    }
}

impl FromStr for Verify {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Audit, Self::Blocking, Self::Exact];
        let known = all.into_iter().find(|verify| verify.to_string() == text);
        known.ok_or_else(|| "it must be exact, blocking or audit".to_owned())
    }
}

impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Audit => "audit",
            Self::Blocking => "blocking",
            Self::Exact => "exact",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_written_in_words_or_numbers() {
        assert_eq!("adaptive".parse(), Ok(Hedge::Adaptive { budget: 0.05 }));
        assert_eq!("3".parse(), Ok(Hedge::Fixed(3)));
        for wrong in ["0", "5", "", "Adaptive", "-1"] {
            assert!(wrong.parse::<Hedge>().is_err(), "{wrong}");
        }
        assert_eq!(("audit".parse(), "blocking".parse()), (Ok(Verify::Audit), Ok(Verify::Blocking)));
        assert_eq!("exact".parse(), Ok(Verify::Exact));
        assert!("Exact".parse::<Verify>().is_err());
        assert_eq!((Hedge::Fixed(0).copies(), Hedge::Fixed(9).copies()), (1, 4));
    }
}
