//! The fuzz targets on their seeds, and on seeds with some bytes changed.

use std::path::Path;

use proptest::{collection::vec, prelude::any};

use crate::fuzzing::{self, Target, run_changed};

const TARGETS: [(&str, Target); 5] = [
    ("config", fuzzing::config),
    ("gguf", fuzzing::gguf),
    ("safetensors", fuzzing::safetensors),
    ("template", fuzzing::template),
    ("tokenizer", fuzzing::tokenizer),
];

fn seeds() -> Vec<(Target, Vec<u8>)> {
    fuzzing::seeds(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds"), &TARGETS)
}

#[test]
fn the_fuzz_targets_hold_on_their_seeds() {
    let seeds = seeds();
    assert_eq!(seeds.len(), 27);
    for (target, bytes) in seeds {
        target(&bytes);
    }
}

proptest::proptest! {
    #[test]
    fn bytes_changed_anywhere_do_no_harm(
        seed: usize, changes in vec((any::<usize>(), any::<u8>()), 1..8),
    ) {
        run_changed(seeds(), seed, &changes);
    }
}
