//! Faults with their targets and times: a pure function of a seed.

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// The shortest and the longest pause before an event.
const QUIET_MILLIS: [u64; 2] = [500, 3_000];
/// The shortest and the longest duration of an event.
const LASTING_MILLIS: [u64; 2] = [100, 2_000];

/// A target of faults. Events of one track do not overlap; those of different tracks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// A worker's process.
    Worker(usize),
    /// The link between that worker and the hub.
    Link(usize),
    /// A worker that comes and goes.
    Guest(usize),
    /// A tab.
    Tab(usize),
    /// A worker on a host of its own.
    Host(usize),
}

/// A fault. Each is undone when its event's time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The process is killed (-9), and restarted with its id and its store.
    Kill,
    /// The process is stopped and continued.
    Stop,
    /// The process is asked to end, and restarted.
    Leave,
    /// A new worker joins, and is killed at the end.
    Join,
    /// Every byte is delayed.
    Delay,
    /// Every chunk has a different delay.
    Jitter,
    /// Some chunks have a very long delay.
    Hiccups,
    /// The link is slow.
    Slow,
    /// No byte passes, and no socket closes.
    Stall,
    /// The connections are reset; new ones are accepted.
    Reset,
    /// The connections are reset; new ones are refused.
    Cut,
    /// The tab is closed and reopened.
    CloseTab,
    /// The page is frozen, as by a browser that saves energy, then closed and reopened.
    FreezeTab,
    /// The host's cable is unplugged, and plugged in again.
    Unplug,
    /// The host loses its power, and no socket is closed. It is restarted.
    PowerCut,
}

/// One fault with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time since the start of the run.
    pub at: Duration,
    /// Its duration.
    pub lasting: Duration,
    /// The fault.
    pub fault: Fault,
}

impl Track {
    fn faults(self) -> &'static [Fault] {
        match self {
            Self::Worker(_) => &[Fault::Kill, Fault::Stop, Fault::Leave],
            Self::Link(_) => &[
                Fault::Delay,
                Fault::Jitter,
                Fault::Hiccups,
                Fault::Slow,
                Fault::Stall,
                Fault::Reset,
                Fault::Cut,
            ],
            Self::Guest(_) => &[Fault::Join],
            Self::Tab(_) => &[Fault::CloseTab, Fault::FreezeTab],
            Self::Host(_) => &[Fault::Unplug, Fault::PowerCut],
        }
    }

    /// A number that is unique to the track.
    fn number(self) -> u64 {
        let (kind, index) = match self {
            Self::Worker(index) => (0, index),
            Self::Link(index) => (1, index),
            Self::Guest(index) => (2, index),
            Self::Tab(index) => (3, index),
            Self::Host(index) => (4, index),
        };
        kind << 32 | index as u64
    }
}

/// The events of one track, in order; all of them end before `length`.
pub fn script(track: Track, seed: u64, length: Duration) -> Vec<Event> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed ^ track.number().wrapping_mul(0x9E37_79B9));
    let mut millis = |[least, most]: [u64; 2]| Duration::from_millis(random.random_range(least..=most));
    let mut times = Vec::new();
    let mut now = Duration::ZERO;
    loop {
        let (at, lasting) = (now + millis(QUIET_MILLIS), millis(LASTING_MILLIS));
        now = at + lasting;
        if now > length {
            break;
        }
        times.push((at, lasting));
    }
    let faults = track.faults();
    // The kinds take turns, from a random first one: even a short run has as many kinds as possible.
    let first = random.random_range(0..faults.len());
    let nth = |n: usize| faults[(first + n) % faults.len()];
    times.into_iter().enumerate().map(|(n, (at, lasting))| Event { at, lasting, fault: nth(n) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACKS: [Track; 10] = [
        Track::Worker(0),
        Track::Worker(1),
        Track::Worker(2),
        Track::Worker(3),
        Track::Link(0),
        Track::Link(1),
        Track::Link(2),
        Track::Link(3),
        Track::Guest(0),
        Track::Guest(1),
    ];

    #[test]
    fn two_minutes_of_four_workers_have_two_hundred_events_whatever_the_seed() {
        let length = Duration::from_secs(120);
        for seed in 0..1_000 {
            let n: usize = TRACKS.iter().map(|track| script(*track, seed, length).len()).sum();
            assert!(n >= 200, "seed {seed} has {n}");
        }
    }

    #[test]
    fn events_of_a_track_follow_each_other_and_are_over_in_time() {
        let length = Duration::from_secs(30);
        for track in TRACKS {
            let events = script(track, 3, length);
            assert!(events.windows(2).all(|two| two[0].at + two[0].lasting < two[1].at), "{track:?}");
            assert!(events.last().is_some_and(|last| last.at + last.lasting <= length), "{track:?}");
            assert!(track.faults().iter().all(|fault| events.iter().any(|e| e.fault == *fault)), "{track:?}");
        }
    }

    #[test]
    fn tracks_and_seeds_differ_and_a_seed_repeats() {
        let length = Duration::from_secs(30);
        assert_eq!(script(TRACKS[0], 1, length), script(TRACKS[0], 1, length));
        assert_ne!(script(TRACKS[0], 1, length), script(TRACKS[0], 2, length));
        let times = |track| script(track, 1, length).iter().map(|e| e.at).collect::<Vec<_>>();
        assert_ne!(times(TRACKS[0]), times(TRACKS[1]));
    }
}
