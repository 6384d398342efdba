//! The content of a release.

use moex_tests::{hub::Moex, xtask::dist};

/// The archive that `cargo xtask dist` packs, unpacked as a user would.
#[test]
fn the_release_archive_has_what_a_package_needs() {
    let folder = tempfile::tempdir().unwrap();
    let archive = dist::pack(&Moex::under_test(), folder.path()).unwrap();
    let name = archive.file_name().unwrap().to_str().unwrap().strip_suffix(".tar.gz").unwrap().to_owned();
    assert!(
        name.starts_with(concat!("moex-", env!("CARGO_PKG_VERSION"), "-"))
            && name.contains(std::env::consts::ARCH)
    );
    let there = folder.path().join("there");
    std::fs::create_dir(&there).unwrap();
    let shell = |command: &str| {
        let status =
            std::process::Command::new("sh").args(["-c", command]).current_dir(folder.path()).status();
        assert!(status.unwrap().success(), "{command}");
    };
    shell(&format!("tar -xzf {name}.tar.gz -C there"));
    if cfg!(target_os = "linux") {
        shell(&format!("sha256sum --check {name}.tar.gz.sha256"));
    }
    let root = there.join(&name);
    let files = [
        "LICENSE",
        "README.md",
        "completions/moex.bash",
        "completions/_moex",
        "man/moex.1",
        "man/moex-serve.1",
    ];
    for file in files {
        assert!(std::fs::metadata(root.join(file)).is_ok_and(|file| file.len() > 500), "{file}");
    }
    shell(&format!("./there/{name}/moex --version"));
}
