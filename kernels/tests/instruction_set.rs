//! The instruction set that a driver is told to use.

use moex_kernels::simd::{SIMD_VARIABLE, Simd};

#[test]
fn is_the_one_that_the_variable_names() {
    // Set by whoever wants to know that these instructions are tried: `cargo xtask arm`.
    let expected = std::env::var(SIMD_VARIABLE).unwrap_or_else(|_| Simd::detect().to_string());
    assert_eq!(Simd::from_env().unwrap().name(), expected);
}
