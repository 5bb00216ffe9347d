//! The idempotent processed map: what was decided for each (transfer, operation), successes and refusals alike.

use hashbrown::HashMap;

use super::fact::Fact;
use super::ledger::Hash;
use super::ledger::builder::Error;
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
        let asked = (order.user, order.asset, order.amount, order.order_number);
        (self.user, self.asset, self.amount, self.order_number) == asked
    }

    /// Whether this withdraw is what `refund` gives back.
    fn pays_for(&self, refund: &Recorded) -> bool {
        let given = (refund.user, refund.asset, refund.amount, refund.order_number);
        self.decision == Decision::Success
            && (self.user, self.asset, self.amount, self.order_number) == given
    }
}

/// Why an outcome cannot be put back.
pub(super) enum Misfit {
    /// It is there already.
    Twice,
    /// There is no place.
    Full,
}

/// At most `places` outcomes. A successful WITHDRAW takes two: its own and that of the REFUND it may need, so that a
/// refund always finds its place.
pub(super) struct Outcomes {
    map: HashMap<(u128, Op), Recorded, Hash>,
    places: usize,
    /// Successful withdraws not refunded: one place each is kept free.
    reserved: usize,
    /// The sum of the digests of those that have left.
    departed: u128,
}

impl Outcomes {
    pub(super) fn new(places: usize) -> Outcomes {
        // Sized once: a map that grew on the core thread would stop it while it moves.
        let map = HashMap::with_capacity_and_hasher(places, Hash::default());
        Outcomes { map, places, reserved: 0, departed: 0 }
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

    /// The sum of the digests of those that have left.
    pub(super) fn departed(&self) -> u128 {
        self.departed
    }

    /// Puts back what a snapshot holds; [`Outcomes::settle`] comes after the last.
    pub(super) fn restore(
        &mut self,
        req_id: u128,
        op: Op,
        recorded: Recorded,
    ) -> Result<(), Misfit> {
        if self.map.contains_key(&(req_id, op)) {
            return Err(Misfit::Twice);
        }
        if self.map.len() == self.places {
            return Err(Misfit::Full);
        }
        self.map.insert((req_id, op), recorded);
        Ok(())
    }

    /// Forgets what is below the watermark and keeps places for the refunds that the rest may need.
    pub(super) fn settle(&mut self, departed: u128, watermark: u64) -> Result<(), Error> {
        self.departed = departed;
        let left = self.map.extract_if(|_, recorded| recorded.order_number < watermark);
        for ((req_id, op), recorded) in left {
            let digest = Fact::Outcome { req_id, op, recorded }.digest();
            self.departed = self.departed.wrapping_add(digest);
        }
        let mut refunds = 0;
        let mut withdraws = 0;
        for (&(req_id, op), recorded) in &self.map {
            match (op, recorded.decision) {
                (Op::Withdraw, Decision::Success) => withdraws += 1,
                (Op::Refund, _) => {
                    let paid = self.map.get(&(req_id, Op::Withdraw));
                    if !paid.is_some_and(|paid| paid.pays_for(recorded)) {
                        let fact = Fact::Outcome { req_id, op, recorded: *recorded };
                        return Err(Error::Impossible { fact, why: "nothing was withdrawn" });
                    }
                    refunds += 1;
                }
                _ => {}
            }
        }
        self.reserved = withdraws - refunds;
        match self.map.len() + self.reserved <= self.places {
            true => Ok(()),
            false => Err(Error::Full("engine.outcomes_max")),
        }
    }
}
