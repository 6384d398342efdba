//! A preprocessor of four lines: `#import NAME` (once each, from `shared/`; `WEIGHTS` is the format's), `#ifdef FLAG`,
//! `#else`, `#endif`. Comments and white space that separates nothing are dropped, since the text travels to browsers.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fs,
    path::Path,
};

/// The shader files by name.
pub(crate) struct Composer {
    kernels: BTreeMap<String, String>,
    shared: BTreeMap<String, String>,
}

impl Composer {
    /// Reads a folder of kernels and its folder `shared` of what they import.
    pub(crate) fn read(folder: &Path) -> Result<Self, Box<dyn Error>> {
        Ok(Self { kernels: read_folder(folder)?, shared: read_folder(&folder.join("shared"))? })
    }

    /// The text of `file` with these flags and `weights` for the format's, in the pieces between its files and directives.
    pub(crate) fn compose(
        &self,
        file: &str,
        weights: &str,
        flags: &BTreeSet<&str>,
    ) -> Result<Vec<String>, String> {
        let source = self.kernels.get(file).or_else(|| self.shared.get(file));
        let source = source.ok_or_else(|| format!("no shader {file}.wgsl"))?;
        let mut out = vec![String::new()];
        self.expand(file, source, (weights, flags), &mut BTreeSet::new(), &mut out)?;
        out.retain(|piece| !piece.is_empty());
        Ok(out)
    }

    fn expand<'a>(
        &'a self,
        name: &str,
        source: &'a str,
        chosen: (&str, &BTreeSet<&str>),
        imported: &mut BTreeSet<&'a str>,
        out: &mut Vec<String>,
    ) -> Result<(), String> {
        let mut conditions: Vec<bool> = Vec::new();
        for (number, line) in source.lines().enumerate() {
            let error = |what: &str| format!("{name}.wgsl:{}: {what}", number + 1);
            let line = line.split("//").next().unwrap_or_default().trim();
            let (directive, argument) = line.split_once(' ').unwrap_or((line, ""));
            if directive.starts_with('#') {
                out.push(String::new());
            }
            match directive {
                "#ifdef" => conditions.push(chosen.1.contains(argument)),
                "#else" => {
                    let condition = conditions.last_mut().ok_or_else(|| error("#else without #ifdef"))?;
                    *condition = !*condition;
                }
                "#endif" => {
                    conditions.pop().ok_or_else(|| error("#endif without #ifdef"))?;
                }
                _ if line.is_empty() || conditions.contains(&false) => {}
                "#import" => {
                    let name = if argument == "WEIGHTS" { chosen.0 } else { argument };
                    let (name, source) =
                        self.shared.get_key_value(name).ok_or_else(|| error("no such import"))?;
                    if imported.insert(name) {
                        self.expand(name, source, chosen, imported, out)?;
                    }
                }
                _ if line.starts_with('#') => return Err(error("no such directive")),
                _ => {
                    if let Some(piece) = out.last_mut() {
                        squeeze(line, piece);
                        piece.push('\n');
                    }
                }
            }
        }
        out.push(String::new());
        if conditions.is_empty() { Ok(()) } else { Err(format!("{name}.wgsl: #ifdef without #endif")) }
    }
}

/// Appends a line without the spaces that separate neither two words nor two equal operators.
fn squeeze(line: &str, out: &mut String) {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        if c == ' '
            && let (Some(before), Some(after)) = (out.chars().last(), chars.peek())
            && !(is_word(before) && is_word(*after))
            && !(before == *after && "+-*/&|<>=".contains(before))
        {
            continue;
        }
        out.push(c);
    }
}

/// A piece in one line; what comes behind it stays apart.
pub(crate) fn in_one_line(text: &str) -> String {
    let mut out = String::new();
    squeeze(&text.replace('\n', " "), &mut out);
    out
}

fn read_folder(folder: &Path) -> Result<BTreeMap<String, String>, Box<dyn Error>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "wgsl") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            files.insert(name, fs::read_to_string(&path)?);
        }
    }
    Ok(files)
}
