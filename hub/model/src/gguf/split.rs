//! Finds the files of one model: `NAME.gguf`, or `NAME-00001-of-0000N.gguf` and its successors.

use std::path::{Path, PathBuf};

/// Maximum files of one model.
const MAX_SHARDS: usize = 1024;

/// All files of the model that `path` belongs to, in order: only itself unless its name is that of a split file.
pub fn shards(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match numbered(name) {
        None => vec![path.to_owned()],
        Some((prefix, n)) => {
            (1..=n).map(|i| path.with_file_name(format!("{prefix}-{i:05}-of-{n:05}.gguf"))).collect()
        }
    }
}

/// `NAME` and N of `NAME-0000I-of-0000N.gguf`.
fn numbered(name: &str) -> Option<(&str, usize)> {
    let (rest, n) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, i) = rest.rsplit_once('-')?;
    let number = |digits: &str| {
        let is_number = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse::<usize>().ok()).flatten()
    };
    let (i, n) = (number(i)?, number(n)?);
    (n <= MAX_SHARDS && (1..=n).contains(&i)).then_some((prefix, n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_numbered_name_is_one_of_several() {
        let names = |path: &str| -> Vec<String> {
            shards(Path::new(path)).iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(names("a/q.gguf"), ["a/q.gguf"]);
        let both = ["a/q-00001-of-00002.gguf", "a/q-00002-of-00002.gguf"];
        assert_eq!(names(both[0]), both);
        assert_eq!(names(both[1]), both, "whichever is named");
        for alone in
            ["q-00003-of-00002.gguf", "q-0001-of-0002.gguf", "q-00000-of-00001.gguf", "q-00001-of-99999.gguf"]
        {
            assert_eq!(names(alone), [alone]);
        }
    }
}
