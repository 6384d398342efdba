//! `cargo xtask dist`: writes the release archive for this machine's target, with its SHA-256 in a file beside it.
//!
//! ```text
//! target/dist/moex-0.1.0-x86_64-unknown-linux-gnu.tar.gz
//!   moex-0.1.0-x86_64-unknown-linux-gnu/
//!     moex, LICENSE, README.md
//!     completions/moex.bash, _moex, moex.fish, moex.elv, _moex.ps1
//!     man/moex.1, moex-serve.1, ...
//!     moex.service
//! target/dist/moex-0.1.0-x86_64-unknown-linux-gnu.tar.gz.sha256
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ring::digest::{SHA256, digest};

use crate::hub::Moex;

/// The shells with completions, and the file name that each looks for.
const COMPLETIONS: [(&str, &str); 5] = [
    ("bash", "moex.bash"),
    ("zsh", "_moex"),
    ("fish", "moex.fish"),
    ("elvish", "moex.elv"),
    ("powershell", "_moex.ps1"),
];

/// Builds the release binary (or takes `$MOEX_BIN`) and packs it into `target/dist`.
pub fn run() -> Result<()> {
    let folder = crate::root().join("target").join("dist");
    let archive = pack(&super::release()?, &folder)?;
    println!("{}", archive.display());
    println!("{}", fs::read_to_string(sum_file(&archive))?.trim_end());
    Ok(())
}

/// Packs this binary into an archive in `folder`, and returns its path.
///
/// # Errors
/// If a file cannot be read or written, or the system has no `tar`.
pub fn pack(moex: &Moex, folder: &Path) -> Result<PathBuf> {
    let name = format!("moex-{}-{}", env!("CARGO_PKG_VERSION"), host()?);
    let contents = folder.join(&name);
    if contents.exists() {
        fs::remove_dir_all(&contents).with_context(|| contents.display().to_string())?;
    }
    let completions = contents.join("completions");
    fs::create_dir_all(&completions).with_context(|| completions.display().to_string())?;

    let binary = contents.join(format!("moex{}", std::env::consts::EXE_SUFFIX));
    copy(moex.path(), &binary)?;
    let mut others = vec!["LICENSE", "README.md"];
    if cfg!(target_os = "linux") {
        others.push("hub/deploy/moex.service");
    }
    for file in others {
        let from = crate::root().join(file);
        copy(&from, &contents.join(from.file_name().context("a file has a name")?))?;
    }
    for (shell, file) in COMPLETIONS {
        let script = moex.output(&["completions", shell])?;
        fs::write(completions.join(file), script).with_context(|| completions.display().to_string())?;
    }
    let man = contents.join("man");
    moex.run(&["man", man.to_str().context("a path that is text")?])?;

    let archive = folder.join(format!("{name}.tar.gz"));
    let status = Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(folder).arg(&name).status();
    ensure!(
        status.context("tar could not be started")?.success(),
        "tar could not write {}",
        archive.display()
    );
    let bytes = fs::read(&archive).with_context(|| archive.display().to_string())?;
    let sum: String = digest(&SHA256, &bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    // In the format that `sha256sum --check` reads.
    fs::write(sum_file(&archive), format!("{sum}  {name}.tar.gz\n"))?;
    Ok(archive)
}

/// The file with an archive's SHA-256.
pub fn sum_file(archive: &Path) -> PathBuf {
    let mut name = archive.as_os_str().to_owned();
    name.push(".sha256");
    name.into()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("{} cannot be copied", from.display()))?;
    Ok(())
}

/// The target that this machine's compiler builds for.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("rustc could not be started")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its target")?.to_owned())
}
