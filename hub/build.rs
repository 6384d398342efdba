//! Looks whether the worker bundle is there to be embedded, and says how to make it when it is not.
//!
//! The bundle is committed, so only a checkout that lost it hears of this; its hub serves everything but browser workers.

use std::path::Path;

const BUNDLE: [&str; 2] = ["src/web/worker/moex_worker.js", "src/web/worker/moex_worker_bg.wasm"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_SERVER").is_none() {
        return;
    }
    for file in BUNDLE {
        println!("cargo::rerun-if-changed={file}");
        if !Path::new(file).is_file() {
            println!(
                "cargo::warning=hub/{file} is missing: browsers cannot join this hub; `cargo xtask worker` makes it"
            );
        }
    }
}
