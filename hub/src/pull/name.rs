//! A model's name on a hub: `OWNER/REPO` or `OWNER/REPO/FILE.gguf`, with `:REVISION` if it is not `main`.

use std::{fmt, str::FromStr};

use super::repo_file::RepoFile;

/// Maximum length of an owner or repository name, by the hub's rules.
const MAX_PART_CHARS: usize = 96;
/// Maximum length of a revision.
const MAX_REVISION_CHARS: usize = 200;
/// Default branch.
const DEFAULT_REVISION: &str = "main";

/// A model's name. It is safe in a path and in a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    owner: String,
    repo: String,
    file: Option<RepoFile>,
    revision: Option<String>,
}

/// Why a text is not a model's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NameError(&'static str);

const SHAPE: NameError =
    NameError("a model's name is OWNER/REPO or OWNER/REPO/FILE.gguf, optionally with :REVISION at the end");
const REVISION: NameError = NameError("a revision is a branch, a tag or a commit, such as main or refs/pr/1");

impl FromStr for ModelName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (path, revision) = match text.split_once(':') {
            Some((path, revision)) => (path, Some(checked_revision(revision)?)),
            None => (text, None),
        };
        let mut parts = path.splitn(3, '/');
        let mut part = || parts.next().filter(|part| is_part(part)).map(str::to_owned).ok_or(SHAPE);
        let (owner, repo) = (part()?, part()?);
        let file = match parts.next() {
            None => None,
            Some(file) => Some(RepoFile::new(file).filter(RepoFile::is_gguf).ok_or(SHAPE)?),
        };
        Ok(Self { owner, repo, file, revision })
    }
}

impl ModelName {
    /// The same model at a revision given separately.
    ///
    /// # Errors
    /// If the revision is invalid, or the name has a different one.
    pub fn at_revision(self, revision: &str) -> Result<Self, NameError> {
        let revision = checked_revision(revision)?;
        match self.revision {
            Some(other) if other != revision => {
                Err(NameError("the name and --revision differ: leave one of them out"))
            }
            _ => Ok(Self { revision: Some(revision), ..self }),
        }
    }

    pub(super) fn owner(&self) -> &str {
        &self.owner
    }

    pub(super) fn repo(&self) -> &str {
        &self.repo
    }

    /// `OWNER/REPO`.
    pub(super) fn full_repo(&self) -> String {
        format!("{}/{}", self.owner, self.repo)
    }

    /// The GGUF file; none for the folder.
    pub(super) fn file(&self) -> Option<&RepoFile> {
        self.file.as_ref()
    }

    pub(super) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.repo)?;
        if let Some(file) = &self.file {
            write!(f, "/{file}")?;
        }
        match &self.revision {
            Some(revision) => write!(f, ":{revision}"),
            None => Ok(()),
        }
    }
}

/// Checks the hub's rules, which reserve `--` for the slash in the cache.
fn is_part(part: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_PART_CHARS).contains(&part.len())
        && part.bytes().all(fits)
        && !part.starts_with(['-', '.'])
        && !part.ends_with(['-', '.'])
        && !part.contains("--")
        && !part.contains("..")
}

/// A revision becomes a path below `refs/`, and one segment of a URL.
fn checked_revision(text: &str) -> Result<String, NameError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+@/".contains(&byte);
    let is_revision = text.len() <= MAX_REVISION_CHARS
        && text.bytes().all(fits)
        && !text.starts_with('-')
        && RepoFile::new(text).is_some();
    if is_revision { Ok(text.to_owned()) } else { Err(REVISION) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_alike() {
        for text in [
            "Qwen/Qwen3-30B-A3B",
            "Qwen/Qwen3-30B-A3B:v1.0",
            "a/b:refs/pr/1",
            "a/b/Q4/x-00001-of-00002.gguf",
            "a/b/x.gguf:0123456789abcdef0123456789abcdef01234567",
        ] {
            assert_eq!(text.parse::<ModelName>().unwrap().to_string(), text);
        }
        let name: ModelName = "a/b/c/x.gguf".parse().unwrap();
        assert_eq!((name.full_repo().as_str(), name.revision()), ("a/b", "main"));
        assert_eq!(name.file().map(RepoFile::as_str), Some("c/x.gguf"));
    }

    #[test]
    fn paths_and_what_would_leave_the_cache_are_no_names() {
        for wrong in [
            "",
            "a",
            "/a/b",
            "./a/b",
            "../b",
            "a/..",
            "a/b/",
            "a//b",
            "a/b/c",
            "a/b/../x.gguf",
            "a/b/x.bin",
            "~/b",
            "a b/c",
            "a/b--c",
            "-a/b",
            "a/.b",
            "C:\\a\\b",
            "https://huggingface.co/a/b",
            "a/b:",
            "a/b:../x",
            "a/b:-x",
            "a/b:a//b",
            "a/b:a\\b",
            "ä/b",
        ] {
            assert!(wrong.parse::<ModelName>().is_err(), "{wrong:?}");
        }
        assert!(format!("a/{}", "b".repeat(97)).parse::<ModelName>().is_err());
    }

    #[test]
    fn a_revision_beside_the_name_must_not_contradict_it() {
        let name = |text: &str| text.parse::<ModelName>().unwrap();
        assert_eq!(name("a/b").at_revision("v1"), Ok(name("a/b:v1")));
        assert_eq!(name("a/b:v1").at_revision("v1"), Ok(name("a/b:v1")));
        assert!(name("a/b:v1").at_revision("v2").unwrap_err().to_string().contains("--revision"));
        assert!(name("a/b").at_revision("../x").is_err());
    }
}
