//! What the workers have in hand, for whoever watches. Each tells of its transfers as they move; nobody decides by it.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::asset::AssetId;
use crate::postgres::store::Transfer;
use crate::transfer::State;

/// One place per worker, so that no two of them ever wait for each other.
#[derive(Debug)]
pub(super) struct Hands(Box<[Mutex<HashMap<u64, Held>>]>);

#[derive(Debug)]
struct Held {
    state: State,
    asset: AssetId,
    units: u64,
    created_at: Timestamp,
}

/// What all workers have in hand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InHand {
    /// Transfers by state; a state that none is in is absent.
    pub by_state: BTreeMap<State, u64>,
    /// When the oldest of them was accepted, by the store's clock.
    pub oldest: Option<Timestamp>,
    /// What the source has paid and the target has not been given, by the states of the transfers, smallest units. Rather an
    /// amount too large than one too small for the moment that a decision takes to be stored; the audit counts operations.
    pub in_flight: BTreeMap<AssetId, u128>,
}

impl Hands {
    pub(super) fn new(workers: usize) -> Hands {
        Hands((0..workers).map(|_| Mutex::default()).collect())
    }

    /// A worker has this transfer in hand from now on, or has seen it move to `state`.
    pub(super) fn hold(&self, worker: usize, transfer: &Transfer, state: State) {
        let number = transfer.intent.order_number;
        if state.is_terminal() {
            self.let_go(worker, number);
            return;
        }
        let (asset, units) = (transfer.intent.asset, transfer.intent.amount.units());
        let held = Held { state, asset, units, created_at: transfer.created_at };
        self.0[worker].lock().insert(number, held);
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
                let in_flight = match held.state {
                    State::SourceDone | State::TargetPending | State::Compensating => true,
                    State::Init | State::SourcePending => false,
                    State::Committed | State::Failed | State::RolledBack => {
                        unreachable!("it was let go")
                    }
                };
                if in_flight {
                    *sum.in_flight.entry(held.asset).or_default() += u128::from(held.units);
                }
            }
        }
        sum
    }
}
