//! Transfers in the hands of the workers, for monitoring. Each worker updates its own; no decision
//! depends on it.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::postgres::store::Transfer;
use domain::asset::AssetId;
use domain::transfer::State;

/// One map per worker, so that no two workers wait for each other.
#[derive(Debug)]
pub(super) struct Hands(Box<[Mutex<HashMap<u64, Held>>]>);

/// Why the last try of a transfer failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastError {
    /// The kind: `held_up`, `refused`, `store`, or an outcome of a participant, such as `timeout`.
    pub class: &'static str,
    /// The SQLSTATE of PostgreSQL, if there is one, such as 55P03.
    pub sqlstate: Option<String>,
    /// The error and its causes.
    pub text: String,
    /// When, ns since the Unix epoch.
    pub at_ns: u64,
}

#[derive(Debug)]
struct Held {
    last_error: Option<LastError>,
    state: State,
    asset: AssetId,
    /// Its amount in flight, smallest units.
    in_flight: u64,
    created_at: Timestamp,
}

/// The transfers in hand of all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InHand {
    /// Transfers by their state in the store; a state without transfers is absent.
    pub by_state: BTreeMap<State, u64>,
    /// When the oldest of them was accepted, by the store's clock.
    pub oldest: Option<Timestamp>,
    /// Money that the source has paid and the target has not received, smallest units. It follows
    /// the store, so Spot's part counts only after the next commit. The audit, which must be exact,
    /// counts operations.
    pub in_flight: BTreeMap<AssetId, u128>,
}

impl Hands {
    pub(super) fn new(workers: usize) -> Hands {
        assert!(workers > 0, "a pool without workers");
        Hands((0..workers).map(|_| Mutex::default()).collect())
    }

    /// A worker has this transfer in hand, with this state in the store.
    pub(super) fn hold(&self, worker: usize, transfer: &Transfer) {
        let Transfer { intent, state, created_at, .. } = transfer;
        let in_flight = if state.is_in_flight() { intent.amount.units() } else { 0 };
        let (state, asset, created_at) = (*state, intent.asset, *created_at);
        // It has moved, so an earlier error does not apply to this state.
        let held = Held { last_error: None, state, asset, in_flight, created_at };
        self.0[worker].lock().insert(intent.order_number, held);
    }

    /// Its money has arrived, or is back, though the store does not have that yet.
    pub(super) fn arrived(&self, worker: usize, order_number: u64) {
        if let Some(held) = self.0[worker].lock().get_mut(&order_number) {
            held.in_flight = 0;
        }
    }

    /// A try of it has failed.
    pub(super) fn fail(&self, worker: usize, order_number: u64, error: LastError) {
        if let Some(held) = self.0[worker].lock().get_mut(&order_number) {
            held.last_error = Some(error);
        }
    }

    /// See [`super::Coordinator::last_error`].
    pub(super) fn last_error(&self, worker: usize, order_number: u64) -> Option<LastError> {
        self.0[worker].lock().get(&order_number)?.last_error.clone()
    }

    /// It has ended.
    pub(super) fn let_go(&self, worker: usize, order_number: u64) {
        self.0[worker].lock().remove(&order_number);
    }

    /// Adds everything up, one worker after the other.
    pub(super) fn look(&self) -> InHand {
        let mut sum = InHand::default();
        for worker in &self.0 {
            for held in worker.lock().values() {
                *sum.by_state.entry(held.state).or_default() += 1;
                let oldest = sum.oldest.get_or_insert(held.created_at);
                *oldest = held.created_at.min(*oldest);
                *sum.in_flight.entry(held.asset).or_default() += u128::from(held.in_flight);
            }
        }
        sum
    }
}
