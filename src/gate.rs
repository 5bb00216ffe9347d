//! The gate that everything which moves money passes: open, or closed while the service is halted.
//!
//! Whoever is about to move money takes a [`Pass`] and keeps it until that has ended, so that whoever closes the gate can
//! wait until nothing moves any more. What is read, and what only writes down an outcome that is durable already, needs
//! none.

use std::sync::Arc;

use tokio::sync::{Notify, OwnedRwLockReadGuard, RwLock, watch};

/// See the module. Shared by the workers, who pass, and by whoever halts and resumes.
#[derive(Debug)]
pub struct Gate {
    closed: watch::Sender<bool>,
    passing: Arc<RwLock<()>>,
}

/// The permission to move money, for as long as it is held.
#[derive(Debug)]
pub struct Pass {
    _passing: OwnedRwLockReadGuard<()>,
}

impl Gate {
    /// A gate that is open or closed.
    pub fn new(closed: bool) -> Gate {
        Gate { closed: watch::Sender::new(closed), passing: Arc::default() }
    }

    /// Lets the caller move money, unless the gate is closed.
    pub fn pass(&self) -> Option<Pass> {
        // In this order: whoever closes the gate sets the flag first and then waits for the passes, so that a caller
        // who is not seen waiting for sees the flag. A lock that is taken is one who waits, behind a closed gate.
        let passing = Arc::clone(&self.passing).try_read_owned().ok()?;
        (!self.is_closed()).then_some(Pass { _passing: passing })
    }

    /// Whether nobody passes.
    pub fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Lets nobody pass from now on.
    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Lets everybody pass again. Nobody may be waiting in [`Gate::quiet`].
    pub fn open(&self) {
        self.closed.send_replace(false);
    }

    /// Returns once everybody who has passed is through. To be waited for behind a closed gate.
    pub async fn quiet(&self) {
        drop(self.passing.write().await);
    }

    /// Tells of every change.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }
}

/// Rounds of the audit that have ended clean, for withdrawals to the outside that wait for one.
#[derive(Debug)]
pub struct CleanRounds {
    /// When the last one began, monotonic ns; 0 for none.
    began_ns: watch::Sender<u64>,
    wanted: Notify,
}

impl Default for CleanRounds {
    fn default() -> CleanRounds {
        CleanRounds { began_ns: watch::Sender::new(0), wanted: Notify::new() }
    }
}

impl CleanRounds {
    /// A round that began at `began_ns` (monotonic) has compared everything new, and found nothing.
    pub fn ended(&self, began_ns: u64) {
        self.began_ns.send_replace(began_ns);
    }

    /// Whether one began after `moved_ns` (monotonic).
    pub fn has_one_after(&self, moved_ns: u64) -> bool {
        *self.began_ns.borrow() > moved_ns
    }

    /// Changes with each one.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.began_ns.subscribe()
    }

    /// Asks for a round now.
    pub fn want(&self) {
        self.wanted.notify_one();
    }

    /// Returns once a round is asked for.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn a_closed_gate_lets_nobody_pass_and_is_quiet_when_all_are_through() {
        let gate = Gate::new(false);
        let (one, two) = (gate.pass().expect("open"), gate.pass().expect("open"));
        gate.close();
        assert!(gate.pass().is_none());
        let mut context = Context::from_waker(Waker::noop());
        let mut quiet = pin!(gate.quiet());
        for pass in [one, two] {
            assert_eq!(quiet.as_mut().poll(&mut context), Poll::Pending);
            drop(pass);
        }
        assert_eq!(quiet.as_mut().poll(&mut context), Poll::Ready(()));
        assert!(gate.pass().is_none());
        gate.open();
        assert!(gate.pass().is_some());
    }

    #[test]
    fn a_gate_may_begin_closed_and_tells_of_each_change() {
        let gate = Gate::new(true);
        let mut watch = gate.watch();
        assert!(gate.pass().is_none());
        gate.open();
        assert!(watch.has_changed().expect("the gate lives"));
        assert!(!*watch.borrow_and_update());
        gate.close();
        assert!(*watch.borrow_and_update());
    }
}
