//! The integer scales and minimums of q4_K and q5_K: eight of six bits each, in 12 bytes.
//!
//! For groups 0..4, byte `g` holds the scale and byte `g + 4` the minimum in their low six bits. For groups 4..8, byte
//! `g + 4` holds the low four bits of the scale (low nibble) and of the minimum (high nibble), and the top two bits of bytes
//! `g - 4` and `g` what is missing of the scale and the minimum.

use super::parts::Parts;

#[inline]
pub(super) fn read_scales(bytes: &[u8], parts: &mut Parts) {
    for g in 0..4 {
        parts.scales[g] = (bytes[g] & 63) as i8;
        parts.mins[g] = bytes[g + 4] & 63;
        parts.scales[g + 4] = (bytes[g + 8] & 15 | bytes[g] >> 6 << 4) as i8;
        parts.mins[g + 4] = bytes[g + 8] >> 4 | bytes[g + 4] >> 6 << 4;
    }
}

pub(super) fn write_scales(parts: &Parts, bytes: &mut [u8]) {
    for g in 0..4 {
        let (scale, min) = (parts.scales[g + 4] as u8, parts.mins[g + 4]);
        bytes[g] = parts.scales[g] as u8 | scale >> 4 << 6;
        bytes[g + 4] = parts.mins[g] | min >> 4 << 6;
        bytes[g + 8] = scale & 15 | min << 4;
    }
}
