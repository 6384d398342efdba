//! How much memory a native worker offers to a hub.

use std::str::FromStr;

/// What a hub's expert weights may take of a worker's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// So many bytes.
    Bytes(u64),
    /// What can be spared, divided among so many hubs: of a card's own memory nearly all that is free, else half of what the system
    /// has free.
    Auto {
        /// At least one.
        n_hubs: u64,
    },
}

/// Offered where nobody says what is free.
const UNKNOWN: u64 = 4 << 30;
/// Of a card's free memory an eighth is left to batches, and to the screen; at least this.
const LEFT_ON_CARD: u64 = 512 << 20;

impl Memory {
    /// Bytes to offer where a card has so many bytes `on_card` free, and the system so many `in_system`, as far as that is known.
    pub(super) fn bytes(self, on_card: Option<u64>, in_system: Option<u64>) -> u64 {
        let n_hubs = match self {
            Self::Bytes(bytes) => return bytes,
            Self::Auto { n_hubs } => n_hubs,
        };
        let of_card = |free: u64| free.saturating_sub(LEFT_ON_CARD.max(free / 8));
        let spared = on_card.map(of_card).or(in_system.map(|free| free / 2));
        spared.unwrap_or(UNKNOWN) / n_hubs.max(1)
    }

    /// A part of it, for one of so many hubs that share it.
    #[must_use]
    pub fn shared(self, n: usize) -> Self {
        let n = n.max(1) as u64;
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes / n),
            Self::Auto { n_hubs } => Self::Auto { n_hubs: n_hubs.max(1) * n },
        }
    }
}

impl FromStr for Memory {
    type Err = String;

    /// `auto`, or bytes as a number with an optional unit: `1000000`, `512MiB`, `4GiB`, `1.5GB`.
    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: [(&str, f64); 9] = [
            ("KiB", 1024.0),
            ("MiB", 1_048_576.0),
            ("GiB", 1_073_741_824.0),
            ("TiB", 1_099_511_627_776.0),
            ("KB", 1e3),
            ("MB", 1e6),
            ("GB", 1e9),
            ("TB", 1e12),
            ("B", 1.0),
        ];
        if text == "auto" {
            return Ok(Self::Auto { n_hubs: 1 });
        }
        let unit = UNITS.into_iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
        let (number, bytes) = unit.unwrap_or((text, 1.0));
        match number.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(Self::Bytes((number * bytes) as u64)),
            _ => Err("give a size such as 512MiB or 4GiB, or auto".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn memory_is_read_with_its_unit() {
        let cases = [
            ("4GiB", Some(4 << 30)),
            ("512 MiB", Some(512 << 20)),
            ("1.5GB", Some(1_500_000_000)),
            ("1000000", Some(1_000_000)),
            ("7B", Some(7)),
            ("", None),
            ("GiB", None),
            ("-1GiB", None),
            ("NaN", None),
            ("4 elephants", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse().ok(), bytes.map(Memory::Bytes), "{text}");
        }
        assert_eq!("auto".parse(), Ok(Memory::Auto { n_hubs: 1 }));
    }

    #[test]
    fn a_card_offers_nearly_all_that_it_has_free_and_a_system_half() {
        let auto = Memory::Auto { n_hubs: 1 };
        assert_eq!(auto.bytes(Some(24 * GIB), Some(GIB)), 21 * GIB);
        assert_eq!(auto.bytes(Some(GIB), None), GIB / 2);
        assert_eq!(auto.bytes(Some(GIB / 4), None), 0);
        assert_eq!(auto.bytes(None, Some(16 * GIB)), 8 * GIB);
        assert_eq!(auto.bytes(None, None), 4 * GIB);
        assert_eq!(auto.shared(2).bytes(None, Some(16 * GIB)), 4 * GIB);
        assert_eq!(Memory::Bytes(GIB).bytes(Some(24 * GIB), None), GIB);
        assert_eq!(Memory::Bytes(GIB).shared(2).bytes(None, None), GIB / 2);
    }
}
