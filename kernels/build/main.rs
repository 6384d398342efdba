//! Composes the shaders, validates every variant and writes them down as Rust: a broken shader, or one whose structs are
//! laid out otherwise than the engine's, fails this build on a machine without a GPU.
//!
//! The result, `OUT_DIR/shaders.rs`, is included by `src/engine/gpu/shaders.rs`, which defines the types it speaks of.

#[cfg(feature = "gpu")]
mod compose;
#[cfg(feature = "gpu")]
mod reflect;
#[cfg(feature = "gpu")]
mod variants;

use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=shader");
    println!("cargo::rerun-if-changed=src/quant/list.rs");
    #[cfg(feature = "gpu")]
    if let Err(error) = variants::write() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
