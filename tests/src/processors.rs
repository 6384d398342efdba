//! A part of this machine's processors for a process, as if it ran on a machine of its own.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// While it lives, its thread and the processes that this starts stay on a part of the processors.
#[must_use]
#[derive(Debug)]
pub struct Confined {
    before: CpuSet,
}

/// The processors that this thread may use.
pub fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("the processors of this thread cannot be read")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect())
}

/// Confines the calling thread to these processors.
pub fn confine(processors: &[usize]) -> Result<Confined> {
    let before = sched_getaffinity(None).context("the processors of this thread cannot be read")?;
    let mut set = CpuSet::new();
    processors.iter().for_each(|&processor| set.set(processor));
    sched_setaffinity(None, &set).context("this thread cannot be confined to some processors")?;
    Ok(Confined { before })
}

impl Drop for Confined {
    fn drop(&mut self) {
        sched_setaffinity(None, &self.before).expect("a thread may go back to all of its processors");
    }
}
