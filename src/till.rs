//! The till: drives each order at its channel, from its row, until nothing can be paid any more. It
//! sends paid money on to Spot, and payments back that no order takes.
//!
//! A row is due at its `next_at`, and everything that changes an order sets that time in the same
//! commit. [`step`] decides the next call from the row alone. Each try is written down before its
//! call, by the worker of the order's user, so a try of a superseded process is none. A look only
//! hurries: nothing stands here that is not in a row, beside the jobs in hand.
//!
//! Calls of channels block, so they run on threads of the runtime. Each channel has its own part of
//! them, its own rate, and its own due rows. So one that hangs delays no other.

pub mod bills;
mod call;
mod lane;
mod order;
mod parts;
mod rate;
mod refund;
pub mod step;
mod task;
mod watch;

use tokio::sync::mpsc;
use tracing::debug;

pub use self::parts::{Nudge, TillOptions, TillParts};
use crate::adapters::Adapter;
use crate::recharge::RechargeId;
use crate::task::Tasks;

/// Orders that wait for the till's next look. A full queue loses nothing: the row has its time.
const LOOKS_MAX: usize = 1024;

/// The till, for everything that changes an order.
#[derive(Clone, Debug)]
pub struct Till {
    looks: mpsc::Sender<Nudge>,
}

impl Till {
    /// A handle, and the end that the till's task listens at.
    pub fn new() -> (Till, mpsc::Receiver<Nudge>) {
        let (looks, heard) = mpsc::channel(LOOKS_MAX);
        (Till { looks }, heard)
    }

    /// Has the till look at an order now rather than at its time. It changes nothing but the time.
    pub fn look(&self, id: RechargeId) {
        self.nudge(Nudge::Here(id));
    }

    /// The same at a hint of its channel. An order that is over is asked about once: its money may
    /// have gone back there.
    pub fn hint(&self, id: RechargeId) {
        self.nudge(Nudge::There(id));
    }

    fn nudge(&self, nudge: Nudge) {
        if self.looks.try_send(nudge).is_err() {
            debug!(id = %nudge.id(), "the till is full or stopping: the order is due at its time");
        }
    }
}

/// Starts the till. It ends when every [`Till`] of `heard` is dropped.
pub fn start<T: Adapter, F: Adapter>(
    parts: TillParts<T, F>,
    heard: mpsc::Receiver<Nudge>,
    tasks: &mut Tasks,
) {
    tasks.run("till", task::TillTask::new(parts).run(heard));
}
