//! Replies from one thread to a session on another, which may sleep.
//!
//! # The promise
//!
//! A session that registers its waker, looks, and then sleeps misses no reply and no change before
//! [`Replies::wake`]. The lock around the waker orders the two: either the session's look comes
//! behind the change, or the change finds its waker.
//!
//! A reply may have to wait for a sync on a third thread. So that thread wakes the session too,
//! once its records are durable. `make loom` tries the three threads against each other.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

#[cfg(not(loom))]
use crossbeam::queue::ArrayQueue;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use parking_lot::Mutex;

#[cfg(loom)]
use crate::model::{ArrayQueue, Mutex};

/// The replies to one session, in order, and its wake-up.
#[derive(Debug)]
pub struct Replies<T> {
    queue: ArrayQueue<T>,
    fenced: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl<T> Replies<T> {
    /// No replies. `places`: the most that may wait.
    pub fn new(places: usize) -> Replies<T> {
        let (queue, waker) = (ArrayQueue::new(places), Mutex::new(None));
        Replies { queue, fenced: AtomicBool::new(false), waker }
    }

    /// Adds a reply. The session sleeps on until [`Replies::wake`].
    ///
    /// # Panics
    /// If no place is left.
    pub fn tell(&self, reply: T) {
        assert!(self.queue.push(reply).is_ok(), "no place for a reply");
    }

    /// Takes the oldest reply.
    pub fn take(&self) -> Option<T> {
        self.queue.pop()
    }

    /// Registers the waker of the next change. Look again after this call, and only then sleep.
    pub fn register(&self, waker: &Waker) {
        let mut registered = self.waker.lock();
        match &mut *registered {
            Some(known) => known.clone_from(waker),
            None => *registered = Some(waker.clone()),
        }
    }

    /// Wakes the session after a change.
    pub fn wake(&self) {
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends the session, and wakes it.
    pub fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether the session was ended.
    pub fn fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }
}
