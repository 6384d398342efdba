//! Chooses the files of a repository that are needed: all but the weights of a folder, or one GGUF.

use std::collections::BTreeSet;

use super::{
    error::PullError,
    name::ModelName,
    repo_file::{RepoFile, leads_out},
    weights::{INDEX, SINGLE},
};

/// Files for a folder's configuration, where they exist.
const FILES: [&str; 3] = ["config.json", "generation_config.json", "quantize_config.json"];
/// Prefixes of further file names.
const PREFIXES: [&str; 2] = ["tokenizer", "chat_template"];

/// The files of a repository whose names are valid paths.
#[derive(Debug)]
pub(super) struct Listing {
    repo: String,
    files: BTreeSet<RepoFile>,
}

impl Listing {
    /// From the names that `host` lists. Names that are invalid on some system are skipped.
    ///
    /// # Errors
    /// If a name leads out of its folder.
    pub(super) fn new(name: &ModelName, host: &str, names: &[String]) -> Result<Self, PullError> {
        let repo = name.full_repo();
        if let Some(file) = names.iter().find(|name| leads_out(name)) {
            return Err(PullError::UnsafeFile { host: host.to_owned(), repo, file: file.clone() });
        }
        Ok(Self { repo, files: names.iter().filter_map(|name| RepoFile::new(name)).collect() })
    }

    /// Files of a folder that are needed before its weights, including the weights' index.
    ///
    /// # Errors
    /// If the repository is not a folder of a model.
    pub(super) fn of_folder(&self) -> Result<Vec<RepoFile>, PullError> {
        if !self.has(INDEX) && !self.has(SINGLE) {
            let ggufs = self.ggufs();
            return Err(if ggufs.is_empty() {
                self.no_model("it has neither model.safetensors nor a GGUF file")
            } else {
                PullError::OnlyGguf { repo: self.repo.clone(), files: ggufs }
            });
        }
        if !self.has("config.json") {
            return Err(self.no_model("it has no config.json"));
        }
        let is_needed = |file: &&RepoFile| {
            let name = file.as_str();
            let is_text = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            file.depth() == 0 && (is_text || FILES.contains(&name) || name == INDEX)
        };
        Ok(self.files.iter().filter(is_needed).cloned().collect())
    }

    /// Checks that the repository has these files.
    ///
    /// # Errors
    /// If it lacks one of them; names the first.
    pub(super) fn all_of(
        &self,
        wanted: impl IntoIterator<Item = RepoFile>,
    ) -> Result<Vec<RepoFile>, PullError> {
        let there = |file: RepoFile| match self.files.contains(&file) {
            true => Ok(file),
            false => Err(PullError::unknown_file(self.repo.clone(), &file, self.ggufs())),
        };
        wanted.into_iter().map(there).collect()
    }

    pub(super) fn no_model(&self, reason: &str) -> PullError {
        PullError::NoModel { repo: self.repo.clone(), reason: reason.to_owned() }
    }

    /// The GGUF files to choose from; of split ones, the first part.
    fn ggufs(&self) -> Vec<String> {
        let is_first = |file: &&RepoFile| {
            let parts = super::gguf_parts(file);
            file.is_gguf() && parts.is_some_and(|parts| parts[0] == **file)
        };
        self.files.iter().filter(is_first).map(ToString::to_string).collect()
    }

    fn has(&self, name: &str) -> bool {
        RepoFile::new(name).is_some_and(|file| self.files.contains(&file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Result<Listing, PullError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Listing::new(&"a/b".parse().unwrap(), "host", &names)
    }

    #[test]
    fn a_folder_is_what_is_read_of_it_and_nothing_else() {
        let listing = listing(&[
            ".gitattributes",
            "README.md",
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "onnx/tokenizer.json",
            "original/consolidated.00.pth",
            "pytorch_model.bin",
            "tokenizer.json",
            "tokenizer_config.json",
        ]);
        let files: Vec<_> = listing.unwrap().of_folder().unwrap().iter().map(ToString::to_string).collect();
        let expected = [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        assert_eq!(files, expected);
    }

    #[test]
    fn a_repository_of_ggufs_lists_them_by_their_first_parts() {
        let names = [
            "b-Q4_K_M.gguf",
            "Q8/b-00001-of-00002.gguf",
            "Q8/b-00002-of-00002.gguf",
            "README.md",
            "config.json",
        ];
        let listing = listing(&names).unwrap();
        let said = listing.of_folder().unwrap_err().to_string();
        assert!(
            said.contains("Q8/b-00001-of-00002.gguf, b-Q4_K_M.gguf") && !said.contains("00002-of"),
            "{said}"
        );
        let wanted = |name: &str| listing.all_of([RepoFile::new(name).unwrap()]);
        assert_eq!(wanted("b-Q4_K_M.gguf").unwrap().len(), 1);
        let said = wanted("b-Q5.gguf").unwrap_err().to_string();
        assert!(said.contains("no file b-Q5.gguf") && said.contains("b-Q4_K_M.gguf"), "{said}");
    }

    #[test]
    fn what_is_no_model_says_what_it_lacks() {
        for (names, lacks) in [
            (&["README.md", "pytorch_model.bin"][..], "neither model.safetensors nor"),
            (&["model.safetensors"], "no config.json"),
        ] {
            let said = listing(names).unwrap().of_folder().unwrap_err().to_string();
            assert!(said.contains(lacks), "{said}");
        }
    }

    #[test]
    fn names_that_lead_out_are_refused_and_odd_ones_left_out() {
        for hostile in ["../x", "tokenizer/../../x", "/etc/passwd"] {
            let said = listing(&["config.json", hostile]).unwrap_err().to_string();
            assert!(said.contains(hostile) && said.contains("host"), "{said}");
        }
        assert!(listing(&["config.json", "model.safetensors", "a:b"]).unwrap().of_folder().is_ok());
    }
}
