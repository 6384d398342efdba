//! Limits connections, in total and per address. Beyond the limit, a new connection replaces the one
//! that has been idle longest, so that peers who only hold connections open keep nobody out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Maximum connections, if the system allows that many files.
const MAX_CONNECTIONS: usize = 8192;
/// Maximum connections per address. Those from this machine, including a proxy's, are bounded only by the total.
const MAX_CONNECTIONS_PER_ADDRESS: usize = 512;
/// Files reserved for everything else: listeners, shards, logs, worker processes.
const RESERVED_FILES: usize = 128;
/// Maximum connections that were told to end and have not yet; beyond it new ones are refused.
const MAX_LEAVING: usize = 64;

/// The limit and the open connections. Clones share them.
#[derive(Clone, Debug)]
pub struct ConnectionLimit(Arc<Table>);

#[derive(Debug)]
struct Table {
    max: usize,
    taken: Mutex<Connections>,
}

#[derive(Debug, Default)]
struct Connections {
    /// Counts activity: the connection with the lowest number has been idle longest.
    clock: u64,
    open: HashMap<u64, Connection>,
    n_leaving: usize,
}

#[derive(Debug)]
struct Connection {
    address: IpAddr,
    phase: Phase,
    since: u64,
    leave: Arc<Notify>,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has not sent a request or joined yet.
    Waiting,
    /// A request of it is being answered.
    Served,
    /// It is a worker that has joined.
    Joined,
    /// It was told to end.
    Leaving,
}

/// Permission for one connection; given back when all clones are dropped.
#[derive(Clone, Debug)]
pub(super) struct ConnectionPermit(Arc<Permit>);

#[derive(Debug)]
struct Permit {
    id: u64,
    table: Arc<Table>,
    leave: Arc<Notify>,
}

impl ConnectionLimit {
    /// As many connections as this process's file limit allows, at most `MAX_CONNECTIONS`.
    pub fn for_this_process() -> Self {
        let files = super::files::raise_limit();
        super::files::make_room(files.min(MAX_CONNECTIONS + RESERVED_FILES));
        Self::new(MAX_CONNECTIONS.min(files.saturating_sub(RESERVED_FILES)).max(1))
    }

    /// A limit of `max` connections.
    pub fn new(max: usize) -> Self {
        Self(Arc::new(Table { max, taken: Mutex::default() }))
    }

    /// Admits a new connection, unless no idle connection can be displaced.
    pub(super) fn take(&self, address: IpAddr) -> Option<ConnectionPermit> {
        let address = address.to_canonical();
        let mut taken = self.0.lock();
        let of_address = || taken.open.values().filter(|connection| connection.address == address);
        if !address.is_loopback() && of_address().count() >= MAX_CONNECTIONS_PER_ADDRESS {
            taken.make_room(address)?;
        } else if taken.open.len() >= self.0.max {
            let crowded = taken.most_waiting()?;
            taken.make_room(crowded)?;
        }
        let id = taken.tick();
        let leave = Arc::new(Notify::new());
        let connection = Connection { address, phase: Phase::Waiting, since: id, leave: leave.clone() };
        taken.open.insert(id, connection);
        Some(ConnectionPermit(Arc::new(Permit { id, table: self.0.clone(), leave })))
    }

    /// Tells the longest idle connection to end, since the system has less room than the limit says.
    pub(super) fn relieve(&self) {
        let mut taken = self.0.lock();
        if let Some(crowded) = taken.most_waiting() {
            // If too many are ending already, there is room soon.
            let _ = taken.make_room(crowded);
        }
    }

    #[cfg(test)]
    fn n_taken(&self) -> usize {
        self.0.lock().open.len()
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The address with the most idle connections.
    fn most_waiting(&self) -> Option<IpAddr> {
        let mut waiting: HashMap<IpAddr, usize> = HashMap::new();
        for connection in self.open.values().filter(|connection| connection.phase == Phase::Waiting) {
            *waiting.entry(connection.address).or_default() += 1;
        }
        waiting.into_iter().max_by_key(|(address, n)| (*n, *address)).map(|(address, _)| address)
    }

    /// Tells the longest idle connection of this address to end.
    fn make_room(&mut self, address: IpAddr) -> Option<()> {
        if self.n_leaving >= MAX_LEAVING {
            return None;
        }
        let waiting = self
            .open
            .values_mut()
            .filter(|connection| connection.phase == Phase::Waiting && connection.address == address);
        let oldest = waiting.min_by_key(|connection| connection.since)?;
        oldest.phase = Phase::Leaving;
        oldest.leave.notify_one();
        self.n_leaving += 1;
        Some(())
    }
}

impl ConnectionPermit {
    /// Sets the connection's state.
    pub(super) fn enter(&self, phase: Phase) {
        let mut taken = self.0.table.lock();
        let since = taken.tick();
        if let Some(connection) =
            taken.open.get_mut(&self.0.id).filter(|connection| connection.phase != Phase::Leaving)
        {
            (connection.phase, connection.since) = (phase, since);
        }
    }

    /// Resolves when a new connection replaces this one.
    pub(super) async fn taken_away(&self) {
        self.0.leave.notified().await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.table.lock();
        if taken.open.remove(&self.id).is_some_and(|connection| connection.phase == Phase::Leaving) {
            taken.n_leaving -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn there(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn is_told(permit: &ConnectionPermit) -> bool {
        use futures_util::FutureExt;
        permit.taken_away().now_or_never().is_some()
    }

    #[test]
    fn a_newcomer_takes_the_seat_of_who_has_waited_longest() {
        let limit = ConnectionLimit::new(3);
        let [worker, first, second] = [(); 3].map(|()| limit.take(HERE).unwrap());
        worker.enter(Phase::Joined);
        first.enter(Phase::Served);
        first.enter(Phase::Waiting);
        let newcomer = limit.take(there(1)).unwrap();
        assert!(is_told(&second) && !is_told(&first) && !is_told(&worker) && !is_told(&newcomer));
        drop(second);
        assert_eq!(limit.n_taken(), 3);
    }

    #[test]
    fn who_holds_most_seats_idle_gives_one_up_first() {
        let limit = ConnectionLimit::new(4);
        let alone = limit.take(there(1)).unwrap();
        let crowd = [(); 3].map(|()| limit.take(there(2)).unwrap());
        let _newcomer = limit.take(there(3)).unwrap();
        assert!(is_told(&crowd[0]) && !is_told(&alone));
    }

    #[test]
    fn where_everybody_is_served_a_newcomer_is_refused() {
        let limit = ConnectionLimit::new(2);
        let taken = [(); 2].map(|()| limit.take(HERE).unwrap());
        taken.iter().for_each(|permit| permit.enter(Phase::Served));
        assert!(limit.take(HERE).is_none());
        drop(taken);
        assert!(limit.take(HERE).is_some());
    }

    #[test]
    fn one_address_has_its_bound_and_this_machine_has_none() {
        let limit = ConnectionLimit::new(MAX_CONNECTIONS);
        let mut taken: Vec<ConnectionPermit> =
            (0..MAX_CONNECTIONS_PER_ADDRESS).map(|_| limit.take(there(1)).unwrap()).collect();
        taken.iter().for_each(|permit| permit.enter(Phase::Served));
        assert!(limit.take(there(1)).is_none() && limit.take(there(2)).is_some());
        taken.extend((0..=MAX_CONNECTIONS_PER_ADDRESS).map(|_| limit.take(HERE).unwrap()));
    }

    #[test]
    fn where_the_system_has_less_room_whoever_waits_makes_some() {
        let limit = ConnectionLimit::new(8);
        let [first, second] = [(); 2].map(|()| limit.take(HERE).unwrap());
        limit.relieve();
        assert!(is_told(&first) && !is_told(&second));
    }

    #[test]
    fn those_told_to_leave_are_bounded_too() {
        let limit = ConnectionLimit::new(MAX_LEAVING + 1);
        let _taken: Vec<ConnectionPermit> = (0..=MAX_LEAVING).map(|_| limit.take(HERE).unwrap()).collect();
        let newcomers: Vec<ConnectionPermit> = (0..2 * MAX_LEAVING).map_while(|_| limit.take(HERE)).collect();
        assert_eq!(newcomers.len(), MAX_LEAVING);
    }
}
