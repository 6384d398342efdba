//! Loads sixteen cached keys or values at once, whatever their format.

use super::{
    float_panel::Value,
    isa::{Isa, ROWS},
};
use crate::quant::{
    float::{F16, F32},
    q8_0::Q8_0,
};

/// A format of cached numbers.
pub(super) trait CachedVector {
    /// Bytes of sixteen numbers, without their scales.
    const BYTES: usize;

    /// Sixteen scales from their bytes; a format without scales reads none.
    fn scales<I: Isa>(isa: I, from: &[u8]) -> I::Floats;

    /// Sixteen numbers, exactly as they are stored.
    fn load<I: Isa>(isa: I, from: &[u8], scales: I::Floats) -> I::Floats;
}

macro_rules! floats {
    ($($name:ident),*) => {
        $(
            impl CachedVector for $name {
                const BYTES: usize = <Self as Value>::BYTES;
                #[inline(always)]
                fn scales<I: Isa>(isa: I, _: &[u8]) -> I::Floats {
                    isa.splat(1.0)
                }
                #[inline(always)]
                fn load<I: Isa>(isa: I, from: &[u8], _: I::Floats) -> I::Floats {
                    <Self as Value>::load(isa, from)
                }
            }
        )*
    };
}
floats!(F32, F16);

impl CachedVector for Q8_0 {
    const BYTES: usize = ROWS;

    #[inline(always)]
    fn scales<I: Isa>(isa: I, from: &[u8]) -> I::Floats {
        isa.halves(from.first_chunk().expect("sixteen scales"))
    }

    /// A product of eleven bits and eight: f32 holds it.
    #[inline(always)]
    fn load<I: Isa>(isa: I, from: &[u8], scales: I::Floats) -> I::Floats {
        isa.mul(isa.signed(from.first_chunk().expect("sixteen codes")), scales)
    }
}
