//! Multiplies a panel of a float format with a few rows of activations.

use super::{
    format::{Panel, UNIT},
    isa::{Isa, ROWS},
};
use crate::quant::float::{Bf16, F16, F32};

/// Independent sums; their number is a part of the result's definition.
const SUMS: usize = 4;

/// Columns that a row's sums take in one turn. As many as there are sums, each stays in a register; a tab's code, which
/// travels, has the loop.
const AT_ONCE: usize = if cfg!(target_arch = "wasm32") { 1 } else { SUMS };

/// A float format, whose panels are columns of sixteen values.
pub(super) trait Value {
    /// The bytes of a column.
    const BYTES: usize;

    /// Loads a column.
    fn load<I: Isa>(isa: I, column: &[u8]) -> I::Floats;
}

/// `panel[row] . x[t]` for T rows of f32 activations: sum `c % 4` takes column `c`, products and sums rounded apart, then
/// `(sum 0 + sum 1) + (sum 2 + sum 3)`.
#[inline(always)]
fn product<I: Isa, V: Value, const T: usize>(isa: I, panel: &[u8], x: [&[i32]; T]) -> [I::Floats; T] {
    let mut sums = [[isa.splat(0.0); SUMS]; T];
    for (unit, columns) in panel.chunks_exact(UNIT * V::BYTES).enumerate() {
        let x = x.map(|x| &x[unit * UNIT..][..UNIT]);
        isa.prefetch_weights(columns, T);
        for (turn, columns) in columns.chunks_exact(AT_ONCE * V::BYTES).enumerate() {
            for i in 0..AT_ONCE {
                let (c, weights) = (turn * AT_ONCE + i, V::load(isa, &columns[i * V::BYTES..]));
                for t in 0..T {
                    let product = isa.mul(weights, isa.splat(f32::from_bits(x[t][c] as u32)));
                    sums[t][c % SUMS] = isa.add(sums[t][c % SUMS], product);
                }
            }
        }
    }
    let mut folded = [isa.splat(0.0); T];
    for (folded, [a, b, c, d]) in folded.iter_mut().zip(sums) {
        *folded = isa.add(isa.add(a, b), isa.add(c, d));
    }
    folded
}

macro_rules! values {
    ($($name:ident, $bytes:expr, $load:ident;)*) => {
        $(
            impl Value for $name {
                const BYTES: usize = $bytes;
                #[inline(always)]
                fn load<I: Isa>(isa: I, column: &[u8]) -> I::Floats {
                    isa.$load(column.first_chunk().expect("whole columns"))
                }
            }
            impl Panel for $name {
                // Four sums each: the registers of AVX-512 hold no more rows' beside the rest.
                const MAX_TILE: usize = 4;

                #[inline(always)]
                fn product<I: Isa, const T: usize, const N: usize>(
                    isa: I,
                    panels: [&[u8]; N],
                    x: [&[i32]; T],
                ) -> [[I::Floats; T]; N] {
                    let mut sums = [[isa.splat(0.0); T]; N];
                    for n in 0..N {
                        sums[n] = product::<I, Self, T>(isa, panels[n], x);
                    }
                    sums
                }
            }
        )*
    };
}
values! {
    F32, 4 * ROWS, floats;
    F16, 2 * ROWS, halves;
    Bf16, 2 * ROWS, bfloats;
}
