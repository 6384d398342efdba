//! The shipped swarm and the shipped workers on virtual time, with random faults: all invariants hold for the first
//! seeds. `cargo xtask simulate` runs any number of seeds.

use std::thread;

use moex_sim::chaos;

/// As many as a test run has time for: half a minute on two cores.
const N_SEEDS: u64 = 10_000;

#[test]
fn what_must_hold_holds_whatever_happens() {
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    let summary =
        chaos::run_many(0..N_SEEDS, n_threads, |_| ()).unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(summary.seeds, N_SEEDS);
    // Faults without effect check nothing.
    let totals = summary.totals;
    for (what, count) in [
        ("sums", totals.layers),
        ("uncovered jobs", summary.uncovered),
        ("answers", totals.answers),
        ("retries", totals.retries),
        ("hedges", totals.hedges),
        ("timeouts", totals.timeouts),
        ("failures", totals.errors),
        ("late answers", totals.late),
        ("hub computations", totals.hub_computed),
    ] {
        assert!(count > N_SEEDS / 20, "{what}: {count}");
    }
}

#[test]
fn a_seed_repeats_to_the_byte() {
    for seed in 0..20 {
        let trace = || chaos::run(seed, true).unwrap_or_else(|violation| panic!("{violation}")).trace;
        let first = trace();
        assert!(first.lines().count() > 10);
        assert_eq!(first, trace(), "seed {seed}");
    }
}
