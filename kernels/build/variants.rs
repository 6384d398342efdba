//! Which shaders there are: each kernel for each weight format, with and without each optional feature. What a format
//! decodes its weights with stands in `shader/shared/weights_NAME.wgsl`.

use std::{collections::BTreeSet, env, error::Error, fmt::Write, fs, path::Path};

use crate::{
    compose::{Composer, in_one_line},
    reflect,
};

/// A kernel: the name of its file and of its entry point, and of the engine's enum.
const KERNELS: [(&str, &str); 2] = [("gate_up", "GateUp"), ("down", "Down")];
/// Those of int8 activations: one text for all formats.
const INT8_KERNELS: [&str; 2] = ["int8_product", "int8_rows"];
/// What rounds the answers of both.
const ANSWER_KERNELS: [&str; 1] = ["pack_halves"];
/// Those of the hub's forward pass, of its measurements, and of native workers, besides: no browser runs them.
const PASS_KERNELS: [&str; 22] = [
    "best_of_parts",
    "best_logits",
    "weigh_parts",
    "draw",
    "int8_matrix",
    "norm_rows",
    "heads_to_cache",
    "attend",
    "attend_rows",
    "router_logits",
    "route",
    "group_pairs",
    "keep_rows",
    "read_all",
    "keep_awake",
    "row_product",
    "row_attend",
    "row_router",
    "row_gate_up",
    "row_down",
    "pair_gate_up",
    "pair_down",
];

include!("../src/quant/list.rs");

macro_rules! names {
    ([] $($(#[doc = $doc:literal])* $format:ident $name:literal $definition:path;)*) => {
        &[$((stringify!($format), $name)),*]
    };
}
/// The weight formats: the engine's names, and those of files.
const FORMATS: &[(&str, &str)] = with_formats!(names);

/// What browsers demand and naga refuses: see `shader/shared/enable.wgsl`.
const FOR_BROWSERS: &str = "enable subgroups;";

/// Writes `OUT_DIR/shaders.rs`.
pub(crate) fn write() -> Result<(), Box<dyn Error>> {
    let composer = Composer::read(Path::new("shader"))?;
    let web = env::var("CARGO_CFG_TARGET_ARCH")? == "wasm32";
    let mut code = String::from("pub(super) const SHADERS: &[Shader] = &[\n");
    let (mut layouts, mut units) = (BTreeSet::new(), BTreeSet::new());
    let mut pieces = Pieces { texts: Vec::new(), in_one_line: web };
    for (file, kernel) in KERNELS {
        for (format, name) in FORMATS {
            let weights = format!("weights_{}", name.to_lowercase().replace('-', "_"));
            // Whether `shader-f16` changes what it decodes with.
            let has_f16 = composer.compose(&weights, &weights, &BTreeSet::from(["SHADER_F16"]))?
                != composer.compose(&weights, &weights, &BTreeSet::new())?;
            for shader_f16 in [false, true].into_iter().filter(|f16| has_f16 || !f16) {
                for subgroups in [false, true] {
                    let mut flags = BTreeSet::from_iter(shader_f16.then_some("SHADER_F16"));
                    flags.extend(subgroups.then_some("SUBGROUPS"));
                    let source = composer.compose(file, &weights, &flags)?.concat();
                    let reflection =
                        reflect::reflect(&source).map_err(|e| format!("{file} {name} {flags:?}: {e}"))?;
                    layouts.extend(reflection.layouts);
                    let [octets, row_unit] = ["CHUNK_OCTETS", "ROW_UNIT"].map(|name| {
                        reflection.constants.get(name).ok_or_else(|| format!("{weights} has no {name}"))
                    });
                    units.insert((*format, 8 * octets?, *row_unit?));
                    flags.extend(web.then_some("WEB"));
                    let source = pieces.numbers(composer.compose(file, &weights, &flags)?)?;
                    writeln!(
                        code,
                        "Shader {{ kernel: Some(Kernel::{kernel}), entry_point: {file:?}, format: Some(WeightFormat::{format}), \
                         shader_f16: {shader_f16}, subgroups: {subgroups}, threads: {}, bindings: &[{}], \
                         source: &{source:?} }},",
                        reflection.threads,
                        reflection.bindings.join(", "),
                    )?;
                }
            }
        }
    }
    let pass_kernels = PASS_KERNELS.into_iter().filter(|_| !web);
    for file in INT8_KERNELS.into_iter().chain(ANSWER_KERNELS).chain(pass_kernels) {
        let source = composer.compose(file, "", &BTreeSet::from_iter(web.then_some("WEB")))?;
        let reflection = reflect::reflect(&source.concat()).map_err(|e| format!("{file}: {e}"))?;
        layouts.extend(reflection.layouts);
        writeln!(
            code,
            "Shader {{ kernel: None, entry_point: {file:?}, format: None, shader_f16: false, \
             subgroups: false, threads: {}, bindings: &[{}], source: &{:?} }},",
            reflection.threads,
            reflection.bindings.join(", "),
            pieces.numbers(source)?,
        )?;
    }
    code.push_str("];\n");
    code.push_str("const UNITS: &[(WeightFormat, Units)] = &[");
    for (format, chunk_cols, row_unit) in units {
        write!(
            code,
            "(WeightFormat::{format}, Units {{ chunk_cols: {chunk_cols}, row_unit: {row_unit} }}), "
        )?;
    }
    code.push_str("];\n");
    writeln!(code, "pub(super) const PIECES: &[&str] = &{:?};", pieces.texts)?;
    code.extend(layouts);
    fs::write(Path::new(&env::var("OUT_DIR")?).join("shaders.rs"), code)?;
    Ok(())
}

/// The texts that shaders are made of, each once: most of a variant is what all of them have in common, and all of it
/// travels to browsers.
struct Pieces {
    texts: Vec<String>,
    /// Whether ends of lines that separate nothing are dropped too: nobody reads errors of these by their line.
    in_one_line: bool,
}

impl Pieces {
    /// The places of these texts, the new ones put in theirs.
    ///
    /// # Errors
    /// If the line ends that are left separate too little.
    fn numbers(&mut self, texts: Vec<String>) -> Result<Vec<u8>, Box<dyn Error>> {
        let mut numbers = Vec::new();
        for text in texts {
            let text = if self.in_one_line { in_one_line(&text) } else { text };
            let place = self.texts.iter().position(|known| *known == text).unwrap_or_else(|| {
                self.texts.push(text);
                self.texts.len() - 1
            });
            numbers.push(u8::try_from(place)?);
        }
        if self.in_one_line {
            let source: String = numbers.iter().map(|place| &self.texts[usize::from(*place)][..]).collect();
            reflect::reflect(&source.replace(FOR_BROWSERS, ""))?;
        }
        Ok(numbers)
    }
}
