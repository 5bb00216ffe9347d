//! The till: drives each order at its channel, from its row, until nothing can be paid any more.

use tokio::sync::mpsc;

use crate::recharge::RechargeId;

/// Orders that wait for the till's next look. A full queue loses nothing: the row has its time.
const LOOKS_MAX: usize = 1024;

/// The till, for everything that changes an order.
#[derive(Clone, Debug)]
pub struct Till {
    looks: mpsc::Sender<RechargeId>,
}

impl Till {
    /// A handle, and the end that the till's task listens at.
    pub fn new() -> (Till, mpsc::Receiver<RechargeId>) {
        let (looks, heard) = mpsc::channel(LOOKS_MAX);
        (Till { looks }, heard)
    }

    /// Has the till look at an order now rather than at its time. It changes nothing but the time.
    pub fn look(&self, id: RechargeId) {
        // Full, or stopping: the row is due at its time.
        let _ = self.looks.try_send(id);
    }
}
