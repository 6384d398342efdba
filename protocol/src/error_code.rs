//! The words that an ERROR frame says what went wrong with.

use core::fmt;

use serde::{Deserialize, Serialize};

/// What went wrong, in a word that programs compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The other end speaks another version of this protocol.
    Version,
    /// The token is wrong, or none came in time.
    Unauthorized,
    /// Bytes or values that the protocol does not allow.
    BadFrame,
    /// Something passes a limit.
    TooLarge,
    /// A dispatch for a block that the worker does not hold.
    NotResident,
    /// A newer dispatch took the input slot.
    Preempted,
    /// The worker lost its GPU.
    DeviceLost,
    /// The worker ran out of memory.
    OutOfMemory,
    /// The worker's kernels do not agree with their CPU twins.
    SelfTest,
    /// This end is leaving.
    Draining,
    /// A code that this version does not know.
    #[serde(other)]
    Unknown,
}

impl ErrorCode {
    /// The code as the wire spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Unauthorized => "unauthorized",
            Self::BadFrame => "bad_frame",
            Self::TooLarge => "too_large",
            Self::NotResident => "not_resident",
            Self::Preempted => "preempted",
            Self::DeviceLost => "device_lost",
            Self::OutOfMemory => "out_of_memory",
            Self::SelfTest => "self_test",
            Self::Draining => "draining",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_wires() {
        let codes = [
            ErrorCode::Version,
            ErrorCode::Unauthorized,
            ErrorCode::BadFrame,
            ErrorCode::TooLarge,
            ErrorCode::NotResident,
            ErrorCode::Preempted,
            ErrorCode::DeviceLost,
            ErrorCode::OutOfMemory,
            ErrorCode::SelfTest,
            ErrorCode::Draining,
        ];
        for code in codes {
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
        }
        assert_eq!(serde_json::from_str::<ErrorCode>("\"of_a_later_version\"").unwrap(), ErrorCode::Unknown);
    }
}
