//! Limits connections, in total and per address. If all seats are taken, a new connection takes the seat of the one
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

/// All seats. Clones share them.
#[derive(Clone, Debug)]
pub struct Seats(Arc<Table>);

#[derive(Debug)]
struct Table {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// Counts activity: the connection with the lowest number has been idle longest.
    clock: u64,
    seats: HashMap<u64, Sitting>,
    n_leaving: usize,
}

#[derive(Debug)]
struct Sitting {
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

/// One connection's seat; free again when all clones are dropped.
#[derive(Clone, Debug)]
pub(super) struct Seat(Arc<Held>);

#[derive(Debug)]
struct Held {
    id: u64,
    table: Arc<Table>,
    leave: Arc<Notify>,
}

impl Seats {
    /// As many seats as this process's file limit allows, at most `MAX_CONNECTIONS`.
    pub fn for_this_process() -> Self {
        let files = super::files::raise_limit();
        Self::new(MAX_CONNECTIONS.min(files.saturating_sub(RESERVED_FILES)).max(1))
    }

    /// A limit of `max` connections.
    pub fn new(max: usize) -> Self {
        Self(Arc::new(Table { max, taken: Mutex::default() }))
    }

    /// Takes a seat for a new connection, unless no idle connection can be displaced.
    pub(super) fn take(&self, address: IpAddr) -> Option<Seat> {
        let address = address.to_canonical();
        let mut taken = self.0.lock();
        let of_address = || taken.seats.values().filter(|seat| seat.address == address);
        if !address.is_loopback() && of_address().count() >= MAX_CONNECTIONS_PER_ADDRESS {
            taken.make_room(address)?;
        } else if taken.seats.len() >= self.0.max {
            let crowded = taken.most_waiting()?;
            taken.make_room(crowded)?;
        }
        let id = taken.tick();
        let leave = Arc::new(Notify::new());
        let sitting = Sitting { address, phase: Phase::Waiting, since: id, leave: leave.clone() };
        taken.seats.insert(id, sitting);
        Some(Seat(Arc::new(Held { id, table: self.0.clone(), leave })))
    }

    /// Tells the longest idle connection to end, since the system has less room than there are seats.
    pub(super) fn relieve(&self) {
        let mut taken = self.0.lock();
        if let Some(crowded) = taken.most_waiting() {
            // If too many are ending already, there is room soon.
            let _ = taken.make_room(crowded);
        }
    }

    #[cfg(test)]
    fn n_taken(&self) -> usize {
        self.0.lock().seats.len()
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The address with the most idle connections.
    fn most_waiting(&self) -> Option<IpAddr> {
        let mut waiting: HashMap<IpAddr, usize> = HashMap::new();
        for seat in self.seats.values().filter(|seat| seat.phase == Phase::Waiting) {
            *waiting.entry(seat.address).or_default() += 1;
        }
        waiting.into_iter().max_by_key(|(address, n)| (*n, *address)).map(|(address, _)| address)
    }

    /// Tells the longest idle connection of this address to end.
    fn make_room(&mut self, address: IpAddr) -> Option<()> {
        if self.n_leaving >= MAX_LEAVING {
            return None;
        }
        let waiting =
            self.seats.values_mut().filter(|seat| seat.phase == Phase::Waiting && seat.address == address);
        let oldest = waiting.min_by_key(|seat| seat.since)?;
        oldest.phase = Phase::Leaving;
        oldest.leave.notify_one();
        self.n_leaving += 1;
        Some(())
    }
}

impl Seat {
    /// Sets the connection's state.
    pub(super) fn enter(&self, phase: Phase) {
        let mut taken = self.0.table.lock();
        let since = taken.tick();
        if let Some(seat) = taken.seats.get_mut(&self.0.id).filter(|seat| seat.phase != Phase::Leaving) {
            (seat.phase, seat.since) = (phase, since);
        }
    }

    /// Resolves when a new connection takes this seat.
    pub(super) async fn taken_away(&self) {
        self.0.leave.notified().await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut taken = self.table.lock();
        if taken.seats.remove(&self.id).is_some_and(|seat| seat.phase == Phase::Leaving) {
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

    fn is_told(seat: &Seat) -> bool {
        use futures_util::FutureExt;
        seat.taken_away().now_or_never().is_some()
    }

    #[test]
    fn a_newcomer_takes_the_seat_of_who_has_waited_longest() {
        let seats = Seats::new(3);
        let [worker, first, second] = [(); 3].map(|()| seats.take(HERE).unwrap());
        worker.enter(Phase::Joined);
        first.enter(Phase::Served);
        first.enter(Phase::Waiting);
        let newcomer = seats.take(there(1)).unwrap();
        assert!(is_told(&second) && !is_told(&first) && !is_told(&worker) && !is_told(&newcomer));
        drop(second);
        assert_eq!(seats.n_taken(), 3);
    }

    #[test]
    fn who_holds_most_seats_idle_gives_one_up_first() {
        let seats = Seats::new(4);
        let alone = seats.take(there(1)).unwrap();
        let crowd = [(); 3].map(|()| seats.take(there(2)).unwrap());
        let _newcomer = seats.take(there(3)).unwrap();
        assert!(is_told(&crowd[0]) && !is_told(&alone));
    }

    #[test]
    fn where_everybody_is_served_a_newcomer_is_refused() {
        let seats = Seats::new(2);
        let taken = [(); 2].map(|()| seats.take(HERE).unwrap());
        taken.iter().for_each(|seat| seat.enter(Phase::Served));
        assert!(seats.take(HERE).is_none());
        drop(taken);
        assert!(seats.take(HERE).is_some());
    }

    #[test]
    fn one_address_has_its_bound_and_this_machine_has_none() {
        let seats = Seats::new(MAX_CONNECTIONS);
        let mut taken: Vec<Seat> =
            (0..MAX_CONNECTIONS_PER_ADDRESS).map(|_| seats.take(there(1)).unwrap()).collect();
        taken.iter().for_each(|seat| seat.enter(Phase::Served));
        assert!(seats.take(there(1)).is_none() && seats.take(there(2)).is_some());
        taken.extend((0..=MAX_CONNECTIONS_PER_ADDRESS).map(|_| seats.take(HERE).unwrap()));
    }

    #[test]
    fn where_the_system_has_less_room_whoever_waits_makes_some() {
        let seats = Seats::new(8);
        let [first, second] = [(); 2].map(|()| seats.take(HERE).unwrap());
        seats.relieve();
        assert!(is_told(&first) && !is_told(&second));
    }

    #[test]
    fn those_told_to_leave_are_bounded_too() {
        let seats = Seats::new(MAX_LEAVING + 1);
        let _taken: Vec<Seat> = (0..=MAX_LEAVING).map(|_| seats.take(HERE).unwrap()).collect();
        let newcomers: Vec<Seat> = (0..2 * MAX_LEAVING).map_while(|_| seats.take(HERE)).collect();
        assert_eq!(newcomers.len(), MAX_LEAVING);
    }
}
