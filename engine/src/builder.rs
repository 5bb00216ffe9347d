//! A ledger from facts: built from those that [`Ledger::facts`] returned, one after the other. It
//! can be used only when all of them fit together and add up to the digest stated with them.

use domain::account::UserId;
use domain::amount::PRECISION_MAX;
use domain::transfer::{Decision, Op};

use crate::accounts::{Account, Balance};
use crate::external::Outside;
use crate::fact::Fact;
use crate::ledger::{AssetEntry, Ledger, ORDER_NUMBER_MAX};
use crate::outcomes::Unsettled;
use crate::places::{ACCOUNTS_MAX, OUTCOMES_MAX};
use crate::recorded::Recorded;
use crate::table::Misfit;
use crate::totals::TOTAL_MAX;

/// Facts that no ledger has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A fact that is there already.
    #[error("stated twice: {0:?}")]
    Twice(Fact),
    /// A fact that is impossible, or impossible after those before it.
    #[error("{why}: {fact:?}")]
    Impossible {
        /// The fact.
        fact: Fact,
        /// The reason.
        why: &'static str,
    },
    /// More facts than places.
    #[error("{0} is too small for the facts to be restored")]
    Full(&'static str),
    /// An outcome of a record after the last one.
    #[error("holds an outcome of record {found}, but ends with record {last}")]
    Later {
        /// The outcome's record.
        found: wal::Sequence,
        /// The last one.
        last: wal::Sequence,
    },
    /// The facts do not add up to the stated digest.
    #[error("adds up to {found:032x} instead of {stated:032x}")]
    Digest {
        /// The sum of the facts' digests.
        found: u128,
        /// The stated digest.
        stated: u128,
    },
}

/// A ledger under construction. Assets and accounts come before the facts that name them.
pub struct Builder {
    ledger: Ledger,
    watermark: Option<u64>,
    evicted: Option<u128>,
    /// The last record with an outcome.
    last: wal::Sequence,
}

impl Builder {
    /// Fills an empty ledger.
    pub fn new(empty: Ledger) -> Builder {
        Builder { ledger: empty, watermark: None, evicted: None, last: 0 }
    }

    /// Adds one fact.
    ///
    /// # Errors
    /// [`Error`]: it is there already, is impossible, or has no place.
    pub fn add(&mut self, fact: Fact) -> Result<(), Error> {
        let impossible = |why| Err(Error::Impossible { fact, why });
        let once = |before: bool| if before { Err(Misfit::Twice) } else { Ok(()) };
        let added = match fact {
            Fact::Asset { precision, .. } if precision > PRECISION_MAX => {
                return impossible("precision out of range");
            }
            Fact::Asset { asset, precision, symbol } => {
                let before = self.ledger.assets.insert(asset, AssetEntry::new(precision, symbol));
                once(before.is_some())
            }
            Fact::Account { user, .. } if UserId::new(user).is_none() => {
                return impossible("no such user");
            }
            Fact::Account { user, status } => {
                self.ledger.accounts.try_insert(Account { user, status })
            }
            Fact::Balance { user, asset, .. } if !self.belongs(user, asset) => {
                return impossible("no such account or asset");
            }
            Fact::Balance { available, totals, .. } if totals.available() != Some(available) => {
                return impossible("the balance is not that of its totals");
            }
            Fact::Balance { totals, .. } if !totals.leave_room() => {
                return impossible("a total is above every log's");
            }
            Fact::Balance { user, asset, totals, .. } => {
                let balance = Balance { totals, user, asset };
                let total = self.ledger.total(asset).checked_add(balance.available());
                let Some(total) = total.filter(|total| *total <= TOTAL_MAX) else {
                    return impossible("the asset's total is above every log's");
                };
                let added = self.ledger.balances.try_insert(balance);
                if let (Ok(()), Some(entry)) = (added, self.ledger.assets.get_mut(&asset)) {
                    entry.total = total;
                }
                added
            }
            Fact::Outcome { req_id, op, recorded } => {
                if let Some(why) = self.objection(op, &recorded) {
                    return impossible(why);
                }
                self.last = self.last.max(recorded.sequence);
                self.ledger.outcomes.restore(req_id, op, recorded)
            }
            Fact::Outside { asset, outside } => {
                if !outside.leave_room() {
                    return impossible("a sum is above every log's");
                }
                let Some(entry) = self.ledger.assets.get_mut(&asset) else {
                    return impossible("no such asset");
                };
                let before = std::mem::replace(&mut entry.outside, outside);
                once(before != Outside::default())
            }
            Fact::Watermark { order_number } => {
                once(self.watermark.replace(order_number).is_some())
            }
            Fact::Evicted { digest } => once(self.evicted.replace(digest).is_some()),
        };
        added.map_err(|misfit| match (misfit, fact) {
            (Misfit::Twice, _) => Error::Twice(fact),
            (Misfit::Full, Fact::Outcome { .. }) => Error::Full(OUTCOMES_MAX),
            (Misfit::Full, _) => Error::Full(ACCOUNTS_MAX),
        })?;
        if !matches!(fact, Fact::Watermark { .. }) {
            self.ledger.exchange(None, fact);
        }
        Ok(())
    }

    /// Whether the account and the asset of a balance are there.
    fn belongs(&self, user: u64, asset: u32) -> bool {
        self.ledger.status(user).is_some() && self.ledger.assets.contains_key(&asset)
    }

    /// The reason why an outcome is impossible. A refused order may name an unknown user or asset.
    fn objection(&self, op: Op, recorded: &Recorded) -> Option<&'static str> {
        match recorded.decision {
            Decision::Refused(_) if !op.row().refusable => Some("a refund is never refused"),
            _ if recorded.order_number > ORDER_NUMBER_MAX => Some("order number out of range"),
            _ if op.is_external() => self.objection_outside(recorded),
            Decision::Success if !self.belongs(recorded.user, recorded.asset) => {
                Some("no such account or asset")
            }
            Decision::Success if recorded.amount == 0 => Some("nothing moved"),
            Decision::Success | Decision::Refused(_) => None,
        }
    }

    /// The reason why an outcome of an external operation is impossible.
    fn objection_outside(&self, recorded: &Recorded) -> Option<&'static str> {
        match () {
            () if !self.ledger.assets.contains_key(&recorded.asset) => Some("no such asset"),
            () if UserId::new(recorded.user).is_none() => Some("no such user"),
            () if recorded.amount == 0 => Some("nothing moved"),
            () => None,
        }
    }

    /// The ledger after record `sequence`, without outcomes below the watermark. `digest` is that
    /// of the ledger which had the facts.
    ///
    /// # Errors
    /// [`Error`]: the facts do not fit together or do not add up to `digest`.
    pub fn finish(self, sequence: wal::Sequence, digest: u128) -> Result<Ledger, Error> {
        let Builder { mut ledger, watermark, evicted, last } = self;
        if last > sequence {
            return Err(Error::Later { found: last, last: sequence });
        }
        let order_number = watermark.unwrap_or(0);
        let before = Fact::Watermark { order_number: ledger.watermark };
        ledger.exchange(Some(before), Fact::Watermark { order_number });
        if ledger.digest() != digest {
            return Err(Error::Digest { found: ledger.digest(), stated: digest });
        }
        ledger.watermark = order_number;
        ledger.sequence = sequence;
        ledger.outcomes.settle(evicted.unwrap_or(0), order_number).map_err(|unsettled| {
            match unsettled {
                Unsettled::Unpaid(fact) => Error::Impossible { fact, why: "nothing was withdrawn" },
                Unsettled::Full => Error::Full(OUTCOMES_MAX),
            }
        })?;
        debug_assert_eq!(ledger.digest(), digest, "evictions do not change the digest");
        Ok(ledger)
    }
}

#[cfg(test)]
mod tests {
    use domain::account::AccountStatus;
    use domain::code::Code;

    use super::*;
    use crate::places::Places;
    use crate::text::Text;
    use crate::totals::Totals;

    const PLACES: Places = Places { accounts_max: 2, outcomes_max: 3 };

    fn asset() -> Fact {
        Fact::Asset { asset: 3, precision: 8, symbol: Text::new("USDT").expect("short") }
    }

    fn account() -> Fact {
        Fact::Account { user: 7, status: AccountStatus::Active }
    }

    fn balance() -> Fact {
        let totals = Totals { deposits: 50, withdrawals: 30, refunds: 10 };
        Fact::Balance { user: 7, asset: 3, available: 30, totals }
    }

    fn outcome(req_id: u128, op: Op, decision: Decision) -> Fact {
        let recorded = Recorded {
            user: 7,
            asset: 3,
            amount: 10,
            decision,
            balance_after: 30,
            sequence: 5,
            time_ns: 1,
            order_number: 40,
        };
        Fact::Outcome { req_id, op, recorded }
    }

    /// Builds of these facts, with their own digest.
    fn build(facts: &[Fact]) -> Result<Ledger, Error> {
        let digest = |facts: &[Fact]| facts.iter().map(Fact::digest).fold(0, u128::wrapping_add);
        let watermark = Fact::Watermark { order_number: 0 };
        let stated = match facts.iter().any(|fact| matches!(fact, Fact::Watermark { .. })) {
            true => digest(facts),
            false => digest(facts).wrapping_add(watermark.digest()),
        };
        let mut builder = Builder::new(Ledger::new(PLACES));
        facts.iter().try_for_each(|fact| builder.add(*fact))?;
        builder.finish(9, stated)
    }

    #[test]
    fn facts_that_fit_together_make_a_ledger() {
        let withdraw = outcome(1, Op::Withdraw, Decision::Success);
        let ledger = build(&[asset(), account(), balance(), withdraw]).expect("a ledger");
        assert_eq!(ledger.sequence(), 9);
        assert_eq!(ledger.balances(), [(7, 3, 30)]);
        // One place for the withdraw, one for its refund.
        assert_eq!(ledger.places_left(), 1);
        let refund = outcome(1, Op::Refund, Decision::Success);
        let ledger = build(&[asset(), account(), balance(), refund, withdraw]).expect("a ledger");
        assert_eq!(ledger.places_left(), 1);
    }

    #[test]
    fn what_is_below_the_watermark_leaves_at_once() {
        let head = [Fact::Evicted { digest: 99 }, Fact::Watermark { order_number: 41 }];
        let refund = outcome(1, Op::Refund, Decision::Success);
        let facts = [asset(), account(), balance(), refund];
        let ledger = build(&[&head[..], &facts[..]].concat()).expect("a ledger");
        assert_eq!(ledger.places_left(), 3);
        assert_eq!(ledger.watermark(), 41);
        let evicted = Fact::Evicted { digest: refund.digest().wrapping_add(99) };
        assert!(ledger.facts().any(|fact| fact == evicted));
        assert_eq!(
            ledger.digest(),
            ledger.facts().map(|fact| fact.digest()).fold(0, u128::wrapping_add)
        );
    }

    #[test]
    fn facts_that_do_not_fit_together_make_none() {
        let success = Decision::Success;
        let deposit = outcome(1, Op::Deposit, success);
        let refused = |op| outcome(2, op, Decision::Refused(Code::InsufficientBalance));
        let nobody = Fact::Account { user: 0, status: AccountStatus::Active };
        let totals = Totals { deposits: u128::MAX, withdrawals: 0, refunds: 0 };
        let overfull = Fact::Balance { user: 7, asset: 3, available: u128::MAX, totals };
        let Fact::Outcome { req_id, op, recorded } = deposit else { panic!("{deposit:?}") };
        let recorded = Recorded { order_number: u64::MAX, ..recorded };
        let unnumbered = Fact::Outcome { req_id, op, recorded };
        let totals = Totals { deposits: 1, withdrawals: 2, refunds: 0 };
        let overdrawn = Fact::Balance { user: 7, asset: 3, available: 0, totals };
        let head = [asset(), account(), balance()];
        let with = |facts: &[Fact]| build(&[&head[..], facts].concat()).err();
        for fact in [asset(), account(), balance()] {
            assert_eq!(with(&[fact]), Some(Error::Twice(fact)));
        }
        assert_eq!(with(&[deposit, deposit]), Some(Error::Twice(deposit)));
        for (facts, why) in [
            (&[nobody][..], "no such user"),
            (&[balance()], "no such account or asset"),
            (&[deposit], "no such account or asset"),
            (&[asset(), account(), overdrawn], "the balance is not that of its totals"),
            // Found by a fuzz target: the next deposit and the next start would have overflowed.
            (&[asset(), account(), overfull], "a total is above every log's"),
            (&[asset(), account(), balance(), unnumbered], "order number out of range"),
            (&[refused(Op::Refund)], "a refund is never refused"),
            (&[outcome(1, Op::ExtDeposit, success)], "no such asset"),
            (
                &[asset(), account(), balance(), outcome(1, Op::Refund, success)],
                "nothing was withdrawn",
            ),
        ] {
            let Some(Error::Impossible { why: said, .. }) = build(facts).err() else {
                panic!("{why}")
            };
            assert_eq!(said, why);
        }
        // Two withdraws need four places: their refunds may come.
        let withdraws = [outcome(1, Op::Withdraw, success), outcome(2, Op::Withdraw, success)];
        assert_eq!(with(&withdraws), Some(Error::Full(OUTCOMES_MAX)));
        let mut builder = Builder::new(Ledger::new(PLACES));
        head.into_iter().chain([deposit]).for_each(|fact| builder.add(fact).expect("fits"));
        assert_eq!(builder.finish(4, 0).err(), Some(Error::Later { found: 5, last: 4 }));
        let builder = Builder::new(Ledger::new(PLACES));
        let found = Fact::Watermark { order_number: 0 }.digest();
        assert_eq!(builder.finish(0, 1).err(), Some(Error::Digest { found, stated: 1 }));
    }
}
