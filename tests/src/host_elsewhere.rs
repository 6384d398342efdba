//! On systems without network namespaces, creating a [host](Host) is an error.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

/// A host, which cannot exist here.
#[derive(Debug)]
pub struct Host(Infallible);

/// A visit, which cannot exist here.
#[derive(Debug)]
pub struct HostGuard(Infallible);

#[expect(missing_docs, reason = "as on Linux, if there were one")]
impl Host {
    pub fn new() -> Result<Self> {
        bail!("hosts of their own are network namespaces, which only Linux has")
    }

    pub fn boot(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn cut_power(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn gateway(&self) -> Ipv4Addr {
        match self.0 {}
    }

    pub fn command(&self, _program: &Path) -> Command {
        match self.0 {}
    }

    pub fn enter(&self) -> Result<HostGuard> {
        match self.0 {}
    }

    pub fn unplug(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn plug(&self) -> Result<()> {
        match self.0 {}
    }
}
