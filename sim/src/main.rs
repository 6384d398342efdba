//! The `moex-sim` command.
fn main() {}
