//! A bell wakes one sleeping thread when there is work for it. While that thread is awake, a ring
//! costs a fence and a load. [`Replies`] wake a session.
//!
//! # The promise
//!
//! A producer that publishes work and then rings wakes the sleeper, unless the sleeper has seen the
//! work itself. No work is missed, in any order in which the two threads' stores reach each other.
//!
//! ```text
//!   producer                    sleeper
//!   publish the work            sleeping = true
//!   fence                       fence
//!   sleeping? then unpark       work? else park
//! ```
//!
//! Of two SeqCst fences one comes first, and the stores before it are visible behind the other. So
//! either the producer sees `sleeping`, or the sleeper sees the work. It is a crate of its own, so
//! that `make loom` tries every interleaving of the production code, with and without either fence.

#[cfg(loom)]
mod model;
mod replies;

use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

#[cfg(not(loom))]
use crossbeam::sync::{Parker, Unparker};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};

#[cfg(loom)]
use crate::model::{Parker, Unparker, fence_of};

pub use self::replies::Replies;

/// The side that fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Bell,
    Sleeper,
}

/// Either side's fence. A model may leave one out, to show that its absence is noticed.
#[cfg(not(loom))]
#[inline]
fn fence_of(_: Side) {
    fence(Ordering::SeqCst);
}

/// Wakes one [`Sleeper`].
#[derive(Debug)]
pub struct Bell {
    sleeping: AtomicBool,
    unparker: Unparker,
}

impl Bell {
    /// Call it after publishing the work that the sleeper waits for.
    #[inline]
    pub fn ring(&self) {
        fence_of(Side::Bell);
        if self.sleeping.load(Ordering::Relaxed) {
            self.unparker.unpark();
        }
    }
}

/// The sleeping end of a [`Bell`]: for one thread.
#[derive(Debug)]
pub struct Sleeper {
    parker: Parker,
    bell: Arc<Bell>,
}

impl Default for Sleeper {
    fn default() -> Sleeper {
        Sleeper::new()
    }
}

impl Sleeper {
    /// A sleeper with a bell of its own.
    pub fn new() -> Sleeper {
        let parker = Parker::new();
        let unparker = parker.unparker().clone();
        Sleeper { parker, bell: Arc::new(Bell { sleeping: AtomicBool::new(false), unparker }) }
    }

    /// The bell that wakes it.
    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Sleeps until the bell rings or `timeout` has passed, unless there is `work` already. May
    /// wake without work.
    pub fn sleep(&self, work: impl Fn() -> bool, timeout: Duration) {
        self.bell.sleeping.store(true, Ordering::Relaxed);
        fence_of(Side::Sleeper);
        if !work() {
            self.parker.park_timeout(timeout);
        }
        self.bell.sleeping.store(false, Ordering::Relaxed);
    }
}
