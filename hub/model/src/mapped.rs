//! Maps files into memory, and releases their resident pages.

mod cut_short;

use std::{fs::File, io, path::Path, sync::Arc};

use bytes::Bytes;
use memmap2::Mmap;

use self::cut_short::Watched;
pub use self::cut_short::{CutShort, check};

/// A file, mapped read only. Clones share the mapping.
#[derive(Clone, Debug, Default)]
pub struct Mapped(Option<Arc<Mapping>>);

/// Its fields end in this order.
#[derive(Debug)]
struct Mapping {
    _watched: Watched,
    map: Mmap,
}

impl Mapped {
    /// Maps a file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self(None));
        }
        // SAFETY: the mapping is read only. Models and shards are written once and renamed into place, so an existing
        // mapping keeps its file. What a truncated file no longer has is read as zeros, and told by `check`.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self(Some(Arc::new(Mapping { _watched: Watched::new(&map, path), map }))))
    }

    /// The whole file.
    pub fn bytes(&self) -> Bytes {
        struct Owner(Arc<Mapping>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &self.0.map
            }
        }
        self.0.as_ref().map_or_else(Bytes::new, |map| Bytes::from_owner(Owner(map.clone())))
    }

    /// Releases its resident pages. Later reads get the same bytes from the system's cache or the disk.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Some(Mapping { map, .. }) = self.0.as_deref() {
            // SAFETY: a read-only mapping of a file loses nothing: pages are read again from the file. If the advice is
            // refused, they stay.
            let _ = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_is_there_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let text: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &text).unwrap();
        let mapped = Mapped::open(&path).unwrap();
        let bytes = mapped.bytes();
        assert_eq!(bytes, text);
        mapped.release();
        assert_eq!(bytes, text);
        let empty = folder.path().join("empty");
        std::fs::write(&empty, b"").unwrap();
        assert!(Mapped::open(&empty).unwrap().bytes().is_empty());
        assert!(Mapped::open(&folder.path().join("none")).is_err());
    }
}
