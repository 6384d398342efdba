//! `moex-glue WASM FOLDER NAME`: what `wasm-bindgen` makes of a compiled worker, for browsers, gzipped, as they fetch it:
//! NAME.js.gz and NAME_bg.wasm.gz.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, ensure};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [wasm, folder, name] = &arguments[..] else { anyhow::bail!("usage: moex-glue WASM FOLDER NAME") };
    let mut generated = wasm_bindgen_cli_support::Bindgen::new()
        .input_path(wasm)
        .out_name(name)
        .web(true)?
        .typescript(false)
        .remove_name_section(true)
        .remove_producers_section(true)
        .generate_output()
        .context("the glue could not be generated")?;
    let scripts = generated.snippets().values().flatten().count();
    ensure!(scripts == 0, "the worker has scripts of its own, which nothing embeds");
    let script = without_layout(generated.js());
    gzip(script.as_bytes(), &Path::new(folder).join(format!("{name}.js.gz")))?;
    let wasm = generated.wasm_mut().emit_wasm();
    gzip(&wasm, &Path::new(folder).join(format!("{name}_bg.wasm.gz")))
}

/// A script without indentation, empty lines, lines of comment, and without line ends and spaces that separate nothing: an eighth of
/// what the glue takes gzipped. Its strings are messages, which may lose a space beside a sign.
fn without_layout(script: &str) -> String {
    let is_comment = |line: &&str| ["//", "/*", "* ", "*/"].iter().any(|start| line.starts_with(start));
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "*");
    let goes_on = |line: &str| line.ends_with(['{', ';', ',', '(']);
    let lines = lines.filter(|line| !is_comment(line));
    let script: String = lines.flat_map(|line| [line, if goes_on(line) { "" } else { "\n" }]).collect();
    [" = ", " => ", ") {", " === ", " !== ", " || ", " && "]
        .iter()
        .fold(script, |script, spaced| script.replace(spaced, &spaced.replace(' ', "")))
}

/// Slowly and small: it is done once, and fetched by every visitor.
fn gzip(bytes: &[u8], path: &Path) -> Result<()> {
    let write = || zopfli::compress(zopfli::Options::default(), zopfli::Format::Gzip, bytes, File::create(path)?);
    write().with_context(|| format!("{} cannot be written", path.display()))
}
