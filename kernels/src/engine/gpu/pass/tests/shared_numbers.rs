//! Numbers that stand in a shader and in what dispatches it.

use super::super::{request::PAGES_AT_ONCE, tiles::ROUTER_TILE};
use crate::{
    engine::gpu::int8::{WIDE_PANELS, WIDE_TILE},
    simd::ROWS,
};

#[test]
fn shaders_and_dispatches_have_the_same_numbers() {
    let matrix = include_str!("../../../../../shader/int8_matrix.wgsl");
    for (shader, name, number) in [
        (include_str!("../../../../../shader/attend.wgsl"), "AT_ONCE", PAGES_AT_ONCE),
        (include_str!("../../../../../shader/router_logits.wgsl"), "TILE", ROUTER_TILE),
        (matrix, "PAIRS", WIDE_TILE),
        (matrix, "ROWS", (WIDE_PANELS * ROWS) as u32),
    ] {
        assert!(shader.contains(&format!("const {name}: u32 = {number}u;")), "{name} = {number}");
    }
}
