//! The signers that this node owns, for the desk and for arrivals. The lease keeper alone changes
//! them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use alloy_primitives::Address;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::owner::Order;
use crate::store::Lease;

/// An owned signer with its owner.
#[derive(Clone)]
pub(crate) struct Seat {
    pub(crate) lease: Lease,
    pub(crate) orders: mpsc::Sender<Order>,
}

/// The owned signers.
#[derive(Default)]
pub(crate) struct Seats {
    seats: Mutex<BTreeMap<Address, Seat>>,
    is_stopping: AtomicBool,
}

impl Seats {
    /// The owner of a signer, if it takes orders.
    pub(crate) fn get(&self, signer: Address) -> Option<Seat> {
        self.seats.lock().get(&signer).cloned()
    }

    /// All of them, by signer.
    pub(crate) fn all(&self) -> Vec<Seat> {
        self.seats.lock().values().cloned().collect()
    }

    /// Seats an owner.
    pub(crate) fn take(&self, seat: Seat) {
        self.seats.lock().insert(seat.lease.signer, seat);
    }

    /// Ends the orders to an owner. A later owner of the same signer stays.
    pub(crate) fn leave(&self, lease: Lease) {
        let mut seats = self.seats.lock();
        if seats.get(&lease.signer).is_some_and(|seat| seat.lease == lease) {
            seats.remove(&lease.signer);
        }
    }

    /// Whether the node is at its end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Ends the orders to all owners, for good.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.seats.lock().clear();
    }
}
