//! `cargo xtask`: the commands that build, check and measure the project.
fn main() {}
