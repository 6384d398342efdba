//! `moex-glue WASM FOLDER NAME`: what `wasm-bindgen` makes of a compiled worker, for browsers, gzipped, as they fetch it:
//! NAME.js.gz and NAME_bg.wasm.gz.

use std::collections::{BTreeMap, BTreeSet};
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
    let wasm = generated.wasm_mut().emit_wasm();
    let places = places(&hashes(&script), &wasm);
    gzip(&numbered(&places, script.into_bytes()), &Path::new(folder).join(format!("{name}.js.gz")))?;
    gzip(&numbered(&places, wasm), &Path::new(folder).join(format!("{name}_bg.wasm.gz")))
}

/// Digits of the hash at the end of the name of an import.
const HASH_DIGITS: usize = 16;

/// The hashes at the ends of the names of the imports: `_` and 16 hexadecimal digits.
fn hashes(script: &str) -> BTreeSet<&[u8]> {
    let names = script.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ends = names.filter_map(|name| name.rsplit_once('_').map(|(_, end)| end));
    let is_hash = |end: &&str| end.len() == HASH_DIGITS && end.bytes().all(|digit| digit.is_ascii_hexdigit());
    ends.filter(is_hash).map(str::as_bytes).collect()
}

/// Each hash with its place among those of the wasm's imports: numbers that count upwards compress best.
fn places(hashes: &BTreeSet<&[u8]>, wasm: &[u8]) -> BTreeMap<Vec<u8>, usize> {
    let mut places = BTreeMap::new();
    let imported = wasm.windows(HASH_DIGITS).filter(|window| hashes.contains(window));
    for hash in imported.chain(hashes.iter().copied()) {
        let next = places.len();
        places.entry(hash.to_vec()).or_insert(next);
    }
    places
}

/// `bytes` with each hash replaced by its place, as long as the hash was: the names stay distinct, and a number compresses where a
/// hash does not.
fn numbered(places: &BTreeMap<Vec<u8>, usize>, mut bytes: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    while let Some(window) = bytes.get_mut(at..at + HASH_DIGITS) {
        match places.get(&*window) {
            Some(place) => {
                window.copy_from_slice(format!("{place:0HASH_DIGITS$}").as_bytes());
                at += HASH_DIGITS;
            }
            None => at += 1,
        }
    }
    bytes
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
    // The default of 15 is too few blocks for a file of this size.
    let options = zopfli::Options { maximum_block_splits: 60, ..Default::default() };
    let write = || zopfli::compress(options, zopfli::Format::Gzip, bytes, File::create(path)?);
    write().with_context(|| format!("{} cannot be written", path.display()))
}
