//! Faults of PostgreSQL in a round of a soak, by chance.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::{Cluster, Site, split_mix};

/// The fault of PostgreSQL in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Strike {
    Nothing,
    /// Every connection is ended, again and again.
    Cut,
    /// Every process is stopped for a while.
    Freeze,
    /// Every process is killed, and started again before the round ends.
    Kill,
    /// The same, while the server is dead as well.
    KillBoth,
}

impl Strike {
    pub(crate) const ALL: [Strike; 5] =
        [Strike::Nothing, Strike::Cut, Strike::Freeze, Strike::Kill, Strike::KillBoth];

    /// Strikes once, at a random moment. `dead`: the server of the round has been killed.
    pub(crate) fn hit(self, site: &Site, cluster: &Cluster, random: &Random, dead: &AtomicBool) {
        random.pause(400);
        match self {
            Strike::Nothing => {}
            Strike::Cut => {
                while !dead.load(Ordering::Relaxed) {
                    site.cut_connections();
                    random.pause(40);
                }
            }
            Strike::Freeze => {
                cluster.signal(Signal::STOP);
                random.pause(1_500);
                cluster.signal(Signal::CONT);
            }
            Strike::Kill => {
                cluster.kill();
                random.pause(500);
                cluster.restart();
            }
            Strike::KillBoth => {
                while !dead.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                cluster.kill();
                cluster.restart();
            }
        }
    }
}

/// Random numbers, shared by the threads of a round.
pub(crate) struct Random(Mutex<u64>);

impl Random {
    /// Any seed is valid.
    pub(crate) fn new(seed: u64) -> Random {
        Random(Mutex::new(seed))
    }

    /// A number below `bound`.
    pub(crate) fn below(&self, bound: usize) -> usize {
        let drawn = split_mix(&mut self.0.lock().expect("not poisoned"));
        usize::try_from(drawn % bound as u64).expect("below a usize")
    }

    /// Whether one of `bound` equal chances has come.
    pub(crate) fn once_in(&self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    pub(crate) fn pause(&self, milliseconds_max: usize) {
        thread::sleep(Duration::from_millis(self.below(milliseconds_max) as u64));
    }
}
