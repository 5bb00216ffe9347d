//! The idempotent processed map: what was decided for each (transfer, operation), successes and refusals alike.

use hashbrown::HashMap;

use super::ledger::Hash;
use super::order::Order;
use crate::transfer::{Decision, Op};

/// What was decided about one operation, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Whose account.
    pub user: u64,
    /// Of what.
    pub asset: u32,
    /// Smallest units.
    pub amount: u64,
    /// The decision.
    pub decision: Decision,
    /// The Spot balance right afterwards, smallest units.
    pub balance_after: u128,
    /// The record that holds it.
    pub sequence: wal::Sequence,
    /// When it was asked, ns since the Unix epoch, by the caller's clock.
    pub time_ns: u64,
    /// The transfer's position in the order of accepts.
    pub order_number: u64,
}

impl Recorded {
    /// Whether `order` is a repeat of what was decided, and not another order under its name.
    pub(super) fn matches(&self, order: &Order) -> bool {
        (self.user, self.asset, self.amount) == (order.user, order.asset, order.amount)
    }
}

/// At most `places` outcomes. A successful WITHDRAW takes two: its own and that of the REFUND it may need, so that a
/// refund always finds its place.
pub(super) struct Outcomes {
    map: HashMap<(u128, Op), Recorded, Hash>,
    places: usize,
    /// Successful withdraws not refunded: one place each is kept free.
    reserved: usize,
}

impl Outcomes {
    pub(super) fn new(places: usize) -> Outcomes {
        // Sized once: a map that grew on the core thread would stop it while it moves.
        let map = HashMap::with_capacity_and_hasher(places, Hash::default());
        Outcomes { map, places, reserved: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// Places that neither an outcome nor a promised refund takes.
    pub(super) fn places_left(&self) -> usize {
        self.places - self.map.len() - self.reserved
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u128, Op, Recorded)> + '_ {
        self.map.iter().map(|(&(req_id, op), recorded)| (req_id, op, *recorded))
    }

    pub(super) fn get(&self, req_id: u128, op: Op) -> Option<Recorded> {
        self.map.get(&(req_id, op)).copied()
    }

    /// Whether such a decision can be recorded.
    pub(super) fn has_place(&self, op: Op, decision: Decision) -> bool {
        let needed = match (op, decision) {
            (Op::Refund, _) => return true,
            (Op::Withdraw, Decision::Success) => 2,
            _ => 1,
        };
        needed <= self.places_left()
    }

    pub(super) fn insert(&mut self, req_id: u128, op: Op, recorded: Recorded) {
        match (op, recorded.decision) {
            (Op::Withdraw, Decision::Success) => self.reserved += 1,
            (Op::Refund, _) => self.reserved -= 1,
            _ => {}
        }
        let before = self.map.insert((req_id, op), recorded);
        assert!(before.is_none(), "{op:?} of {req_id:032x} decided twice");
        assert!(self.map.len() + self.reserved <= self.places, "{} places", self.places);
    }
}
