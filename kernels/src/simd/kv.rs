//! Cached keys and values as attention reads them: pages of [`PAGE_POSITIONS`] positions, sixteen numbers a vector.
//!
//! A page of one layer is its keys, then its values. Of each key and value head:
//!
//! ```text
//! keys    (halves of a page, columns, 16 positions)      a vector is one column of sixteen positions
//! values  (sixteenths of the columns, positions, 16)     a vector is sixteen columns of one position
//! ```
//!
//! So scores and sums need no sum across lanes. Columns are padded with zeros to a multiple of 16.

use std::{fmt, str::FromStr};

use half::f16;

use super::isa::ROWS;
use crate::ShapeError;

/// Positions in a page.
pub const PAGE_POSITIONS: usize = 32;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// IEEE single.
    #[default]
    F32,
    /// IEEE half: half the memory, and half of what a long context reads for each token.
    F16,
}

/// The keys and values of a position in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// How they are stored.
    pub format: KvFormat,
    /// G, key and value heads.
    pub n_kv_heads: usize,
    /// C, the width of each.
    pub head_width: usize,
}

impl KvFormat {
    /// The name used in flags and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// Bytes of one number.
    pub fn value_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvFormat {
    type Err = UnknownKvFormat;

    fn from_str(name: &str) -> Result<Self, UnknownKvFormat> {
        let known = [Self::F32, Self::F16].into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| UnknownKvFormat(name.chars().take(32).collect()))
    }
}

/// No format of keys and values has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("keys and values are stored as f32 or f16, not {0:?}")]
pub struct UnknownKvFormat(pub String);

impl KvShape {
    /// The bytes of a page, a multiple of a cache line.
    pub fn page_bytes(&self) -> usize {
        2 * self.n_kv_heads * self.head_bytes()
    }

    /// Writes `key` and `value` (G, C each) as position `position` of `page`.
    ///
    /// # Errors
    /// [`ShapeError::BlockLength`] if `page` is no page of this shape.
    ///
    /// # Panics
    /// If the position is beyond the page, or `key` or `value` has another length.
    pub fn write(
        &self,
        page: &mut [u8],
        position: usize,
        key: &[f32],
        value: &[f32],
    ) -> Result<(), ShapeError> {
        if page.len() != self.page_bytes() {
            return Err(ShapeError::BlockLength { expected: self.page_bytes(), actual: page.len() });
        }
        assert!(position < PAGE_POSITIONS, "position {position} of a page");
        let width = self.n_kv_heads * self.head_width;
        assert_eq!((key.len(), value.len()), (width, width), "heads of {}", self.head_width);
        let (keys, values) = page.split_at_mut(self.n_kv_heads * self.head_bytes());
        let heads = keys.chunks_exact_mut(self.head_bytes()).zip(values.chunks_exact_mut(self.head_bytes()));
        let written = key.chunks_exact(self.head_width).zip(value.chunks_exact(self.head_width));
        for ((keys, values), (key, value)) in heads.zip(written) {
            match self.format {
                KvFormat::F32 => self.write_head(keys, values, position, key, value, f32::to_le_bytes),
                KvFormat::F16 => {
                    self.write_head(keys, values, position, key, value, |x| f16::from_f32(x).to_le_bytes());
                }
            }
        }
        Ok(())
    }

    fn write_head<const N: usize>(
        &self,
        keys: &mut [u8],
        values: &mut [u8],
        position: usize,
        key: &[f32],
        value: &[f32],
        bytes: impl Fn(f32) -> [u8; N],
    ) {
        let (keys, values) = (keys.as_chunks_mut::<N>().0, values.as_chunks_mut::<N>().0);
        let keys = &mut keys[position / ROWS * self.padded_width() * ROWS + position % ROWS..];
        for (place, x) in keys.iter_mut().step_by(ROWS).zip(key) {
            *place = bytes(*x);
        }
        for (sixteenth, x) in values.chunks_exact_mut(PAGE_POSITIONS * ROWS).zip(value.chunks(ROWS)) {
            for (place, x) in sixteenth[position * ROWS..].iter_mut().zip(x) {
                *place = bytes(*x);
            }
        }
    }

    /// The keys of head `g` in half `half` of a page, (C, 16).
    #[inline(always)]
    pub(super) fn keys<'a>(&self, page: &'a [u8], g: usize, half: usize) -> &'a [u8] {
        let half_bytes = self.head_bytes() / 2;
        &page[(2 * g + half) * half_bytes..][..half_bytes]
    }

    /// Sixteenth `index` of the values of head `g`, (positions, 16).
    #[inline(always)]
    pub(super) fn values<'a>(&self, page: &'a [u8], g: usize, index: usize) -> &'a [u8] {
        let bytes = PAGE_POSITIONS * ROWS * self.format.value_bytes();
        &page[(self.n_kv_heads + g) * self.head_bytes() + index * bytes..][..bytes]
    }

    pub(super) fn padded_width(&self) -> usize {
        self.head_width.next_multiple_of(ROWS)
    }

    /// Bytes of the keys, or of the values, of one head in a page.
    fn head_bytes(&self) -> usize {
        PAGE_POSITIONS * self.padded_width() * self.format.value_bytes()
    }
}
