//! `cargo xtask worker`: builds the worker's bundles for browsers, and checks that the committed ones are fresh.
//!
//! A bundle is the wasm and its JavaScript glue, gzipped as browsers fetch them. It is committed beside the hub, so
//! that users need no wasm toolchain, with the hash of its sources and manifests. There is one bundle for browsers with
//! relaxed SIMD, and one for the others.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{execute, target};
use crate::root;

/// The folder from which the hub embeds the bundle.
const BUNDLE: &str = "hub/src/web/worker";
/// The bundles: the names of their files, and the features that the compiler may use.
const BUNDLES: [(&str, &str); 2] =
    [("moex_worker", "+simd128"), ("moex_worker_relaxed", "+simd128,+relaxed-simd")];
const TARGET: &str = "wasm32-unknown-unknown";
/// The file beside it that contains [`sources_hash`].
const HASH_FILE: &str = "SOURCES.blake3";
/// The bundle's sources: code, shaders, build scripts and manifests of its crates.
const SOURCES: [&str; 7] = [
    "kernels/Cargo.toml",
    "kernels/build",
    "kernels/shader",
    "kernels/src",
    "protocol/Cargo.toml",
    "protocol/src",
    "worker-wasm",
];
/// Folders among these that the bundle's build does not read.
const NOT_SOURCES: [&str; 2] = ["worker-wasm/tests", "worker-wasm/src/native"];
/// The largest size of a bundle in a visitor's first download, wasm and glue together.
pub const MAX_BYTES: u64 = 250_000;

/// The folder of the bundles.
pub fn bundle_folder() -> PathBuf {
    root().join(BUNDLE)
}

/// The two files of each bundle, as browsers fetch them.
pub fn bundles() -> [[PathBuf; 2]; 2] {
    BUNDLES.map(|(name, _)| {
        [format!("{name}.js.gz"), format!("{name}_bg.wasm.gz")].map(|file| bundle_folder().join(file))
    })
}

/// Whether the committed bundles were built from the current sources.
///
/// # Errors
/// If a file cannot be read.
pub fn bundle_is_fresh() -> Result<bool> {
    let path = bundle_folder().join(HASH_FILE);
    let built_from =
        std::fs::read_to_string(&path).with_context(|| format!("{} is missing", path.display()))?;
    Ok(built_from.trim() == sources_hash()? && bundles().iter().flatten().all(|file| file.is_file()))
}

/// The size of a visitor's first download of the larger bundle.
///
/// # Errors
/// If a file cannot be read.
pub fn bundle_bytes() -> Result<u64> {
    let mut most = 0;
    for files in bundles() {
        let bytes = files.iter().map(|file| Ok(std::fs::metadata(file)?.len())).sum::<Result<u64>>()?;
        most = most.max(bytes);
    }
    Ok(most)
}

/// BLAKE3, in hex, over the relative path and the content of every source of the bundle, in the order of the paths.
///
/// # Errors
/// If a file cannot be read.
pub fn sources_hash() -> Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(&root().join(source), &mut files)?;
    }
    files.sort();
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let name = file
            .strip_prefix(root())
            .expect("sources lie below the root")
            .to_string_lossy()
            .replace('\\', "/");
        let content = std::fs::read(&file).with_context(|| format!("{} cannot be read", file.display()))?;
        // Lengths first, so that no two trees give the same stream.
        for part in [name.as_bytes(), &content] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// The files below `path`, or `path` itself if it is a file.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if NOT_SOURCES.iter().any(|folder| path == root().join(folder)) {
        return Ok(());
    }
    if path.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    let entries = std::fs::read_dir(path).with_context(|| format!("{} cannot be read", path.display()))?;
    for entry in entries {
        collect(&entry?.path(), files)?;
    }
    Ok(())
}

/// Builds the bundles and writes them, with their hash, to the folder from which the hub embeds them. Compiles only the
/// worker and the generator of its glue.
///
/// # Errors
/// If cargo or the glue generator fails.
pub fn build_bundles() -> Result<()> {
    let hash = sources_hash()?;
    let folder = bundle_folder();
    std::fs::create_dir_all(&folder)?;
    for (name, features) in BUNDLES {
        let wasm = compile(features)?;
        let target = target().join("glue");
        let paths = [&wasm, &folder, &target].map(|path| path.to_string_lossy().into_owned());
        let [wasm, out, target] = &paths;
        let cargo = ["run", "--quiet", "--locked", "--manifest-path", "tests/glue/Cargo.toml"];
        execute("cargo", &[&cargo[..], &["--target-dir", target, "--", wasm, out, name]].concat())?;
    }
    ensure!(hash == sources_hash()?, "the sources changed while the bundle was built: build it again");
    std::fs::write(folder.join(HASH_FILE), format!("{hash}\n"))?;
    for file in bundles().iter().flatten() {
        eprintln!("{}: {} bytes", file.display(), std::fs::metadata(file)?.len());
    }
    Ok(())
}

/// The wasm from rustc, for browsers with these features.
fn compile(features: &str) -> Result<PathBuf> {
    let worker = ["build", "--package", "moex-worker", "--lib", "--features", "gpu"];
    let flags = flags(features)?;
    let how = ["--target", TARGET, "--profile", "bundle", "--config", &flags];
    let mut cargo = Command::new("cargo");
    // Panics without source locations, which take a fiftieth of the bundle, are an option of the nightly compiler.
    cargo.args([&worker[..], &how].concat()).current_dir(root()).env("RUSTC_BOOTSTRAP", "1");
    let status = cargo.status().context("cargo could not be started")?;
    ensure!(status.success(), "the worker could not be compiled ({status})");
    Ok(target().join(TARGET).join("bundle").join("moex_worker.wasm"))
}

/// The compiler's flags, as a setting of cargo. Remaining file names have paths that are the same on every machine.
fn flags(features: &str) -> Result<String> {
    // Symbol names are part of the glue, and the legacy ones are shorter. Functions that must be inlined for speed are
    // marked in the code.
    const SMALLER: [&str; 4] = [
        "-Zlocation-detail=none",
        "-Zunstable-options",
        "-Csymbol-mangling-version=legacy",
        "-Cllvm-args=-inline-threshold=30",
    ];
    let mut flags: Vec<String> = SMALLER.map(str::to_owned).to_vec();
    flags.push(format!("-Ctarget-feature={features}"));
    flags.push(format!("--remap-path-prefix={}=.", root().display()));
    for crates in registries(&cargo_home()?) {
        flags.push(format!("--remap-path-prefix={}=crates", crates.display()));
    }
    Ok(format!("target.{TARGET}.rustflags={flags:?}"))
}

fn cargo_home() -> Result<PathBuf> {
    let home = || std::env::home_dir().map(|home| home.join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home).context("there is no home directory")
}

/// The folders that cargo unpacks crates into, one for each registry.
fn registries(cargo_home: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cargo_home.join("registry").join("src"));
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
