//! Installs packages that commands need, where the system allows it.

use anyhow::{Result, ensure};

use super::{execute, has};

/// A Debian package, and a test for its presence.
pub struct Need {
    /// Its name.
    pub package: &'static str,
    /// Whether its content is present.
    pub present: fn() -> bool,
}

/// Installs missing packages.
///
/// # Errors
/// If something is still missing: its name, and what to do.
pub fn install(needs: &[Need]) -> Result<()> {
    let missing: Vec<&str> = needs.iter().filter(|need| !(need.present)()).map(|need| need.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing packages: {}", missing.join(", "));
    let installed = has("apt-get")
        && execute("apt-get", &["update", "--quiet"]).is_ok()
        && execute(
            "apt-get",
            &[&["install", "--quiet", "--yes", "--no-install-recommends"], &missing[..]].concat(),
        )
        .is_ok();
    ensure!(
        installed && needs.iter().all(|need| (need.present)()),
        "this needs {}: install them with your system's packages, then run it again",
        missing.join(" and ")
    );
    Ok(())
}
