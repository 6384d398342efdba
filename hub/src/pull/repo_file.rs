//! A file's path in a repository, safe to use below a folder.

use std::{fmt, path::PathBuf};

/// Maximum bytes of a path segment, as file systems allow.
const MAX_PART_BYTES: usize = 255;
/// The longest path.
const MAX_BYTES: usize = 1024;

/// A relative path with slashes, whose segments are plain names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RepoFile(String);

impl RepoFile {
    /// None if it leads out of its folder, or is invalid on some system.
    pub(super) fn new(path: &str) -> Option<Self> {
        let is_name = |part: &str| {
            let fits = |c: char| !c.is_control() && !r#"\:*?"<>|"#.contains(c);
            !part.is_empty()
                && part.len() <= MAX_PART_BYTES
                && part != "."
                && part != ".."
                && part.chars().all(fits)
        };
        (path.len() <= MAX_BYTES && path.split('/').all(is_name)).then(|| Self(path.to_owned()))
    }

    /// `config.json`, which every folder of a model has.
    pub(super) fn config() -> Self {
        Self("config.json".to_owned())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The path in this system's format.
    pub(super) fn to_path(&self) -> PathBuf {
        self.0.split('/').collect()
    }

    /// Number of folders above it.
    pub(super) fn depth(&self) -> usize {
        self.0.matches('/').count()
    }

    pub(super) fn is_gguf(&self) -> bool {
        self.0.len() > 5 && self.0.as_bytes()[self.0.len() - 5..].eq_ignore_ascii_case(b".gguf")
    }
}

impl fmt::Display for RepoFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether the path leads out of its folder, which no genuine repository contains.
pub(super) fn leads_out(path: &str) -> bool {
    path.starts_with(['/', '\\']) || path.split(['/', '\\']).any(|part| part == "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_out_of_a_folder_is_no_file() {
        for wrong in
            ["", "/a", "../a", "a/../b", "a//b", "a/", "./a", "a\\b", "c:a", "a\nb", "a\0", &"x".repeat(256)]
        {
            assert_eq!(RepoFile::new(wrong), None, "{wrong:?}");
        }
        let nested = RepoFile::new("Q4/a b-ä.GGUF").unwrap();
        assert_eq!((nested.depth(), nested.is_gguf()), (1, true));
        assert!(!RepoFile::new(".gguf").unwrap().is_gguf());
    }

    #[test]
    fn only_what_leads_out_is_hostile() {
        for hostile in ["../x", "a/../../x", "/etc/x", "..\\x"] {
            assert!(leads_out(hostile), "{hostile}");
        }
        for odd in ["a:b", "a..b", "what?", "..."] {
            assert!(!leads_out(odd), "{odd}");
        }
    }
}
