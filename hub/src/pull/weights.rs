//! Lists the weight files of a model's folder: those in its index, or the single file.

use std::{collections::BTreeSet, fs, path::Path};

use serde::Deserialize;

use super::repo_file::RepoFile;

/// Index of weights in several files.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Weights in a single file.
pub(super) const SINGLE: &str = "model.safetensors";
/// Maximum bytes of an index.
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// Why an index is unusable.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IndexError {
    /// It is not an index.
    Unreadable,
    /// It contains this invalid file name.
    BadName(String),
}

/// The weight files of the folder, present or not, by its index if there is one.
pub(super) fn in_folder(folder: &Path) -> Result<BTreeSet<RepoFile>, IndexError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let path = folder.join(INDEX);
    if !path.exists() {
        return Ok(RepoFile::new(SINGLE).into_iter().collect());
    }
    let is_short = fs::metadata(&path).is_ok_and(|file| file.len() <= MAX_INDEX_BYTES);
    let json = is_short.then(|| fs::read(&path).ok()).flatten().ok_or(IndexError::Unreadable)?;
    let index: Index = serde_json::from_slice(&json).map_err(|_| IndexError::Unreadable)?;
    let files: BTreeSet<String> = index.weight_map.into_values().collect();
    // As in the model's reader: in this folder, not below it.
    let file =
        |name: String| RepoFile::new(&name).filter(|file| file.depth() == 0).ok_or(IndexError::BadName(name));
    files.into_iter().map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_names_files_of_its_own_folder() {
        let folder = tempfile::tempdir().unwrap();
        let names = || in_folder(folder.path()).map(|files| files.iter().map(ToString::to_string).collect());
        assert_eq!(names(), Ok(vec![SINGLE.to_owned()]));
        let write = |text: &str| fs::write(folder.path().join(INDEX), text).unwrap();
        write(r#"{"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}"#);
        assert_eq!(names(), Ok(vec!["1.safetensors".to_owned(), "2.safetensors".to_owned()]));
        for wrong in ["../x", "a/x", "/x", ""] {
            write(&format!(r#"{{"weight_map": {{"a": "{wrong}"}}}}"#));
            assert_eq!(names(), Err(IndexError::BadName(wrong.to_owned())));
        }
        for wrong in ["", "{}", "[1]", r#"{"weight_map": {"a": 1}}"#] {
            write(wrong);
            assert_eq!(names(), Err(IndexError::Unreadable), "{wrong}");
        }
    }
}
