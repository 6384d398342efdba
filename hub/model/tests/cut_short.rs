//! A mapped file that is cut short. Alone in its process, since the finding stays.
#![cfg(target_os = "linux")]

use std::fs::{self, File};

use moex_model::mapped::{self, Mapped};

#[test]
fn what_a_file_no_longer_has_is_read_as_zeros_and_the_file_is_named() {
    const BYTES: usize = 1 << 20;
    let folder = tempfile::tempdir().expect("a folder");
    let [whole, cut] = ["whole", "cut"].map(|name| folder.path().join(name));
    for path in [&whole, &cut] {
        fs::write(path, vec![7; BYTES]).expect("a file");
    }
    let [whole_bytes, bytes] = [&whole, &cut].map(|path| Mapped::open(path).expect("a mapping").bytes());
    File::options().write(true).open(&cut).and_then(|file| file.set_len(5000)).expect("a shorter file");
    assert_eq!(mapped::check(), Ok(()), "nobody has read it");
    assert!(bytes[..4096].iter().chain(&whole_bytes[..]).all(|byte| *byte == 7));
    assert_eq!(mapped::check(), Ok(()), "nobody has read what is gone");
    assert!(bytes[8192..].iter().all(|byte| *byte == 0));
    let found = mapped::check().expect_err("it was read");
    assert_eq!(found.path, cut);
    drop(bytes);
    assert!(mapped::check().is_err(), "what was computed from it is still wrong");
}
