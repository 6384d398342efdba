//! The shaders as the build script found them: text, bindings, constants.

#[cfg(not(target_arch = "wasm32"))]
use super::pass::structs::{Attend, Heads, Joined, Norm, Router, Width};
use super::structs::{Run, Shape, Tile};
use crate::WeightFormat;

include!(concat!(env!("OUT_DIR"), "/shaders.rs"));

/// Override constants by name.
pub(super) type Constants = Vec<(&'static str, f64)>;

/// One variant of one kernel.
#[derive(Debug)]
pub(super) struct Shader {
    /// The kernel, if it takes f32 activations.
    pub(super) kernel: Option<Kernel>,
    pub(super) entry_point: &'static str,
    /// The format of its weights; `None` where one text serves all formats.
    pub(super) format: Option<WeightFormat>,
    pub(super) shader_f16: bool,
    pub(super) subgroups: bool,
    /// Of a workgroup.
    #[cfg_attr(
        target_arch = "wasm32",
        expect(dead_code, reason = "only the hub's pass is measured by kernel")
    )]
    pub(super) threads: u32,
    pub(super) bindings: &'static [Binding],
    /// WGSL, as indices into [`PIECES`].
    source: &'static [u8],
}

impl Shader {
    /// WGSL.
    pub(super) fn text(&self) -> String {
        self.source.iter().map(|place| PIECES[usize::from(*place)]).collect()
    }
}

/// The two halves of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    /// `shader/gate_up.wgsl`.
    GateUp,
    /// `shader/down.wgsl`.
    Down,
}

/// The units in which a format's shaders count its weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Units {
    /// The columns of a chunk.
    pub(super) chunk_cols: usize,
    /// The bytes of one unit of a row's stride.
    pub(super) row_unit: usize,
}

impl Units {
    pub(super) fn of(format: WeightFormat) -> Self {
        let found = UNITS.iter().find(|(of, _)| *of == format);
        found.expect("the build script writes those of every format").1
    }
}

/// One resource of a shader.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) index: u32,
    pub(super) resource: Resource,
    pub(super) kind: BindingKind,
}

/// A shader's name for a resource that it binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Run,
    Shape,
    Tiles,
    Weights,
    /// The slab again, as f16.
    Halves,
    /// The slab again, as f32.
    Biases,
    X,
    Result,
    #[cfg(not(target_arch = "wasm32"))]
    Attention,
    #[cfg(not(target_arch = "wasm32"))]
    Gains,
    #[cfg(not(target_arch = "wasm32"))]
    H,
    #[cfg(not(target_arch = "wasm32"))]
    Heads,
    #[cfg(not(target_arch = "wasm32"))]
    Joined,
    #[cfg(not(target_arch = "wasm32"))]
    K,
    #[cfg(not(target_arch = "wasm32"))]
    Logits,
    #[cfg(not(target_arch = "wasm32"))]
    Norm,
    #[cfg(not(target_arch = "wasm32"))]
    Normed,
    #[cfg(not(target_arch = "wasm32"))]
    Packed,
    #[cfg(not(target_arch = "wasm32"))]
    Pages,
    #[cfg(not(target_arch = "wasm32"))]
    Pairs,
    #[cfg(not(target_arch = "wasm32"))]
    Places,
    #[cfg(not(target_arch = "wasm32"))]
    Q,
    #[cfg(not(target_arch = "wasm32"))]
    Router,
    #[cfg(not(target_arch = "wasm32"))]
    Routing,
    #[cfg(not(target_arch = "wasm32"))]
    Rounded,
    #[cfg(not(target_arch = "wasm32"))]
    Rows,
    #[cfg(not(target_arch = "wasm32"))]
    Step,
    #[cfg(not(target_arch = "wasm32"))]
    Sum,
    #[cfg(not(target_arch = "wasm32"))]
    V,
    #[cfg(not(target_arch = "wasm32"))]
    Width,
    #[cfg(not(target_arch = "wasm32"))]
    Y,
}

/// How a shader binds a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BindingKind {
    Uniform,
    ReadOnlyStorage,
    Storage,
}

/// The variant of `kernel` for `format`. It uses these features where it has a use for them.
pub(super) fn shader(
    kernel: Kernel,
    format: WeightFormat,
    shader_f16: bool,
    subgroups: bool,
) -> &'static Shader {
    let fits = |s: &&Shader| {
        s.kernel == Some(kernel)
            && s.format == Some(format)
            && s.subgroups == subgroups
            && (shader_f16 || !s.shader_f16)
    };
    // Two variants remain where f16 matters: this takes the one with f16.
    SHADERS.iter().filter(fits).max_by_key(|s| s.shader_f16).expect("the build script writes every variant")
}

/// The kernel of int8 activations with this entry point, for every format.
pub(super) fn int8_shader(entry_point: &str) -> &'static Shader {
    let found = SHADERS.iter().find(|shader| shader.entry_point == entry_point);
    found.expect("the build script writes every kernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_is_there_and_keeps_to_the_limits_of_browsers() {
        for kernel in [Kernel::GateUp, Kernel::Down] {
            for format in WeightFormat::ALL {
                for (shader_f16, subgroups) in [(false, false), (false, true), (true, false), (true, true)] {
                    let shader = shader(kernel, format, shader_f16, subgroups);
                    assert!(shader.subgroups == subgroups && (shader_f16 || !shader.shader_f16));
                    assert!(format != WeightFormat::F16 || shader.shader_f16 == shader_f16);
                    assert_eq!(shader.text().contains("enable f16;"), shader.shader_f16);
                    assert_eq!(shader.text().contains("subgroupShuffleXor"), subgroups);
                    let storage = shader.bindings.iter().filter(|b| b.kind != BindingKind::Uniform);
                    assert!(storage.count() <= 8);
                }
            }
        }
    }
}
