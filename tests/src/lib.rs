//! The harness of the end-to-end tests, and the commands of `cargo xtask`.
//!
//! Everything here drives shipped parts from outside: the `moex` binary as processes, real sockets, a real
//! Chromium. Nothing here is linked into the product. Only [`peer`] knows the wire, to misuse it,
//! and only [`replay`] the simulator.

pub mod hf_hub;
#[cfg(target_os = "linux")]
pub mod host;
#[cfg(not(target_os = "linux"))]
#[path = "host_elsewhere.rs"]
pub mod host;
pub mod hub;

pub mod browser;
pub mod chat;
pub mod liar;
pub mod peer;
#[cfg(target_os = "linux")]
pub mod processors;
#[cfg(not(target_os = "linux"))]
#[path = "processors_elsewhere.rs"]
pub mod processors;
pub mod proxy;
mod signal;

pub mod chaos;
pub mod replay;

pub mod tensors;
pub mod xtask;

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies one folder below the root")
}

/// A file or folder of `tests/data`.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

/// The `moex` binary of the profile under test: `$MOEX_BIN`, otherwise the one beside the running test.
///
/// # Panics
/// If there is none; the message has the command that builds it.
pub fn moex() -> PathBuf {
    if let Some(path) = std::env::var_os("MOEX_BIN") {
        return path.into();
    }
    let exe = std::env::current_exe().expect("a running test has a path");
    let found = exe.ancestors().skip(1).take(2).map(|folder| folder.join("moex")).find(|path| path.exists());
    found
        .expect("no moex binary beside the tests: run `cargo xtask test`, or `cargo build -p moex-hub` first")
}
