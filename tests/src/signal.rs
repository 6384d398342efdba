//! Signals to processes. Only Unix has them; elsewhere sending one is an error.

use std::process::Child;

use anyhow::Result;

#[cfg(unix)]
pub use rustix::process::Signal;

/// A signal that no process supports.
#[cfg(not(unix))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(());

#[cfg(not(unix))]
#[expect(missing_docs, reason = "the names are Unix's")]
impl Signal {
    pub const CONT: Self = Self(());
    pub const INT: Self = Self(());
    pub const KILL: Self = Self(());
    pub const STOP: Self = Self(());
    pub const TERM: Self = Self(());
}

/// Sends a signal to a child.
#[cfg(unix)]
pub(crate) fn send(child: &Child, signal: Signal) -> Result<()> {
    Ok(rustix::process::kill_process(rustix::process::Pid::from_child(child), signal)?)
}

/// Fails.
#[cfg(not(unix))]
pub(crate) fn send(_child: &Child, _signal: Signal) -> Result<()> {
    anyhow::bail!("this system has no signals")
}
