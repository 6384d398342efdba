//! The names of things on the wire. Each is its own type, so that a layer is never passed for an expert.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

/// A transformer layer, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayerId(pub u16);

/// A routed expert within its layer, counted from 0. 0xFFFF names no expert (see [`ExpertId::NONE`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExpertId(pub u16);

impl ExpertId {
    /// The header's value for "no expert": the union of rows of a rows-once dispatch, or the sum over experts.
    pub const NONE: Self = Self(0xFFFF);
}

/// One attempt: one dispatch message to one worker. A retry or a hedge gets a new one. Serial numbers: a hub
/// counts upwards and wraps, and [`AttemptId::is_after`] compares across the wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptId(pub u32);

impl AttemptId {
    /// The attempt after this one, wrapping.
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether `self` was numbered after `other`, in serial-number arithmetic (RFC 1982): right as long as the two
    /// are less than 2^31 apart.
    pub const fn is_after(self, other: Self) -> bool {
        let distance = self.0.wrapping_sub(other.0);
        distance != 0 && distance < 1 << 31
    }
}

/// What a worker proves with who it is: a secret that it draws once, keeps, and shows to its hub alone. 32 hex digits in text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WorkerKey(pub u128);

/// Who a worker is across reconnects and reloads: what its [`WorkerKey`] is hashed to. Whoever knows it cannot join under it.
/// 32 hex digits in text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u128);

/// A unit of weights: one expert of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Block {
    /// The layer.
    pub layer: LayerId,
    /// The expert within it.
    pub expert: ExpertId,
}

/// A worker's id or key that is not 32 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a worker's id or key is 32 hex digits")]
pub struct ParseHexError;

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ExpertId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {} expert {}", self.layer, self.expert)
    }
}

impl WorkerId {
    /// Its last eight digits: enough to tell workers apart in a log.
    pub fn short(self) -> String {
        format!("{:08x}", self.0 as u32)
    }
}

impl WorkerKey {
    /// Whose key it is: the first half of its BLAKE3, of 16 bytes, the first digits first.
    pub fn id(self) -> WorkerId {
        let hash = blake3::hash(&self.0.to_be_bytes());
        let (half, _) = hash.as_bytes().split_at(size_of::<u128>());
        WorkerId(half.iter().fold(0, |id, byte| id << 8 | u128::from(*byte)))
    }
}

/// Never the secret.
impl fmt::Debug for WorkerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerKey(of {})", self.id())
    }
}

impl FromStr for WorkerId {
    type Err = ParseHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_hex(text).map(Self)
    }
}

impl FromStr for WorkerKey {
    type Err = ParseHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_hex(text).map(Self)
    }
}

fn parse_hex(text: &str) -> Result<u128, ParseHexError> {
    // `from_str_radix` takes a sign, and text of any length.
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex {
        return Err(ParseHexError);
    }
    u128::from_str_radix(text, 16).map_err(|_| ParseHexError)
}

impl Serialize for WorkerKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", self.0))
    }
}

impl<'de> Deserialize<'de> for WorkerKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl Serialize for WorkerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WorkerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_does_not_say_its_key() {
        let key = WorkerKey(7);
        // b3sum of fifteen bytes of 0 and one of 7.
        assert_eq!(key.id().to_string(), "7d93b4589c4d219d660dcc63047cf486");
        assert_eq!(serde_json::to_string(&key).unwrap(), "\"00000000000000000000000000000007\"");
        assert_eq!(serde_json::from_str::<WorkerKey>("\"00000000000000000000000000000007\"").unwrap(), key);
        assert_eq!(format!("{key:?}"), format!("WorkerKey(of {})", key.id()));
    }

    #[test]
    fn worker_ids_are_32_hex_digits() {
        let id = WorkerId(0xAB);
        assert_eq!(id.to_string(), "000000000000000000000000000000ab");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{id}\""));
        assert_eq!(WorkerId(0x0123_4567_89AB_CDEF_0123_4567_89AB_CDEF).short(), "89abcdef");
        for bad in ["", "ab", "+00000000000000000000000000000ab", "0000000000000000000000000000000000"] {
            assert_eq!(bad.parse::<WorkerId>(), Err(ParseHexError), "{bad:?}");
        }
    }

    #[test]
    fn attempts_compare_across_the_wrap() {
        let last = AttemptId(u32::MAX);
        assert!(last.next().is_after(last));
        assert!(!last.is_after(last.next()));
        assert!(!last.is_after(last));
    }
}
