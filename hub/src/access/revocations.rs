//! The invitations that no longer admit anyone, kept between starts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::state_folder::{SecretError, StateFolder};

/// Name of the file: one name a line.
const FILE: &str = "revoked-invitations";
/// Most names, so that the file stays small: a new join token ends all invitations at once.
const MAX_NAMES: usize = 1_000;

/// The names of revoked invitations. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Revocations {
    /// None if they last until the hub ends.
    folder: Option<StateFolder>,
    names: Arc<Mutex<BTreeSet<String>>>,
}

/// Why an invitation was not revoked. Each is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// Too many were.
    #[error("{MAX_NAMES} invitations were revoked: restart the hub with --new-token, which ends all of them")]
    TooMany,
    /// It would be valid again after a restart.
    #[error(transparent)]
    StoredSecret(#[from] SecretError),
}

impl Revocations {
    /// Those kept in this folder.
    ///
    /// # Errors
    /// If the file cannot be read, or others can read it.
    pub fn open(folder: StateFolder) -> Result<Self, SecretError> {
        let names = folder.read(FILE, &|text| Ok(text.to_owned()))?.unwrap_or_default();
        let names = names.lines().map(str::to_owned).collect();
        Ok(Self { folder: Some(folder), names: Arc::new(Mutex::new(names)) })
    }

    /// Forgets them: their join token is no longer valid.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn clear(folder: &StateFolder) -> Result<(), SecretError> {
        folder.remove(FILE)
    }

    /// Whether the invitation of this name was revoked.
    pub fn contains(&self, name: &str) -> bool {
        self.names().contains(name)
    }

    /// All names, ascending.
    pub fn all(&self) -> Vec<String> {
        self.names().iter().cloned().collect()
    }

    /// Revokes the invitation of this name.
    ///
    /// # Errors
    /// If there are too many, or it cannot be kept; then it is not revoked.
    pub fn add(&self, name: &str) -> Result<(), RevokeError> {
        let mut names = self.names();
        if names.contains(name) {
            return Ok(());
        }
        if names.len() >= MAX_NAMES {
            return Err(RevokeError::TooMany);
        }
        let mut more = names.clone();
        more.insert(name.to_owned());
        if let Some(folder) = &self.folder {
            let lines: Vec<&str> = more.iter().map(String::as_str).collect();
            folder.replace(FILE, &lines.join("\n"))?;
        }
        *names = more;
        Ok(())
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_revoked_stays_so_until_there_is_a_new_token() {
        let folder = tempfile::tempdir().unwrap();
        let state = || StateFolder::at(folder.path().join("state"));
        let revocations = Revocations::open(state()).unwrap();
        assert!(!revocations.contains("anna"));
        for name in ["bo", "anna", "anna"] {
            revocations.add(name).unwrap();
        }
        let again = Revocations::open(state()).unwrap();
        assert!(again.contains("anna") && again.contains("bo") && !again.contains("a"));
        assert_eq!(again.all(), ["anna", "bo"]);
        Revocations::clear(&state()).unwrap();
        Revocations::clear(&state()).unwrap();
        assert!(Revocations::open(state()).unwrap().all().is_empty());
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let revocations = Revocations::default();
        (0..MAX_NAMES).for_each(|n| revocations.add(&n.to_string()).unwrap());
        revocations.add("7").unwrap();
        let refused = revocations.add("one-more").unwrap_err().to_string();
        assert!(refused.contains("--new-token") && !revocations.contains("one-more"), "{refused}");
    }
}
