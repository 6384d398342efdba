//! The fast CPU kernels: weights repacked for the widest loads, activations in int8, vector instructions chosen at run
//! time.
//!
//! A matrix is packed once into panels of sixteen rows ([`PackedShape`]); a product takes a row of activations through
//! all panels, a lane for each row, so that nothing is ever summed across lanes. The integer formats give exactly what
//! [`crate::quant::dot_int8`] gives, to the bit, on every instruction set, with every number of threads and rows. So do
//! the float formats among themselves; their order of summation is written at `float_panel`.
//!
//! [`crate::cpu`] has the kernels for f32 activations, and everything else.

mod attention;
mod disjoint;
mod draw;
mod exp;
mod expert;
mod float_panel;
mod format;
pub(crate) mod isa;
mod kv;
mod kv_vector;
mod linear;
mod pack;
mod pack_row;
mod panel;
mod peak;
mod processor;
mod round;
mod rows;
mod silu_mul;
mod slab;
mod weights;
mod widen;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod prefetch;
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
mod scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm;

pub use attention::{AttentionScratch, Pages, attention};
pub use draw::{Draw, draw, total};
pub use expert::{ExpertCall, ExpertScratch, PackedExpertShape, experts};
pub use kv::{KvFormat, KvShape, PAGE_POSITIONS, UnknownKvFormat};
pub use linear::{linear, linears};
pub use pack::{PackedShape, PackedView};
pub use peak::{read, spin_products};
pub use processor::Processor;
pub use round::round_to_f16;
pub use rows::fill;
pub(crate) use rows::fill_alone;
pub(crate) use silu_mul::activate;
pub use slab::{PageSize, Slab};
pub use weights::weights;
pub use widen::widen_halves;

#[cfg(feature = "gpu")]
pub(crate) use format::BlockLayout as PackedBlock;

#[cfg(test)]
mod tests;

use std::{env, fmt, str::FromStr};

#[cfg(feature = "gpu")]
pub(crate) use isa::ROWS;
use isa::{Isa, Kernel};

/// The environment variable that [`Simd::from_env`] reads.
pub const SIMD_VARIABLE: &str = "MOEX_SIMD";

/// An instruction set that this machine has.
#[derive(Clone, Copy)]
pub struct Simd(Choice);

#[derive(Clone, Copy)]
enum Choice {
    /// Left out where wasm has vectors: every module that runs there has them, and code size counts.
    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2<avx2::Plain>),
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni(avx2::Avx2<avx2::Vnni>),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512<avx512::Vnni>),
    #[cfg(target_arch = "x86_64")]
    Avx512Gfni(avx512::Avx512<avx512::Gfni>),
    #[cfg(target_arch = "x86_64")]
    Avx512Zen(avx512::Avx512<avx512::Zen>),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Wasm(wasm::Wasm),
}

impl Simd {
    /// No explicit vector instructions, only those that the compiler chooses.
    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    pub const SCALAR: Self = Self(Choice::Scalar);

    /// The best instruction set of this machine.
    pub fn detect() -> Self {
        Self::available().last().expect("every machine has one")
    }

    /// All instruction sets of this machine, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let choices = [
            #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
            Some(Choice::Scalar),
            #[cfg(target_arch = "x86_64")]
            avx2::Avx2::detect().map(Choice::Avx2),
            #[cfg(target_arch = "x86_64")]
            avx2::Avx2::detect().map(Choice::Avx2Vnni),
            #[cfg(target_arch = "x86_64")]
            avx512::Avx512::detect().map(Choice::Avx512),
            #[cfg(target_arch = "x86_64")]
            avx512::Avx512::detect().map(Choice::Avx512Gfni),
            #[cfg(target_arch = "x86_64")]
            avx512::Avx512::detect().map(Choice::Avx512Zen),
            #[cfg(target_arch = "aarch64")]
            neon::Neon::detect().map(Choice::Neon),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Some(Choice::Wasm(wasm::Wasm)),
        ];
        choices.into_iter().flatten().map(Self)
    }

    /// The instruction set that `MOEX_SIMD` names, or the best one if it is not set. For drivers: kernels take the
    /// value.
    ///
    /// # Errors
    /// [`UnknownSimd`] if it names none that this machine has.
    pub fn from_env() -> Result<Self, UnknownSimd> {
        match env::var(SIMD_VARIABLE) {
            Ok(name) => name.parse(),
            Err(_) => Ok(Self::detect()),
        }
    }

    /// `scalar`, `avx2`, `avx2-vnni`, `avx512`, `avx512-gfni`, `avx512-zen`, `neon` or `wasm`.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
            Choice::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2Vnni(_) => "avx2-vnni",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512Gfni(_) => "avx512-gfni",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512Zen(_) => "avx512-zen",
            #[cfg(target_arch = "aarch64")]
            Choice::Neon(_) => "neon",
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Choice::Wasm(_) => "wasm",
        }
    }

    /// Runs a kernel compiled for these instructions.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
            Choice::Scalar => scalar::Scalar.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2(isa) => isa.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2Vnni(isa) => isa.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512(isa) => isa.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512Gfni(isa) => isa.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512Zen(isa) => isa.vectorize(kernel),
            #[cfg(target_arch = "aarch64")]
            Choice::Neon(isa) => isa.vectorize(kernel),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Choice::Wasm(isa) => isa.vectorize(kernel),
        }
    }

    /// [`Isa::MAX_TILE`] and [`Isa::MAX_PANELS`].
    fn largest_tile(self) -> (usize, usize) {
        struct LargestTile;
        impl Kernel for LargestTile {
            type Output = (usize, usize);
            #[inline(always)]
            fn run<I: Isa>(self, _: I) -> (usize, usize) {
                (I::MAX_TILE, I::MAX_PANELS)
            }
        }
        self.run(LargestTile)
    }

    /// [`Isa::MAX_HEADS`].
    fn max_heads(self) -> usize {
        struct MaxHeads;
        impl Kernel for MaxHeads {
            type Output = usize;
            #[inline(always)]
            fn run<I: Isa>(self, _: I) -> usize {
                I::MAX_HEADS
            }
        }
        self.run(MaxHeads)
    }
}

impl FromStr for Simd {
    type Err = UnknownSimd;

    fn from_str(name: &str) -> Result<Self, UnknownSimd> {
        let found = Self::available().find(|simd| simd.name() == name);
        found.ok_or_else(|| UnknownSimd { name: name.chars().take(32).collect() })
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No instruction set of this machine has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{SIMD_VARIABLE} is {name:?}, but this machine has {known}", known = known_names())]
pub struct UnknownSimd {
    /// The name asked for.
    pub name: String,
}

fn known_names() -> String {
    Simd::available().map(Simd::name).collect::<Vec<_>>().join(", ")
}

/// Constants that turn f16 into f32 where no instruction does. Exponent and fraction, moved to an f32's place, are the
/// value times 2^-112, subnormal ones included; an exponent of all ones is set again afterwards.
#[cfg(any(target_arch = "aarch64", target_arch = "wasm32"))]
mod half_bits {
    pub(super) const MAGNITUDE: u32 = 0x7fff;
    pub(super) const SIGN: u32 = 0x8000;
    /// 2^112.
    pub(super) const EXPONENT_SHIFT: f32 = f32::from_bits((127 + 112) << 23);
    /// The magnitude of f16's infinity, moved.
    pub(super) const INFINITE_MAGNITUDE: u32 = 0x7c00 << 13;
    pub(super) const INFINITY: u32 = 0x7f80_0000;
}
