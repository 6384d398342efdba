//! The fuzz targets on their seeds, and on seeds with some bytes changed.

use std::fs;
use std::path::Path;

use proptest::{collection::vec, prelude::any, sample::Index};

use crate::{api, shards};

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 2] = [("body", api::fuzzing::body), ("manifest", shards::fuzzing::manifest)];

/// Each target's files of seeds.
fn seeds() -> Vec<(Target, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let files = |name| fs::read_dir(folder.join(name)).unwrap().map(|file| file.unwrap().path());
    let of = |(name, target)| files(name).map(move |path| (target, fs::read(path).unwrap()));
    TARGETS.into_iter().flat_map(of).collect()
}

#[test]
fn the_fuzz_targets_hold_on_their_seeds() {
    let seeds = seeds();
    assert_eq!(seeds.len(), 7);
    for (target, bytes) in seeds {
        target(&bytes);
    }
}

proptest::proptest! {
    #[test]
    fn bytes_changed_anywhere_do_no_harm(seed: Index, changes in vec((any::<Index>(), any::<u8>()), 1..8)) {
        let mut seeds = seeds();
        let (target, mut bytes) = seeds.swap_remove(seed.index(seeds.len()));
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        target(&bytes);
    }
}
