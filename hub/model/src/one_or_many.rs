//! Parses fields that hold one value or a list.

use serde::Deserialize;

/// One value or a list of them, as `eos_token_id` may be.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl OneOrMany {
    pub(crate) fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}
