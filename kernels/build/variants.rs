//! Which shaders there are: each kernel for each weight format, with and without each optional feature.

use std::{collections::BTreeSet, env, error::Error, fmt::Write, fs, path::Path};

use crate::{compose::Composer, reflect};

/// A kernel: the name of its file and of its entry point, and of the engine's enum.
const KERNELS: [(&str, &str); 2] = [("gate_up", "GateUp"), ("down", "Down")];

/// A weight format: the name its shaders know it by, the engine's, and whether `shader-f16` changes its shaders.
const FORMATS: [(&str, &str, bool); 13] = [
    ("F32", "F32", false),
    ("F16", "F16", true),
    ("BF16", "Bf16", false),
    ("INT4", "Int4G128", true),
    ("INT4_ZP", "Int4ZpG128", false),
    ("Q8_0", "Q8_0", false),
    ("Q4_0", "Q4_0", false),
    ("Q4_1", "Q4_1", false),
    ("Q5_0", "Q5_0", false),
    ("Q5_1", "Q5_1", false),
    ("Q4_K", "Q4K", false),
    ("Q5_K", "Q5K", false),
    ("Q6_K", "Q6K", false),
];

/// Writes `OUT_DIR/shaders.rs`.
pub(crate) fn write() -> Result<(), Box<dyn Error>> {
    let composer = Composer::read(Path::new("shader"))?;
    let web = env::var("CARGO_CFG_TARGET_ARCH")? == "wasm32";
    let mut code = String::from("pub(super) const SHADERS: &[Shader] = &[\n");
    let mut layouts = BTreeSet::new();
    let mut pieces = Pieces::default();
    for (file, kernel) in KERNELS {
        for (format_flag, format, has_f16) in FORMATS {
            for shader_f16 in [false, true].into_iter().filter(|f16| has_f16 || !f16) {
                for subgroups in [false, true] {
                    let mut flags = BTreeSet::from([format_flag]);
                    flags.extend(shader_f16.then_some("SHADER_F16"));
                    flags.extend(subgroups.then_some("SUBGROUPS"));
                    let source = composer.compose(file, &flags)?.concat();
                    let reflection =
                        reflect::reflect(&source).map_err(|e| format!("{file} {flags:?}: {e}"))?;
                    layouts.extend(reflection.layouts);
                    flags.extend(web.then_some("WEB"));
                    let source = pieces.numbers(composer.compose(file, &flags)?)?;
                    writeln!(
                        code,
                        "Shader {{ kernel: Kernel::{kernel}, entry_point: {file:?}, format: WeightFormat::{format}, \
                         shader_f16: {shader_f16}, subgroups: {subgroups}, bindings: &[{}], overrides: &{:?}, \
                         source: &{source:?} }},",
                        reflection.bindings.join(", "),
                        reflection.overrides,
                    )?;
                }
            }
        }
    }
    code.push_str("];\n");
    writeln!(code, "pub(super) const PIECES: &[&str] = &{:?};", pieces.0)?;
    code.extend(layouts);
    fs::write(Path::new(&env::var("OUT_DIR")?).join("shaders.rs"), code)?;
    Ok(())
}

/// The texts that shaders are made of, each once: most of a variant is what all of them have in common, and all of it
/// travels to browsers.
#[derive(Default)]
struct Pieces(Vec<String>);

impl Pieces {
    /// The places of these texts, the new ones put in theirs.
    fn numbers(&mut self, texts: Vec<String>) -> Result<Vec<u8>, Box<dyn Error>> {
        let mut numbers = Vec::new();
        for text in texts {
            let place = self.0.iter().position(|known| *known == text).unwrap_or_else(|| {
                self.0.push(text);
                self.0.len() - 1
            });
            numbers.push(u8::try_from(place)?);
        }
        Ok(numbers)
    }
}
