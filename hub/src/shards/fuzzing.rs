//! The body of a fuzz target in `hub/fuzz`, here so that ordinary tests run it too. It panics on a broken rule.

use bytes::Bytes;
use moex_model::mapped::Mapped;

use super::manifest::Manifest;
use super::{ShardFile, load};

/// Bytes of every file that a manifest names.
const FILE_BYTES: usize = 1 << 12;
/// A model has fewer blocks in what follows.
const MAX_BLOCKS: usize = 1 << 12;

/// Any bytes as a manifest, for the weights that it says it is for: every block lies in its file.
pub fn manifest(bytes: &[u8]) {
    let Ok(manifest) = serde_json::from_slice::<Manifest>(bytes) else { return };
    let is_small = |n: usize| n <= 1 << 8;
    let wanted = &manifest.identity;
    if !is_small(wanted.hidden)
        || !is_small(wanted.inner)
        || wanted.blocks().take(MAX_BLOCKS).count() == MAX_BLOCKS
    {
        return;
    }
    let open = |name: &str| {
        let bytes = Bytes::from_static(&[0; FILE_BYTES]);
        Ok(ShardFile { name: name.to_owned(), version: String::new(), bytes, mapped: Mapped::default() })
    };
    if let Ok((files, blocks)) = load::read(&manifest, wanted, open) {
        assert!(
            blocks.iter().all(|block| block.start <= block.end && block.end <= files[block.file].bytes.len())
        );
    }
}
