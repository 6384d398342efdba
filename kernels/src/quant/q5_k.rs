//! q5_K: 5 bits a weight in blocks of 256 columns; each group of 32 has a 6-bit scale and minimum.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16, the unit of the scales |
//! | 2..4 | `m`, f16, the unit of the minimums |
//! | 4..16 | eight scales and eight minimums, 6 bits each, as in [`super::k_affine`] |
//! | 16..48 | bit `g` of byte `i` is bit 4 of the code of column `32 g + i` |
//! | 48..176 | nibbles: byte `32 c + i` holds column `64 c + i` (low) and column `64 c + 32 + i` (high) |

use super::{
    k_affine,
    parts::{Block, Geometry, Parts, f16_at, put_f16},
};

pub(super) struct Q5K;

impl Block for Q5K {
    const GEOMETRY: Geometry = k_affine::GEOMETRY;
    const BYTES: usize = 176;

    #[inline]
    fn read(bytes: &[u8], parts: &mut Parts) {
        (parts.d, parts.m) = (f16_at(bytes, 0), f16_at(bytes, 2));
        k_affine::read_scales(&bytes[4..16], parts);
        k_affine::read_nibbles(&bytes[48..176], parts);
        for (g, codes) in parts.codes.chunks_exact_mut(k_affine::GROUP).enumerate() {
            for (code, byte) in codes.iter_mut().zip(&bytes[16..48]) {
                *code |= (byte >> g & 1) << 4;
            }
        }
    }

    fn write(parts: &Parts, bytes: &mut [u8]) {
        put_f16(bytes, 0, parts.d);
        put_f16(bytes, 2, parts.m);
        k_affine::write_scales(parts, &mut bytes[4..16]);
        k_affine::write_nibbles(parts, &mut bytes[48..176]);
        bytes[16..48].fill(0);
        for (g, codes) in parts.codes.chunks_exact(k_affine::GROUP).enumerate() {
            for (byte, code) in bytes[16..48].iter_mut().zip(codes) {
                *byte |= (code >> 4 & 1) << g;
            }
        }
    }

    fn fit(values: &[f32], parts: &mut Parts) {
        k_affine::fit(31, values, parts);
    }
}
