//! `moex-glue WASM FOLDER NAME`: what `wasm-bindgen` makes of a compiled worker, for browsers: NAME.js and NAME_bg.wasm.

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [wasm, folder, name] = &arguments[..] else { anyhow::bail!("usage: moex-glue WASM FOLDER NAME") };
    wasm_bindgen_cli_support::Bindgen::new()
        .input_path(wasm)
        .out_name(name)
        .web(true)?
        .typescript(false)
        .remove_name_section(true)
        .remove_producers_section(true)
        .generate(folder)
        .context("the glue could not be generated")
}
