//! Budgets of memory and stack, with an allocator that has them.

use std::alloc::System;

use moex_model::budget::{Budgeted, Stopped, within};

#[global_allocator]
static ALLOCATOR: Budgeted<System> = Budgeted(System);

/// A text doubled so often.
fn doubled(times: u32) -> usize {
    let mut text = "x".to_owned();
    for _ in 0..times {
        text = format!("{text}{text}");
    }
    text.len()
}

#[test]
fn work_within_its_budget_ends_and_other_work_is_stopped() {
    let (length, held) = within(1 << 20, || doubled(16)).unwrap();
    assert_eq!(length, 1 << 16);
    assert!((3 << 15..1 << 18).contains(&held), "a text and its half, or twice that: {held}");
    // What is freed may be taken again.
    assert_eq!(
        within(1 << 20, || (0..1000).map(|_| doubled(16)).max()).map(|(longest, _)| longest),
        Ok(Some(1 << 16))
    );
    // All memory of a machine and more.
    assert_eq!(within(1 << 20, || doubled(60)), Err(Stopped::OverBudget));
    assert_eq!(within(1 << 20, || vec![0_u8; 2 << 20].len()), Err(Stopped::OverBudget));
    assert_eq!(doubled(22), 1 << 22, "a thread without a budget has none");
}

#[test]
#[cfg(target_os = "linux")]
fn work_that_overflows_its_stack_is_stopped() {
    fn depth(n: u64) -> u64 {
        std::hint::black_box(n).checked_sub(1).map_or(0, |less| 1 + depth(less))
    }
    assert_eq!(within(1 << 20, || depth(10_000)).map(|(depth, _)| depth), Ok(10_000));
    assert_eq!(within(1 << 20, || depth(1 << 40)), Err(Stopped::OverBudget));
    assert_eq!(within(1 << 20, || depth(1 << 40)), Err(Stopped::OverBudget), "and the next");
}

#[test]
fn work_that_panics_is_no_result() {
    assert_eq!(within::<()>(1 << 20, || panic!("as the test wants it")), Err(Stopped::Failed));
}
