//! What a long run costs: its memory does not grow with its tokens. How fast it is, `sim/README.md` says.

use std::{cell::Cell, fs};

use moex_sim::{run, scenario::Scenario};

const SIXTEEN_WORKERS: &str = "
[model]
layers = 48
hidden = 64
inner = 64

[[workers]]
count = 16
memory_gib = 0.1
device = 'rtx-3060'
link = 'wifi'

[load]
tokens = 600
";

/// Resident memory of this process, KiB; none where the system does not say.
fn resident_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok())
}

#[test]
fn memory_does_not_grow_with_tokens() {
    if resident_kib().is_none() {
        eprintln!("skipped: this system does not say how much memory a process has");
        return;
    }
    // Tables of the last so many answers fill up first, and are bounded.
    let (early, late) = (Cell::new(0), Cell::new(0));
    let checked = Scenario::parse(SIXTEEN_WORKERS).unwrap();
    let outcome = run::run(&checked, |done, asked| {
        let at = if done == asked / 3 { Some(&early) } else { (done == asked).then_some(&late) };
        if let Some(at) = at {
            at.set(resident_kib().unwrap());
        }
    });
    assert_eq!(outcome.unwrap().n_tokens, 600);
    let (early, late) = (early.get(), late.get());
    assert!(early > 0 && late > 0);
    // An allocator's own unrest; what 400 tokens of 48 layers would leave behind is far more.
    assert!(late < early + 1024, "{early} KiB after 200 tokens, {late} KiB after 600");
}
