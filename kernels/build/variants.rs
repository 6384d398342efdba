//! Which shaders there are: each kernel for each weight format, with and without each optional feature.

use std::{collections::BTreeSet, env, error::Error, fmt::Write, fs, path::Path};

use crate::{compose::Composer, reflect};

/// A kernel: the name of its file and of its entry point, and of the engine's enum.
const KERNELS: [(&str, &str); 2] = [("gate_up", "GateUp"), ("down", "Down")];

/// A weight format: the name its shaders know it by, the engine's, and whether `shader-f16` changes its shaders.
const FORMATS: [(&str, &str, bool); 4] =
    [("F32", "F32", false), ("F16", "F16", true), ("BF16", "Bf16", false), ("INT4", "Int4G128", true)];

/// Writes `OUT_DIR/shaders.rs`.
pub(crate) fn write() -> Result<(), Box<dyn Error>> {
    let composer = Composer::read(Path::new("shader"))?;
    let web = env::var("CARGO_CFG_TARGET_ARCH")? == "wasm32";
    let mut code = String::from("pub(super) const SHADERS: &[Shader] = &[\n");
    let mut layouts = BTreeSet::new();
    for (file, kernel) in KERNELS {
        for (format_flag, format, has_f16) in FORMATS {
            for shader_f16 in [false, true].into_iter().filter(|f16| has_f16 || !f16) {
                for subgroups in [false, true] {
                    let mut flags = BTreeSet::from([format_flag]);
                    flags.extend(shader_f16.then_some("SHADER_F16"));
                    flags.extend(subgroups.then_some("SUBGROUPS"));
                    let source = composer.compose(file, &flags)?;
                    let reflection =
                        reflect::reflect(&source).map_err(|e| format!("{file} {flags:?}: {e}"))?;
                    layouts.extend(reflection.layouts);
                    flags.extend(web.then_some("WEB"));
                    let source = composer.compose(file, &flags)?;
                    writeln!(
                        code,
                        "Shader {{ kernel: Kernel::{kernel}, entry_point: {file:?}, format: WeightFormat::{format}, \
                         shader_f16: {shader_f16}, subgroups: {subgroups}, bindings: &[{}], overrides: &{:?}, \
                         source: {source:?} }},",
                        reflection.bindings.join(", "),
                        reflection.overrides,
                    )?;
                }
            }
        }
    }
    code.push_str("];\n");
    code.extend(layouts);
    fs::write(Path::new(&env::var("OUT_DIR")?).join("shaders.rs"), code)?;
    Ok(())
}
