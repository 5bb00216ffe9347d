//! Wakes callers that wait for a change of an order.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::recharge::RechargeId;

/// The orders that a caller waits for.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<HashMap<RechargeId, watch::Sender<()>>>);

/// One caller that waits, until it is dropped.
pub(super) struct Waiting<'a> {
    waits: &'a Waits,
    id: RechargeId,
    /// `None` once it is dropped.
    changes: Option<watch::Receiver<()>>,
}

impl Waits {
    /// An act on this order has ended.
    pub(super) fn wake(&self, id: RechargeId) {
        if let Some(sender) = self.0.lock().get(&id) {
            sender.send_replace(());
        }
    }

    /// Begins to wait: every act that ends from now on is seen.
    pub(super) fn begin(&self, id: RechargeId) -> Waiting<'_> {
        let mut waits = self.0.lock();
        let changes = waits.entry(id).or_insert_with(|| watch::Sender::new(())).subscribe();
        Waiting { waits: self, id, changes: Some(changes) }
    }
}

impl Waiting<'_> {
    /// Returns once an act has ended that was not seen before.
    pub(super) async fn changed(&mut self) {
        let changes = self.changes.as_mut().expect("not dropped");
        // Its sender stays while it waits.
        drop(changes.changed().await);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waits = self.waits.0.lock();
        // Under the lock: the last one of an order removes it.
        self.changes = None;
        if waits.get(&self.id).is_some_and(|sender| sender.receiver_count() == 0) {
            waits.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Goal: a wake between the look at an order and the wait is not lost, and an order without
    /// callers takes no memory.
    #[test]
    fn each_caller_sees_each_wake_and_leaves_nothing() {
        let waits = Waits::default();
        let id = |number| RechargeId::new(number).expect("not zero");
        let mut both = [waits.begin(id(1)), waits.begin(id(1))];
        waits.wake(id(1));
        waits.wake(id(2));
        for waiting in &mut both {
            assert!(waiting.changed().now_or_never().is_some(), "woken before the wait");
            assert!(waiting.changed().now_or_never().is_none(), "seen once");
        }
        assert_eq!(waits.0.lock().len(), 1);
        drop(both);
        assert_eq!(waits.0.lock().len(), 0);
    }
}
