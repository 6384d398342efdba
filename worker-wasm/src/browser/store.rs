//! Blocks kept between visits, one file for each hash. The page's script (`store.js`) stores them; this file checks hashes.

use wasm_bindgen::prelude::*;

use super::js;
use crate::download::hash_matches;

/// The store of this origin.
pub(super) struct Store(js::Store);

/// One block's place in the store. Only this tab uses it until it is dropped.
pub(super) struct Place {
    place: js::Place,
    name: String,
}

impl Store {
    /// `None` where the browser has no such storage: insecure contexts and some private windows.
    pub(super) fn open() -> Option<Self> {
        js::store().map(Self)
    }

    /// The place of the block with this hash. `None` if another tab does not release it in time.
    pub(super) async fn place(&self, name: &str) -> Option<Place> {
        let place = self.0.place(name).await.ok()?;
        place.is_object().then(|| Place { place: place.unchecked_into(), name: name.to_owned() })
    }
}

impl Place {
    /// The block, if it is stored completely. A file without its hash is removed.
    pub(super) async fn read(&self) -> Option<Vec<u8>> {
        let bytes = js::content(self.place.read().await)?;
        if hash_matches(&bytes, &self.name) {
            return Some(bytes);
        }
        drop(self.place.remove().await);
        None
    }

    /// Opens the file of an incomplete download, for a block of `block_bytes`, and returns its content. If the file
    /// cannot be used, the content is empty and nothing is stored.
    pub(super) async fn open_part(&self, block_bytes: usize) -> Vec<u8> {
        js::content(self.place.open_part(block_bytes as f64).await).unwrap_or_default()
    }

    /// Writes bytes at `offset`, and removes what was behind `offset`.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        self.place.write(offset as f64, bytes);
    }

    /// Ends a complete download: the file gets its final name and counts from now on.
    pub(super) async fn finish(&self) {
        // Without its final name it is still a part with all its bytes, and is recognised as such.
        drop(self.place.finish().await);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.place.close();
    }
}
