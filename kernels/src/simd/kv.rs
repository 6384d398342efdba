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
//!
//! In q8_0 a number is an i8, its code, times a scale that it shares with up to 31 other columns of its position and
//! head: its unit. The scales, in f16, follow the codes:
//!
//! ```text
//! keys    (halves of a page, units, 16 positions)        a vector is the scales of one vector of keys
//! values  (units, positions)
//! ```

use std::{fmt, str::FromStr};

use half::{f16, slice::HalfFloatSliceExt};

use super::isa::ROWS;
use crate::{
    ShapeError,
    quant::{UNIT, fill_unit},
};

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
    /// llama.cpp's q8_0, 8.5 bits a number: 17/32 of the memory of f16.
    Q8_0,
}

/// Bytes of sixteen scales.
pub(super) const SCALE_BYTES: usize = 2 * ROWS;

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
    /// All formats.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Q8_0];

    /// The name used in flags and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Bytes of one number, without its scale.
    fn value_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Q8_0 => 1,
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
        let known = Self::ALL.into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| UnknownKvFormat(name.chars().take(32).collect()))
    }
}

/// No format of keys and values has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("keys and values are stored as f32, f16 or q8_0, not {0:?}")]
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
                KvFormat::F32 => {
                    self.write_columns((keys, values), position, 0, (key, value), f32::to_le_bytes);
                }
                KvFormat::F16 => self.write_halves((keys, values), position, (key, value)),
                KvFormat::Q8_0 => self.write_units((keys, values), position, (key, value)),
            }
        }
        Ok(())
    }

    /// Writes columns of one head, the first of them `first`, a multiple of 16.
    fn write_columns<X: Copy, const N: usize>(
        &self,
        (keys, values): (&mut [u8], &mut [u8]),
        position: usize,
        first: usize,
        (key, value): (&[X], &[X]),
        bytes: impl Fn(X) -> [u8; N],
    ) {
        let (keys, values) = (keys.as_chunks_mut::<N>().0, values.as_chunks_mut::<N>().0);
        let keys = &mut keys[(position / ROWS * self.padded_width() + first) * ROWS + position % ROWS..];
        for (place, x) in keys.iter_mut().step_by(ROWS).zip(key) {
            *place = bytes(*x);
        }
        let values = &mut values[PAGE_POSITIONS * first..];
        for (sixteenth, x) in values.chunks_exact_mut(PAGE_POSITIONS * ROWS).zip(value.chunks(ROWS)) {
            for (place, x) in sixteenth[position * ROWS..].iter_mut().zip(x) {
                *place = bytes(*x);
            }
        }
    }

    /// Rounds one head, so many columns at once.
    fn write_halves(
        &self,
        (keys, values): (&mut [u8], &mut [u8]),
        position: usize,
        (key, value): (&[f32], &[f32]),
    ) {
        for (index, (key, value)) in key.chunks(UNIT).zip(value.chunks(UNIT)).enumerate() {
            let rounded = [key, value].map(|columns| {
                let mut halves = [f16::ZERO; UNIT];
                halves[..columns.len()].convert_from_f32_slice(columns);
                halves
            });
            let [key, value] = rounded.each_ref().map(|halves| &halves[..key.len()]);
            self.write_columns(
                (&mut *keys, &mut *values),
                position,
                index * UNIT,
                (key, value),
                f16::to_le_bytes,
            );
        }
    }

    /// Quantises one head, unit by unit.
    fn write_units(
        &self,
        (keys, values): (&mut [u8], &mut [u8]),
        position: usize,
        (key, value): (&[f32], &[f32]),
    ) {
        let (keys, key_scales) = keys.split_at_mut(self.values_bytes());
        let (values, value_scales) = values.split_at_mut(self.values_bytes());
        let [key_scales, value_scales] = [key_scales, value_scales].map(|scales| scales.as_chunks_mut().0);
        for (unit, (key, value)) in key.chunks(UNIT).zip(value.chunks(UNIT)).enumerate() {
            let ((key_codes, key_scale), (value_codes, value_scale)) = (quantised(key), quantised(value));
            let codes = (&key_codes[..key.len()], &value_codes[..value.len()]);
            self.write_columns((&mut *keys, &mut *values), position, unit * UNIT, codes, |code| [code]);
            let half = position / ROWS;
            key_scales[(half * self.n_units() + unit) * ROWS + position % ROWS] = key_scale;
            value_scales[unit * PAGE_POSITIONS + position] = value_scale;
        }
    }

    /// The keys of head `g` in half `half` of a page, (C, 16).
    #[inline(always)]
    pub(super) fn keys<'a>(&self, page: &'a [u8], g: usize, half: usize) -> &'a [u8] {
        let half_bytes = self.values_bytes() / 2;
        &page[g * self.head_bytes() + half * half_bytes..][..half_bytes]
    }

    /// Sixteenth `index` of the values of head `g`, (positions, 16).
    #[inline(always)]
    pub(super) fn values<'a>(&self, page: &'a [u8], g: usize, index: usize) -> &'a [u8] {
        let bytes = PAGE_POSITIONS * ROWS * self.format.value_bytes();
        &page[(self.n_kv_heads + g) * self.head_bytes() + index * bytes..][..bytes]
    }

    /// The scales (16) of the keys of head `g` in half `half` of a page, those of unit `unit`; empty where there are none.
    #[inline(always)]
    pub(super) fn key_scales<'a>(&self, page: &'a [u8], g: usize, half: usize, unit: usize) -> &'a [u8] {
        self.scales(page, g, (half * self.n_units() + unit) * SCALE_BYTES, SCALE_BYTES)
    }

    /// The scales (positions) of the values of head `g`, those of unit `unit`; empty where there are none.
    #[inline(always)]
    pub(super) fn value_scales<'a>(&self, page: &'a [u8], g: usize, unit: usize) -> &'a [u8] {
        let n_bytes = PAGE_POSITIONS / ROWS * SCALE_BYTES;
        self.scales(page, self.n_kv_heads + g, unit * n_bytes, n_bytes)
    }

    /// `n_bytes` of the scales of a head, of the keys' heads and then the values'.
    #[inline(always)]
    fn scales<'a>(&self, page: &'a [u8], head: usize, from: usize, n_bytes: usize) -> &'a [u8] {
        match self.format {
            KvFormat::F32 | KvFormat::F16 => &[],
            KvFormat::Q8_0 => &page[head * self.head_bytes() + self.values_bytes() + from..][..n_bytes],
        }
    }

    pub(super) fn padded_width(&self) -> usize {
        self.head_width.next_multiple_of(ROWS)
    }

    /// Units of a head.
    fn n_units(&self) -> usize {
        self.head_width.div_ceil(UNIT)
    }

    /// Bytes of the keys, or of the values, of one head in a page, without their scales.
    fn values_bytes(&self) -> usize {
        PAGE_POSITIONS * self.padded_width() * self.format.value_bytes()
    }

    /// Bytes of the keys, or of the values, of one head in a page.
    fn head_bytes(&self) -> usize {
        let scale_bytes = match self.format {
            KvFormat::F32 | KvFormat::F16 => 0,
            KvFormat::Q8_0 => self.n_units() * (PAGE_POSITIONS / ROWS * SCALE_BYTES),
        };
        self.values_bytes() + scale_bytes
    }
}

/// The codes of up to a unit's columns, the rest 0, and their scale. Numbers that are not finite make the scale so.
fn quantised(x: &[f32]) -> ([u8; UNIT], [u8; 2]) {
    let mut codes = [0; UNIT];
    let scale = fill_unit(x, &mut codes, &mut [0; 2]);
    (codes, f16::from_f32(scale).to_le_bytes())
}
