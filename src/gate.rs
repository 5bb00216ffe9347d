//! The gate that every movement of money passes: open, or closed while the service is halted.
//!
//! A caller takes a [`Pass`] before it moves money, and keeps it until the movement has ended. So
//! closing the gate can wait until no money moves. Reads need no pass, nor does a write that only
//! records a durable outcome.

use std::sync::Arc;

use tokio::sync::{Notify, OwnedRwLockReadGuard, RwLock, watch};

/// See the module. Shared by the workers, which pass, and by the owner of the halt flag.
#[derive(Debug)]
pub struct Gate {
    closed: watch::Sender<bool>,
    passing: Arc<RwLock<()>>,
}

/// The permission to move money, while it is held.
#[derive(Debug)]
pub struct Pass {
    _passing: OwnedRwLockReadGuard<()>,
}

impl Gate {
    /// A gate that is open or closed.
    pub fn new(closed: bool) -> Gate {
        Gate { closed: watch::Sender::new(closed), passing: Arc::default() }
    }

    /// A permission to move money, `None` if the gate is closed.
    pub fn pass(&self) -> Option<Pass> {
        // The order matters. Closing sets the flag, then waits for open passes; a pass taken later
        // sees the flag. A failed `try_read` means that a closer is waiting.
        let passing = Arc::clone(&self.passing).try_read_owned().ok()?;
        (!self.is_closed()).then_some(Pass { _passing: passing })
    }

    /// Whether the gate is closed.
    pub fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Refuses every pass from now on.
    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Allows passes again. No call of [`Gate::quiet`] may be waiting.
    pub fn open(&self) {
        self.closed.send_replace(false);
    }

    /// Returns when every pass has been dropped. Call it after [`Gate::close`].
    pub async fn quiet(&self) {
        drop(self.passing.write().await);
    }

    /// Notifies of every change.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }
}

/// Clean rounds of the audit, for external withdrawals that wait for one.
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
    /// Records a clean round that began at `began_ns` (monotonic) and has compared everything new.
    pub fn ended(&self, began_ns: u64) {
        let before = self.began_ns.send_replace(began_ns);
        debug_assert!(before <= began_ns, "rounds end in the order in which they began");
    }

    /// Whether a clean round began after `moved_ns` (monotonic).
    pub fn has_one_after(&self, moved_ns: u64) -> bool {
        *self.began_ns.borrow() > moved_ns
    }

    /// Changes with each clean round.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.began_ns.subscribe()
    }

    /// Requests a round now.
    pub fn want(&self) {
        self.wanted.notify_one();
    }

    /// Returns when a round is requested.
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
