//! The processed map: the decision of each (transfer, operation), successes and refusals alike. It
//! makes every command idempotent.
//!
//! Outcomes below the watermark are evicted, a few rows at each command, so that no command waits
//! for all of them. A row that is not evicted yet is still found. No record depends on which rows
//! are evicted: below the watermark nothing is decided any more. A repeat is answered with its
//! decision, or as forgotten.

use domain::transfer::{Decision, Op};

use crate::fact::Fact;
use crate::recorded::Recorded;
use crate::table::{Misfit, Row, Table};

/// Restored outcomes that no ledger can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsettled {
    /// An operation that undoes another one, without that one's success.
    Unpaid(Fact),
    /// More outcomes than places.
    Full,
}

/// A [`Recorded`] as a row, without padding: there are millions of them.
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
    /// A withdraw with a recorded refund.
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

    /// Whether `refund` gives back this withdraw.
    fn pays_for(&self, refund: &Outcome) -> bool {
        let given = (refund.user, refund.asset, refund.amount, refund.order_number);
        self.reserves() && (self.user, self.asset, self.amount, self.order_number) == given
    }

    /// Whether a place is kept free for the operation that can undo it.
    fn reserves(&self) -> bool {
        self.op.row().undone_by.is_some() && self.decision == Decision::Success && !self.refunded
    }
}

/// At most `places` outcomes. A successful WITHDRAW takes two places, its own and that of its
/// REFUND: a refund always finds its place free.
pub(crate) struct Outcomes {
    table: Table<Outcome>,
    places: usize,
    /// Successful withdraws without a refund: one place each is kept free.
    reserved: usize,
    /// The sum of the digests of all evicted outcomes.
    evicted: u128,
    /// Rows before this position have been checked since the watermark rose.
    looked: usize,
    /// The watermark has risen since: after the last row the check starts again at the first.
    again: bool,
}

impl Outcomes {
    pub(crate) fn new(places: usize) -> Outcomes {
        let table = Table::new(places);
        Outcomes { table, places, reserved: 0, evicted: 0, looked: 0, again: false }
    }

    pub(crate) fn prefault(&mut self) {
        self.table.prefault();
    }

    pub(crate) fn len(&self) -> usize {
        self.table.rows().len()
    }

    /// Places without an outcome and without a refund that may still come.
    pub(crate) fn places_left(&self) -> usize {
        self.table.places_left() - self.reserved
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u128, Op, Recorded)> + '_ {
        self.table.rows().iter().map(|outcome| (outcome.req_id, outcome.op, outcome.recorded()))
    }

    pub(crate) fn get(&self, req_id: u128, op: Op) -> Option<Recorded> {
        self.table.get((req_id, op)).map(Outcome::recorded)
    }

    /// See [`Table::expect_slot`].
    #[inline]
    pub(crate) fn expect_slot(&self, req_id: u128, op: Op) {
        self.table.expect_slot((req_id, op));
    }

    /// Whether there is a place for this decision.
    pub(crate) fn has_place(&self, op: Op, decision: Decision) -> bool {
        op.places(decision) <= self.places_left()
    }

    /// Records a decision. Panics without a place, or if it is recorded already.
    pub(crate) fn insert(&mut self, req_id: u128, op: Op, recorded: Recorded) {
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

    /// The sum of the digests of all evicted outcomes.
    pub(crate) fn evicted(&self) -> u128 {
        self.evicted
    }

    /// Adds the digests of answers of venues that have left.
    pub(crate) fn add_evicted(&mut self, digests: u128) {
        self.evicted = self.evicted.wrapping_add(digests);
    }

    /// The watermark has risen: every row must be checked again. The round under way ends first, or
    /// the last rows might never be reached.
    pub(crate) fn risen(&mut self) {
        self.again = true;
    }

    /// Whether every outcome below the watermark is evicted.
    pub(crate) fn has_forgotten(&self) -> bool {
        self.looked == self.len() && !self.again
    }

    /// Checks up to `looks_max` rows and evicts up to `leaves_max` of them.
    pub(crate) fn forget(&mut self, watermark: u64, looks_max: usize, leaves_max: usize) {
        debug_assert!(self.looked <= self.len(), "{} of {}", self.looked, self.len());
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
                // The last row, not checked yet, takes its position.
                leaves += 1;
                self.evict(self.looked);
            }
        }
    }

    fn evict(&mut self, position: usize) {
        let outcome = self.table.remove(position);
        // Its transfer has ended below the watermark: the refund with the kept place cannot come.
        debug_assert!(
            self.reserved >= usize::from(outcome.reserves()),
            "{} reserved",
            self.reserved
        );
        self.reserved -= usize::from(outcome.reserves());
        self.evicted = self.evicted.wrapping_add(outcome.fact().digest());
    }

    /// Restores one outcome of a snapshot. [`Outcomes::settle`] must follow the last one.
    pub(crate) fn restore(
        &mut self,
        req_id: u128,
        op: Op,
        recorded: Recorded,
    ) -> Result<(), Misfit> {
        self.table.try_insert(Outcome::new(req_id, op, recorded))
    }

    /// Evicts all outcomes below the watermark and keeps places for the refunds of the rest.
    ///
    /// # Errors
    /// [`Unsettled`]: the outcomes are those of no ledger, or there are too few places.
    pub(crate) fn settle(&mut self, evicted: u128, watermark: u64) -> Result<(), Unsettled> {
        self.evicted = evicted;
        self.reserved = self.table.rows().iter().filter(|outcome| outcome.reserves()).count();
        self.forget(watermark, usize::MAX, usize::MAX);
        for position in 0..self.len() {
            let refund = self.table.rows()[position];
            if let Some(undone) = refund.op.row().undoes {
                let paid = self.table.get_mut((refund.req_id, undone));
                let Some(paid) = paid.filter(|paid| paid.pays_for(&refund)) else {
                    return Err(Unsettled::Unpaid(refund.fact()));
                };
                paid.refunded = true;
                self.reserved -= 1;
            }
        }
        match self.len() + self.reserved <= self.places {
            true => Ok(()),
            false => Err(Unsettled::Full),
        }
    }
}
