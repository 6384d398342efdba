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
        (include_str!("../../../../../shader/shared/row_pages.wgsl"), "AT_ONCE", PAGES_AT_ONCE),
        (include_str!("../../../../../shader/router_logits.wgsl"), "TILE", ROUTER_TILE),
        (matrix, "PAIRS", WIDE_TILE),
        (matrix, "ROWS", (WIDE_PANELS * ROWS) as u32),
    ] {
        assert!(shader.contains(&format!("const {name}: u32 = {number}u;")), "{name} = {number}");
    }
}

/// A store to a part of a vector may be one of all of it (WGSL, *Component Reference from Vector Reference*): threads that share a
/// vector of a workgroup's memory overwrite each other's parts. Metal and Direct3D do so, Vulkan's drivers do not show it.
#[test]
fn no_shader_stores_parts_of_vectors_that_threads_share() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("shader");
    let files = [folder.join("shared"), folder].map(|folder| std::fs::read_dir(folder).unwrap());
    let mut n_vectors = 0;
    for path in files.into_iter().flatten().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        let source = std::fs::read_to_string(&path).unwrap();
        let declared =
            source.lines().filter_map(|line| line.strip_prefix("var<workgroup> ")?.split_once(": array<vec"));
        for (name, _) in declared {
            n_vectors += 1;
            let stores =
                source.lines().filter_map(|line| line.trim_start().strip_prefix(name)?.split_once(" = "));
            for (place, _) in stores {
                assert!(!place.contains("]["), "{}: {name}{place}", path.display());
            }
        }
    }
    assert!(n_vectors > 0);
}
