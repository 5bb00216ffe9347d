//! The processed map: the decision of each (transfer, operation) and of each (transaction,
//! operation, round), successes and refusals alike. It makes every command by name idempotent.
//!
//! Outcomes below the watermark are evicted, a few rows at each command, so that no command waits
//! for all of them. A row that is not evicted yet is still found. No record depends on which rows
//! are evicted: below the watermark nothing is decided any more. A repeat is answered with its
//! decision, or as forgotten. The RESERVE of a transaction with open holds stays: its end is
//! decided below the watermark too.

use domain::transfer::{Decision, Op};

use crate::fact::{Fact, Kept, NamedFact};
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

/// A [`Recorded`] or a [`NamedFact`] as a row, without padding: there are millions of them.
#[derive(Clone, Copy)]
struct Outcome {
    /// The transfer, the external operation or the transaction.
    req_id: u128,
    /// Of a posting the hash of its legs.
    balance_after: u128,
    /// Of a posting its reference.
    user: u64,
    /// Of a posting the places that it keeps, and its failing leg: see `Outcome::kept`.
    amount: u64,
    sequence: wal::Sequence,
    time_ns: u64,
    order_number: u64,
    asset: u32,
    decision: Decision,
    op: Op,
    /// [`REFUNDED`], and the round of a posting.
    marks: u8,
}

/// In the marks: a withdraw with a recorded refund.
const REFUNDED: u8 = 0x80;

const _: () = assert!(size_of::<Outcome>() == 80);

impl Row for Outcome {
    type Key = (u128, u16);

    fn key(&self) -> (u128, u16) {
        key(self.req_id, self.op, self.marks & !REFUNDED)
    }
}

/// The key of an operation. `round`: 0 for a transfer.
#[inline]
fn key(req_id: u128, op: Op, round: u8) -> (u128, u16) {
    (req_id, u16::from(op.number()) << 8 | u16::from(round))
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
            marks: 0,
        }
    }

    fn of_named(named: &NamedFact) -> Outcome {
        let Kept { accounts, balances, freezes, outcomes } = named.kept;
        let kept = [accounts, balances, outcomes, named.leg, freezes, 0, 0, 0];
        Outcome {
            req_id: named.transaction,
            balance_after: named.hash,
            user: named.reference,
            amount: u64::from_le_bytes(kept),
            sequence: named.record,
            time_ns: named.time_ns,
            order_number: named.order_number,
            asset: 0,
            decision: named.decision,
            op: named.op,
            marks: named.round,
        }
    }

    fn named(&self) -> NamedFact {
        let [accounts, balances, outcomes, leg, freezes, ..] = self.amount.to_le_bytes();
        NamedFact {
            transaction: self.req_id,
            op: self.op,
            round: self.marks,
            hash: self.balance_after,
            reference: self.user,
            record: self.sequence,
            time_ns: self.time_ns,
            order_number: self.order_number,
            decision: self.decision,
            leg,
            kept: Kept { accounts, balances, freezes, outcomes },
        }
    }

    /// The RESERVE of a transaction with open holds.
    fn is_open(&self) -> bool {
        self.op.is_posting() && self.named().is_open()
    }

    fn refunded(&self) -> bool {
        self.marks & REFUNDED != 0
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
        if self.op.is_posting() {
            return Fact::Named(self.named());
        }
        Fact::Outcome { req_id: self.req_id, op: self.op, recorded: self.recorded() }
    }

    /// Whether `refund` gives back this withdraw.
    fn pays_for(&self, refund: &Outcome) -> bool {
        let given = (refund.user, refund.asset, refund.amount, refund.order_number);
        self.reserves() && (self.user, self.asset, self.amount, self.order_number) == given
    }

    /// Whether a place is kept free for the operation that can undo it.
    fn reserves(&self) -> bool {
        self.op.row().undone_by.is_some() && self.decision == Decision::Success && !self.refunded()
    }
}

/// At most `places` outcomes. A successful WITHDRAW takes two places, its own and that of its
/// REFUND: a refund always finds its place free.
pub(crate) struct Outcomes {
    table: Table<Outcome>,
    places: usize,
    /// Successful withdraws without a refund, and open RESERVEs: one place each is kept free.
    reserved: usize,
    /// Accounts, balances and freezes that open RESERVEs keep free.
    kept: [usize; 3],
    /// Places that only a RELEASE without a RESERVE takes. It is a bound of this process: no record
    /// depends on it.
    for_ends: usize,
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
        let (reserved, kept, for_ends) = (0, [0; 3], 0);
        Outcomes { table, places, reserved, kept, for_ends, evicted: 0, looked: 0, again: false }
    }

    pub(crate) fn prefault(&mut self) {
        self.table.prefault();
    }

    pub(crate) fn len(&self) -> usize {
        self.table.rows().len()
    }

    /// Places for new work: without an outcome, without a refund that may still come, and without
    /// those kept for ends.
    pub(crate) fn places_left(&self) -> usize {
        self.ends_left().saturating_sub(self.for_ends)
    }

    /// Places for ends that no RESERVE has kept a place for.
    pub(crate) fn ends_left(&self) -> usize {
        self.table.places_left() - self.reserved
    }

    /// Keeps so many places for ends from now on. They may be taken already: new work then waits
    /// until evictions free them.
    pub(crate) fn keep_for_ends(&mut self, places: usize) {
        self.for_ends = places;
    }

    /// The outcomes of transfers and external operations.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u128, Op, Recorded)> + '_ {
        let rows = self.table.rows().iter().filter(|outcome| !outcome.op.is_posting());
        rows.map(|outcome| (outcome.req_id, outcome.op, outcome.recorded()))
    }

    /// The facts of all outcomes.
    pub(crate) fn facts(&self) -> impl Iterator<Item = Fact> + '_ {
        self.table.rows().iter().map(Outcome::fact)
    }

    /// The largest order number, if there is an outcome.
    pub(crate) fn last_order_number(&self) -> Option<u64> {
        self.table.rows().iter().map(|outcome| outcome.order_number).max()
    }

    /// The outcome of an operation of a transfer or an external operation.
    pub(crate) fn get(&self, req_id: u128, op: Op) -> Option<Recorded> {
        let found = self.table.get(key(req_id, op, 0)).filter(|outcome| !outcome.op.is_posting());
        found.map(Outcome::recorded)
    }

    /// The outcome of a posting by name. `round`: 0 for a SETTLE and a RELEASE.
    pub(crate) fn get_named(&self, transaction: u128, op: Op, round: u8) -> Option<NamedFact> {
        self.table.get(key(transaction, op, round)).map(Outcome::named)
    }

    /// Accounts that open RESERVEs keep free.
    #[inline]
    pub(crate) fn kept_accounts(&self) -> usize {
        self.kept[0]
    }

    /// Balances that open RESERVEs keep free.
    #[inline]
    pub(crate) fn kept_balances(&self) -> usize {
        self.kept[1]
    }

    /// Freezes that open RESERVEs keep free.
    #[inline]
    pub(crate) fn kept_freezes(&self) -> usize {
        self.kept[2]
    }

    /// See [`Table::expect_slot`].
    #[inline]
    pub(crate) fn expect_slot(&self, req_id: u128, op: Op) {
        self.table.expect_slot(key(req_id, op, 0));
    }

    /// Whether there is a place for this decision. A deposit ends its transfer, so it is no new
    /// work: without it the watermark could stand still, and no place would ever be free.
    pub(crate) fn has_place(&self, op: Op, decision: Decision) -> bool {
        let ends = op.pays() && op.place_in_transfer().is_some();
        op.places(decision) <= if ends { self.ends_left() } else { self.places_left() }
    }

    /// Records a decision. Panics without a place, or if it is recorded already.
    pub(crate) fn insert(&mut self, req_id: u128, op: Op, recorded: Recorded) {
        let outcome = Outcome::new(req_id, op, recorded);
        if let Some(undone) = op.row().undoes {
            let paid = self.table.get_mut(key(req_id, undone, 0)).expect("decided by its withdraw");
            assert!(paid.reserves(), "{req_id:032x} refunded twice");
            paid.marks |= REFUNDED;
            self.reserved -= 1;
        }
        self.reserved += usize::from(outcome.reserves());
        self.table.insert(outcome);
        assert!(self.len() + self.reserved <= self.places, "{} places", self.places);
    }

    /// Records the decision of a posting by name. Panics without a place, or if it is recorded
    /// already.
    pub(crate) fn insert_named(&mut self, named: &NamedFact) {
        self.keep(named.kept);
        self.table.insert(Outcome::of_named(named));
        assert!(self.len() + self.reserved <= self.places, "{} places", self.places);
    }

    /// The RESERVE of a transaction keeps nothing any more: a later round or an end takes its
    /// places. Returns its facts before and after.
    pub(crate) fn close(
        &mut self,
        transaction: u128,
        round: u8,
        watermark: u64,
    ) -> (NamedFact, NamedFact) {
        let row = self.table.get_mut(key(transaction, Op::Reserve, round)).expect("it is open");
        let before = row.named();
        let after = NamedFact { kept: Kept::default(), ..before };
        *row = Outcome::of_named(&after);
        let Kept { accounts, balances, freezes, outcomes } = before.kept;
        assert_eq!(outcomes, 1, "{transaction:032x} is open");
        self.reserved -= 1;
        self.kept[0] -= usize::from(accounts);
        self.kept[1] -= usize::from(balances);
        self.kept[2] -= usize::from(freezes);
        if after.order_number < watermark {
            // It was checked already, and has stayed.
            self.again = true;
        }
        (before, after)
    }

    fn keep(&mut self, kept: Kept) {
        self.reserved += usize::from(kept.outcomes);
        self.kept[0] += usize::from(kept.accounts);
        self.kept[1] += usize::from(kept.balances);
        self.kept[2] += usize::from(kept.freezes);
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
            } else if self.stays(self.looked, watermark) {
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

    /// Whether no eviction takes the row at a position.
    fn stays(&self, position: usize, watermark: u64) -> bool {
        let outcome = &self.table.rows()[position];
        outcome.order_number >= watermark || outcome.is_open()
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

    /// Restores the outcome of a posting by name of a snapshot.
    pub(crate) fn restore_named(&mut self, named: &NamedFact) -> Result<(), Misfit> {
        self.table.try_insert(Outcome::of_named(named))?;
        self.kept[0] += usize::from(named.kept.accounts);
        self.kept[1] += usize::from(named.kept.balances);
        self.kept[2] += usize::from(named.kept.freezes);
        Ok(())
    }

    /// The open RESERVEs.
    pub(crate) fn open(&self) -> impl Iterator<Item = NamedFact> + '_ {
        self.table.rows().iter().filter(|outcome| outcome.is_open()).map(Outcome::named)
    }

    /// Evicts all outcomes below the watermark and keeps places for the refunds of the rest.
    ///
    /// # Errors
    /// [`Unsettled`]: the outcomes are those of no ledger, or there are too few places.
    pub(crate) fn settle(&mut self, evicted: u128, watermark: u64) -> Result<(), Unsettled> {
        self.evicted = evicted;
        let reserves = |outcome: &&Outcome| outcome.reserves() || outcome.is_open();
        self.reserved = self.table.rows().iter().filter(reserves).count();
        self.forget(watermark, usize::MAX, usize::MAX);
        for position in 0..self.len() {
            let refund = self.table.rows()[position];
            if let Some(undone) = refund.op.row().undoes {
                let paid = self.table.get_mut(key(refund.req_id, undone, 0));
                let Some(paid) = paid.filter(|paid| paid.pays_for(&refund)) else {
                    return Err(Unsettled::Unpaid(refund.fact()));
                };
                paid.marks |= REFUNDED;
                self.reserved -= 1;
            }
        }
        match self.len() + self.reserved <= self.places {
            true => Ok(()),
            false => Err(Unsettled::Full),
        }
    }
}
