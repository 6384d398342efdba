//! Memory budgets, with an allocator that has them.

use std::alloc::System;

use moex_hub::budget::{Budgeted, Stopped, within};

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
    assert_eq!(within(1 << 20, || doubled(16)), Ok(1 << 16));
    // What is freed may be taken again.
    assert_eq!(within(1 << 20, || (0..1000).map(|_| doubled(16)).max()), Ok(Some(1 << 16)));
    // All memory of a machine and more.
    assert_eq!(within(1 << 20, || doubled(60)), Err(Stopped::OverBudget));
    assert_eq!(within(1 << 20, || vec![0_u8; 2 << 20].len()), Err(Stopped::OverBudget));
    assert_eq!(doubled(22), 1 << 22, "a thread without a budget has none");
}

#[test]
fn work_that_panics_is_no_result() {
    assert_eq!(within::<()>(1 << 20, || panic!("as the test wants it")), Err(Stopped::Failed));
}
