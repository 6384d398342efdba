//! A separate host for a process: a network namespace, connected to this machine by one virtual cable that can be
//! unplugged.
//!
//! A socket closed on the same machine always notifies its peer; a failed remote host may never send anything again.

use std::ffi::OsStr;
use std::fs::File;
use std::marker::PhantomData;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The number of hosts that this process has made: each has its own names and addresses.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A host. Dropping it removes it, with everything under way to and from it.
#[derive(Debug)]
pub struct Host {
    name: String,
    cable: String,
    here: Ipv4Addr,
}

impl Host {
    /// Makes a host and switches it on. Needs Linux, iproute2 and the right to create namespaces.
    pub fn new() -> Result<Self> {
        let (process, n) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let host = Self {
            name: format!("moex-{process}-{n}"),
            // The kernel allows at most 15 bytes.
            cable: format!("mx{:x}n{:x}", process & 0xFF_FFFF, n & 0xFFFF),
            here: address(process, n),
        };
        host.boot()?;
        Ok(host)
    }

    /// Switches the host on, in its initial state.
    pub fn boot(&self) -> Result<()> {
        let Self { name, cable, here } = self;
        let there = Ipv4Addr::from(u32::from(*here) + 1);
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add {cable} type veth peer name eth0 netns {name}"))?;
        ip(&format!("address add {here}/30 dev {cable}"))?;
        // No address of its own making: Chromium fails whatever is under way each time an address of the machine changes.
        ip(&format!("link set {cable} addrgenmode none"))?;
        ip(&format!("link set {cable} up"))?;
        ip(&format!("-n {name} address add {there}/30 dev eth0"))?;
        ip(&format!("-n {name} link set lo up"))?;
        self.plug()
    }

    /// Switches the host off. Its processes cannot send anything any more; their owner must end them.
    pub fn cut_power(&self) -> Result<()> {
        // A namespace lives as long as a socket in it, possibly long after the process. So the cable is removed first.
        let cut = ip(&format!("link delete {}", self.cable));
        ip(&format!("netns delete {}", self.name)).and(cut)
    }

    /// This machine's address, as the host sees it.
    pub fn gateway(&self) -> Ipv4Addr {
        self.here
    }

    /// A command that runs on the host.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args([OsStr::new("netns"), "exec".as_ref(), self.name.as_ref(), program.as_os_str()]);
        command
    }

    /// Moves the calling thread to the host until the value is dropped. Sockets that it opens and processes that it
    /// starts meanwhile belong to the host, and stay there.
    pub fn enter(&self) -> Result<HostGuard> {
        let open = |path: &str| File::open(path).with_context(|| format!("{path} cannot be opened"));
        let home = open("/proc/thread-self/ns/net")?;
        move_to(&open(&format!("/run/netns/{}", self.name))?)?;
        Ok(HostGuard { home, _stays_on_its_thread: PhantomData })
    }

    /// Unplugs the cable: data is lost without notice.
    pub fn unplug(&self) -> Result<()> {
        ip(&format!("-n {} link set eth0 down", self.name))
    }

    /// Plugs the cable in again.
    pub fn plug(&self) -> Result<()> {
        ip(&format!("-n {} link set eth0 up", self.name))
    }
}

/// A thread's stay on a [`Host`].
#[must_use]
#[derive(Debug)]
pub struct HostGuard {
    home: File,
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl Drop for HostGuard {
    fn drop(&mut self) {
        move_to(&self.home).expect("a thread may go back to where it came from");
    }
}

fn move_to(network: &File) -> Result<()> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .context("this thread cannot enter a network namespace")
}

impl Drop for Host {
    fn drop(&mut self) {
        // It may be off already, or only partly on.
        drop(self.cut_power());
    }
}

/// The first address of a network of four, out of 10.128.0.0/9.
fn address(process: u32, n: u32) -> Ipv4Addr {
    let network = process.wrapping_mul(64).wrapping_add(n) & 0x1F_FFFF;
    Ipv4Addr::from(0x0A80_0001 | network << 2)
}

fn ip(arguments: &str) -> Result<()> {
    let mut command = Command::new("ip");
    let output = command.args(arguments.split_whitespace()).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("`ip {arguments}` does not run (package iproute2)"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {arguments}` failed: {}", said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_four_do_not_meet() {
        let hosts = [address(1, 0), address(1, 1), address(2, 0), address(0x40_0000, 0)];
        for (i, one) in hosts.iter().enumerate() {
            assert_eq!(u32::from(*one) % 4, 1, "{one}");
            assert!(hosts[..i].iter().all(|other| other != one), "{one}");
            assert_eq!(one.octets()[0], 10);
        }
    }
}
