//! The idempotent processed map: what was decided for each (transfer, operation), successes and refusals alike.
//!
//! It forgets: an outcome below the watermark leaves, not at once but some rows at each command, so that no command
//! waits for all of them. What it has not come to yet is still found. Nothing that is recorded depends on which of
//! them are gone: below the watermark nothing is decided any more, so all they can change is whether a repeat is told
//! the decision or that it is forgotten.

use domain::transfer::{Decision, Op};

use super::external::External;
use super::fact::Fact;
use super::ledger::OUTCOMES_MAX;
use super::ledger::builder::Error;
use super::order::Order;
use super::table::{Misfit, Row, Table};

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
    /// What the record `sequence` of the log, written at `time_ns`, says of an order.
    pub fn new(
        order: &Order,
        decision: Decision,
        balance_after: u128,
        sequence: wal::Sequence,
        time_ns: u64,
    ) -> Recorded {
        let Order { user, asset, amount, order_number, .. } = *order;
        Recorded { user, asset, amount, decision, balance_after, sequence, time_ns, order_number }
    }

    /// What the record `sequence` of the log, written at `time_ns`, says of an external operation.
    pub fn of_external(external: &External, sequence: wal::Sequence, time_ns: u64) -> Recorded {
        let External { user, asset, amount, order_number, decision, balance_after, .. } = *external;
        Recorded { user, asset, amount, decision, balance_after, sequence, time_ns, order_number }
    }

    /// Whether `external` is a repeat of what was recorded.
    pub(super) fn matches_external(&self, external: &External) -> bool {
        let again = Recorded::of_external(external, self.sequence, self.time_ns);
        *self == again
    }

    /// Whether `order` is a repeat of what was decided, and not another order under its name.
    pub(super) fn matches(&self, order: &Order) -> bool {
        let asked = (order.user, order.asset, order.amount, order.order_number);
        (self.user, self.asset, self.amount, self.order_number) == asked
    }
}

/// A [`Recorded`] in its place, without padding: there are millions.
#[derive(Clone, Copy)]
struct Outcome {
    req_id: u128,
    balance_after: u128,
    user: u64,
    amount: u64,
    sequence: wal::Sequence,
    time_ns: u64,
    order_number: u64,
    asset: u32,
    decision: Decision,
    op: Op,
    /// A withdraw whose refund has been recorded.
    refunded: bool,
}

const _: () = assert!(size_of::<Outcome>() == 80);

impl Row for Outcome {
    type Key = (u128, Op);

    fn key(&self) -> (u128, Op) {
        (self.req_id, self.op)
    }
}

impl Outcome {
    fn new(req_id: u128, op: Op, recorded: Recorded) -> Outcome {
        let Recorded {
            user,
            asset,
            amount,
            decision,
            balance_after,
            sequence,
            time_ns,
            order_number,
        } = recorded;
        Outcome {
            req_id,
            balance_after,
            user,
            amount,
            sequence,
            time_ns,
            order_number,
            asset,
            decision,
            op,
            refunded: false,
        }
    }

    fn recorded(&self) -> Recorded {
        let Outcome {
            user,
            asset,
            amount,
            decision,
            balance_after,
            sequence,
            time_ns,
            order_number,
            ..
        } = *self;
        Recorded { user, asset, amount, decision, balance_after, sequence, time_ns, order_number }
    }

    fn fact(&self) -> Fact {
        Fact::Outcome { req_id: self.req_id, op: self.op, recorded: self.recorded() }
    }

    /// Whether this withdraw is what `refund` gives back.
    fn pays_for(&self, refund: &Outcome) -> bool {
        let given = (refund.user, refund.asset, refund.amount, refund.order_number);
        self.reserves() && (self.user, self.asset, self.amount, self.order_number) == given
    }

    /// Whether a place is kept free for its refund.
    fn reserves(&self) -> bool {
        self.op.row().undone_by.is_some() && self.decision == Decision::Success && !self.refunded
    }
}

/// At most `places` outcomes. A successful WITHDRAW takes two: its own and that of the REFUND it may need, so that a
/// refund always finds its place.
pub(super) struct Outcomes {
    table: Table<Outcome>,
    places: usize,
    /// Successful withdraws not refunded: one place each is kept free.
    reserved: usize,
    /// The sum of the digests of those that have left.
    evicted: u128,
    /// Rows before this one have been looked at since the watermark rose.
    looked: usize,
    /// The watermark has risen meanwhile: after the last row comes the first again.
    again: bool,
}

impl Outcomes {
    pub(super) fn new(places: usize) -> Outcomes {
        let table = Table::new(places);
        Outcomes { table, places, reserved: 0, evicted: 0, looked: 0, again: false }
    }

    pub(super) fn prefault(&mut self) {
        self.table.prefault();
    }

    pub(super) fn len(&self) -> usize {
        self.table.rows().len()
    }

    /// Places that neither an outcome nor a promised refund takes.
    pub(super) fn places_left(&self) -> usize {
        self.table.places_left() - self.reserved
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u128, Op, Recorded)> + '_ {
        self.table.rows().iter().map(|outcome| (outcome.req_id, outcome.op, outcome.recorded()))
    }

    pub(super) fn get(&self, req_id: u128, op: Op) -> Option<Recorded> {
        self.table.get((req_id, op)).map(Outcome::recorded)
    }

    /// See [`Table::expect_slot`].
    #[inline]
    pub(super) fn expect_slot(&self, req_id: u128, op: Op) {
        self.table.expect_slot((req_id, op));
    }

    /// Whether such a decision can be recorded.
    pub(super) fn has_place(&self, op: Op, decision: Decision) -> bool {
        op.places(decision) <= self.places_left()
    }

    pub(super) fn insert(&mut self, req_id: u128, op: Op, recorded: Recorded) {
        let outcome = Outcome::new(req_id, op, recorded);
        if let Some(undone) = op.row().undoes {
            let paid = self.table.get_mut((req_id, undone)).expect("decided by its withdraw");
            assert!(paid.reserves(), "{req_id:032x} refunded twice");
            paid.refunded = true;
            self.reserved -= 1;
        }
        self.reserved += usize::from(outcome.reserves());
        self.table.insert(outcome);
        assert!(self.len() + self.reserved <= self.places, "{} places", self.places);
    }

    /// The sum of the digests of those that have left.
    pub(super) fn evicted(&self) -> u128 {
        self.evicted
    }

    /// The watermark has risen: every row is to be looked at, once the look round that is under way has ended, or the
    /// last rows might never be come to.
    pub(super) fn risen(&mut self) {
        self.again = true;
    }

    /// Whether all that is below the watermark has left.
    pub(super) fn has_forgotten(&self) -> bool {
        self.looked == self.len() && !self.again
    }

    /// Looks at up to `looks_max` rows and lets up to `leaves_max` of them go.
    pub(super) fn forget(&mut self, watermark: u64, looks_max: usize, leaves_max: usize) {
        let mut leaves = 0;
        for _ in 0..looks_max {
            if self.looked == self.len() {
                if !self.again {
                    return;
                }
                self.again = false;
                self.looked = 0;
            } else if self.table.rows()[self.looked].order_number >= watermark {
                self.looked += 1;
            } else if leaves == leaves_max {
                return;
            } else {
                // The last row, which has not been looked at, takes its position.
                leaves += 1;
                self.leave(self.looked);
            }
        }
    }

    fn leave(&mut self, position: usize) {
        let outcome = self.table.remove(position);
        // Below the watermark its transfer has ended, so the refund that a place was kept for will not come.
        self.reserved -= usize::from(outcome.reserves());
        self.evicted = self.evicted.wrapping_add(outcome.fact().digest());
    }

    /// Puts back what a snapshot holds; [`Outcomes::settle`] comes after the last.
    pub(super) fn restore(
        &mut self,
        req_id: u128,
        op: Op,
        recorded: Recorded,
    ) -> Result<(), Misfit> {
        self.table.try_insert(Outcome::new(req_id, op, recorded))
    }

    /// Forgets what is below the watermark and keeps places for the refunds that the rest may need.
    pub(super) fn settle(&mut self, evicted: u128, watermark: u64) -> Result<(), Error> {
        self.evicted = evicted;
        self.reserved = self.table.rows().iter().filter(|outcome| outcome.reserves()).count();
        self.forget(watermark, usize::MAX, usize::MAX);
        for position in 0..self.len() {
            let refund = self.table.rows()[position];
            if let Some(undone) = refund.op.row().undoes {
                let paid = self.table.get_mut((refund.req_id, undone));
                let Some(paid) = paid.filter(|paid| paid.pays_for(&refund)) else {
                    let why = "nothing was withdrawn";
                    return Err(Error::Impossible { fact: refund.fact(), why });
                };
                paid.refunded = true;
                self.reserved -= 1;
            }
        }
        match self.len() + self.reserved <= self.places {
            true => Ok(()),
            false => Err(Error::Full(OUTCOMES_MAX)),
        }
    }
}
