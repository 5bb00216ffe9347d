//! A ledger from facts: built from those that [`Ledger::facts`] returned, one after the other. It
//! can be used only when all of them fit together and add up to the digest stated with them.

use std::collections::{BTreeMap, BTreeSet};

use domain::account::UserId;
use domain::amount::PRECISION_MAX;
use domain::posting::PLACES_MAX;
use domain::transfer::op::HoldStep;
use domain::transfer::{Decision, Op};

use crate::accounts::{Account, Balance, Sums};
use crate::external::Outside;
use crate::fact::{AnswerFact, Fact, HoldFact, Kept, NamedFact, VenueFact};
use crate::holds::{Hold, TRANSACTION_HOLDS_MAX};
use crate::ledger::{AssetEntry, Ledger, ORDER_NUMBER_MAX};
use crate::named::{ROUND_MAX, ends, is_transaction};
use crate::outcomes::Unsettled;
use crate::places::{ACCOUNTS_MAX, HOLDS_MAX, OUTCOMES_MAX, VENUES_MAX};
use crate::recorded::Recorded;
use crate::table::Misfit;
use crate::totals::TOTAL_MAX;
use crate::venues::WindowAnswer;

/// The largest number of a venue that a file may hold: no venue counts so far.
const NUMBER_MAX: u64 = 1 << 63;

/// Facts that no ledger has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A fact that is there already.
    #[error("stated twice: {0:?}")]
    Twice(Box<Fact>),
    /// A fact that is impossible, or impossible after those before it.
    #[error("{why}: {fact:?}")]
    Impossible {
        /// The fact.
        fact: Box<Fact>,
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
    /// The holds and freezes of a balance do not add up to the held amount.
    #[error("user {user}, asset {asset}: {held} held, but holds and freezes of {found}")]
    Held {
        /// The balance's user.
        user: u64,
        /// The balance's asset.
        asset: u32,
        /// The stated sum, smallest units.
        held: u128,
        /// The sum of the rows, smallest units.
        found: u128,
    },
    /// Postings have made or lost money.
    #[error("asset {asset}: postings have brought {brought} more than they have taken")]
    Traded {
        /// The asset.
        asset: u32,
        /// The sum over all balances less the money from outside, smallest units; not 0.
        brought: i128,
    },
    /// A transaction has holds and no open RESERVE, or two, or two holds of one balance.
    #[error("transaction {transaction:032x}: {why}")]
    Transaction {
        /// The transaction.
        transaction: u128,
        /// The reason.
        why: &'static str,
    },
    /// A number is missing in the window of a venue, or a hold is of a later one.
    #[error("venue {0}: its answers and holds are not those of numbers in a row")]
    Window(u32),
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
    /// The last record with an outcome, a hold or an answer.
    last: wal::Sequence,
    /// The answers of each venue, by number.
    answers: BTreeMap<u32, BTreeMap<u64, WindowAnswer>>,
}

impl Builder {
    /// Fills an empty ledger.
    pub fn new(empty: Ledger) -> Builder {
        let answers = BTreeMap::new();
        Builder { ledger: empty, watermark: None, evicted: None, last: 0, answers }
    }

    /// Adds one fact.
    ///
    /// # Errors
    /// [`Error`]: it is there already, is impossible, or has no place.
    pub fn add(&mut self, fact: Fact) -> Result<(), Error> {
        let impossible = |why| Err(Error::Impossible { fact: Box::new(fact), why });
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
            Fact::Balance { totals, traded, .. }
                if !totals.leave_room() || traded.unsigned_abs() > TOTAL_MAX =>
            {
                return impossible("a total is above every log's");
            }
            Fact::Balance { user, asset, available, held, traded, totals } => {
                let sums = Sums { held, traded, ..Sums::default() };
                let Some(owned) = sums.owned(&totals).filter(|owned| owned - held == available)
                else {
                    return impossible("the balance is not that of its totals");
                };
                let total = self.ledger.total(asset).checked_add(owned);
                let Some(total) = total.filter(|total| *total <= TOTAL_MAX) else {
                    return impossible("the asset's total is above every log's");
                };
                let balance = Balance { totals, user, asset, sums: 0 };
                let added = self.ledger.balances.restore(balance, sums);
                if let (Ok(()), Some(entry)) = (added, self.ledger.assets.get_mut(&asset)) {
                    entry.total = total;
                    // At most the total.
                    entry.held += held;
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
            Fact::Crossed { brought, .. } if brought == 0 || brought.unsigned_abs() > TOTAL_MAX => {
                return impossible("a sum is above every log's, or 0");
            }
            Fact::Crossed { asset, brought } => {
                let Some(entry) = self.ledger.assets.get_mut(&asset) else {
                    return impossible("no such asset");
                };
                once(std::mem::replace(&mut entry.crossed, brought) != 0)
            }
            Fact::Watermark { order_number } => {
                once(self.watermark.replace(order_number).is_some())
            }
            Fact::Evicted { digest } => once(self.evicted.replace(digest).is_some()),
            Fact::Venue(venue) => self.add_venue(venue)?,
            Fact::Hold(hold) => self.add_hold(hold)?,
            Fact::Answer(answer) => self.add_answer(answer)?,
            Fact::Named(named) => {
                if let Some(why) = objection_named(&named) {
                    return impossible(why);
                }
                self.last = self.last.max(named.record);
                self.ledger.outcomes.restore_named(&named)
            }
        };
        added.map_err(|misfit| match (misfit, fact) {
            (Misfit::Twice, _) => Error::Twice(Box::new(fact)),
            (Misfit::Full, Fact::Outcome { .. } | Fact::Named(_)) => Error::Full(OUTCOMES_MAX),
            (Misfit::Full, Fact::Hold(_)) => Error::Full(HOLDS_MAX),
            (Misfit::Full, Fact::Venue(_)) => Error::Full(VENUES_MAX),
            (Misfit::Full, _) => Error::Full(ACCOUNTS_MAX),
        })?;
        if !matches!(fact, Fact::Watermark { .. }) {
            self.ledger.exchange(None, fact);
        }
        Ok(())
    }

    fn add_venue(&mut self, venue: VenueFact) -> Result<Result<(), Misfit>, Error> {
        let impossible = |why| Err(Error::Impossible { fact: Box::new(Fact::Venue(venue)), why });
        match self.ledger.knows_venue(venue.id) {
            true => Ok(Err(Misfit::Twice)),
            false if venue.id == 0 || venue.name.length() == 0 => impossible("no such venue"),
            false if venue.acknowledged > NUMBER_MAX => impossible("number out of range"),
            false if self.ledger.venues.insert(venue) => Ok(Ok(())),
            false => Ok(Err(Misfit::Full)),
        }
    }

    fn add_hold(&mut self, hold: HoldFact) -> Result<Result<(), Misfit>, Error> {
        let impossible = |why| Err(Error::Impossible { fact: Box::new(Fact::Hold(hold)), why });
        let HoldFact { venue, number, purpose, user, asset, amount, reference, keeps, .. } = hold;
        let named = hold.transaction != 0;
        let of_venue = venue != 0 && number != 0 && purpose == 0 && !named;
        let bare = (venue, reference, keeps) == (0, 0, false);
        let freeze = bare && number == 0 && purpose != 0 && !named;
        let numbered = (1..=TRANSACTION_HOLDS_MAX.into()).contains(&number);
        let of_transaction = bare && numbered && is_transaction(hold.transaction);
        match self.ledger.balances.get(user, asset) {
            None => impossible("no such balance"),
            Some(balance) if balance.sums == 0 => impossible("nothing is held of this balance"),
            Some(_) if !of_venue && !freeze && !of_transaction => {
                impossible("neither a hold nor a freeze")
            }
            Some(_) if of_venue && self.ledger.venues.get(venue).is_none() => {
                impossible("no such venue")
            }
            Some(_) if !freeze && u64::try_from(amount).is_err() => {
                impossible("amount out of range")
            }
            Some(_) if amount == 0 => impossible("nothing is held"),
            Some(_) if hold.record == 0 => impossible("no record has made it"),
            Some(balance) => {
                self.last = self.last.max(hold.record);
                Ok(self.ledger.holds.restore(Hold::new(hold, balance.sums)))
            }
        }
    }

    fn add_answer(&mut self, answer: AnswerFact) -> Result<Result<(), Misfit>, Error> {
        let impossible = |why| Err(Error::Impossible { fact: Box::new(Fact::Answer(answer)), why });
        let AnswerFact { venue, number, hash, record, decision, leg } = answer;
        if self.ledger.venues.get(venue).is_none() || number == 0 || number > NUMBER_MAX {
            return impossible("no such venue or number");
        }
        self.last = self.last.max(record);
        let row = WindowAnswer::new(hash, record, decision, leg);
        let before = self.answers.entry(venue).or_default().insert(number, row);
        Ok(if before.is_some() { Err(Misfit::Twice) } else { Ok(()) })
    }

    /// Adds the answers to their windows, and checks that each hold has a number before the last.
    fn restore_answers(&mut self) -> Result<(), Error> {
        for (venue, answers) in std::mem::take(&mut self.answers) {
            let answers: Vec<_> = answers.into_iter().collect();
            if !self.ledger.venues.restore(venue, &answers) {
                return Err(Error::Window(venue));
            }
        }
        for hold in self.ledger.holds.rows() {
            let venue = self.ledger.venues.get(hold.venue);
            if venue.is_some_and(|venue| venue.last() < hold.number()) {
                return Err(Error::Window(hold.venue));
            }
        }
        Ok(())
    }

    /// Holds add up to the held amounts, and postings have neither made nor lost money: they have
    /// brought the money from outside.
    fn recount(&self) -> Result<(), Error> {
        let Builder { ledger, .. } = self;
        let mut found = BTreeMap::<(u64, u32), u128>::new();
        for hold in ledger.holds.rows() {
            let sum = found.entry((hold.user, hold.asset)).or_default();
            *sum = sum.saturating_add(hold.amount());
        }
        let crossed = ledger.assets.iter().filter(|(_, entry)| entry.crossed != 0);
        let mut traded: BTreeMap<u32, i128> =
            crossed.map(|(&asset, entry)| (asset, -entry.crossed)).collect();
        for balance in ledger.balances.rows().iter().filter(|balance| balance.sums != 0) {
            let (user, asset) = (balance.user, balance.asset);
            let sums = ledger.balances.sums(balance);
            let found = found.get(&(user, asset)).copied().unwrap_or(0);
            if found != sums.held {
                return Err(Error::Held { user, asset, held: sums.held, found });
            }
            let brought = traded.entry(asset).or_default();
            *brought = brought.saturating_add(sums.traded);
        }
        match traded.into_iter().find(|(_, brought)| *brought != 0) {
            Some((asset, brought)) => Err(Error::Traded { asset, brought }),
            None => Ok(()),
        }
    }

    /// Each transaction with holds has one open RESERVE. An open RESERVE has no holds if all of
    /// its money comes from outside.
    fn recount_transactions(&self) -> Result<(), Error> {
        let mut open = BTreeSet::new();
        for NamedFact { transaction, .. } in self.ledger.outcomes.open() {
            let why = "two open RESERVEs";
            open.insert(transaction)
                .then_some(())
                .ok_or(Error::Transaction { transaction, why })?;
        }
        let (mut held, mut places) = (BTreeSet::new(), BTreeSet::new());
        for hold in self.ledger.holds.rows().iter().filter(|hold| hold.transaction() != 0) {
            let (transaction, why) = (hold.transaction(), "two holds of one place");
            held.insert(transaction);
            let purpose = hold.content().purpose;
            let alone = places.insert((transaction, hold.user, hold.asset, purpose));
            alone.then_some(()).ok_or(Error::Transaction { transaction, why })?;
        }
        let why = "its holds are not those of an open RESERVE";
        let apart = held.difference(&open).next();
        apart.map_or(Ok(()), |&transaction| Err(Error::Transaction { transaction, why }))
    }

    /// Whether the account and the asset of a balance are there.
    fn belongs(&self, user: u64, asset: u32) -> bool {
        self.ledger.status(user).is_some() && self.ledger.assets.contains_key(&asset)
    }

    /// The reason why an outcome is impossible. A refused order may name an unknown user or asset.
    fn objection(&self, op: Op, recorded: &Recorded) -> Option<&'static str> {
        match recorded.decision {
            _ if op.is_posting() => Some("a posting by number has no outcome"),
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
    pub fn finish(mut self, sequence: wal::Sequence, digest: u128) -> Result<Ledger, Error> {
        self.restore_answers()?;
        self.recount()?;
        self.recount_transactions()?;
        let Builder { mut ledger, watermark, evicted, last, .. } = self;
        let (kept, outcomes) = (ledger.holds.kept(), &ledger.outcomes);
        if kept + outcomes.kept_balances() > ledger.balances.places_left()
            || outcomes.kept_accounts() > ledger.accounts.places_left()
        {
            return Err(Error::Full(ACCOUNTS_MAX));
        }
        if outcomes.kept_freezes() > ledger.holds.places_left() {
            return Err(Error::Full(HOLDS_MAX));
        }
        ledger.chain_holds();
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
                Unsettled::Unpaid(fact) => {
                    Error::Impossible { fact: Box::new(fact), why: "nothing was withdrawn" }
                }
                Unsettled::Full => Error::Full(OUTCOMES_MAX),
            }
        })?;
        debug_assert_eq!(ledger.digest(), digest, "evictions do not change the digest");
        Ok(ledger)
    }
}

/// The reason why the outcome of a posting by name is impossible.
fn objection_named(named: &NamedFact) -> Option<&'static str> {
    let Kept { accounts, balances, freezes, outcomes } = named.kept;
    let succeeded = named.decision == Decision::Success;
    let round = if ends(named.op) { 0..=0 } else { 1..=ROUND_MAX };
    let sets_apart = named.op.step() == Some(HoldStep::SetApart);
    let may_be_open = sets_apart && succeeded && outcomes == 1;
    let places = usize::from(accounts.max(balances).max(freezes)) <= PLACES_MAX;
    match () {
        () if !is_transaction(named.transaction) => Some("no name of a transaction"),
        () if !named.op.is_posting() => Some("no posting"),
        () if !round.contains(&named.round) => Some("round out of range"),
        () if named.order_number > ORDER_NUMBER_MAX => Some("order number out of range"),
        () if ends(named.op) && !succeeded => Some("an end is never refused"),
        () if named.kept != Kept::default() && !(may_be_open && places) => {
            Some("places are kept for no end")
        }
        () => None,
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

    const PLACES: Places = Places::of_transfers(2, 3);

    fn asset() -> Fact {
        Fact::Asset { asset: 3, precision: 8, symbol: Text::new("USDT").expect("short") }
    }

    fn account() -> Fact {
        Fact::Account { user: 7, status: AccountStatus::Active }
    }

    fn balance() -> Fact {
        let totals = Totals { deposits: 50, withdrawals: 30, refunds: 10 };
        Fact::Balance { user: 7, asset: 3, available: 30, held: 0, traded: 0, totals }
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
        let overfull =
            Fact::Balance { user: 7, asset: 3, available: u128::MAX, held: 0, traded: 0, totals };
        let Fact::Outcome { req_id, op, recorded } = deposit else { panic!("{deposit:?}") };
        let recorded = Recorded { order_number: u64::MAX, ..recorded };
        let unnumbered = Fact::Outcome { req_id, op, recorded };
        let totals = Totals { deposits: 1, withdrawals: 2, refunds: 0 };
        let overdrawn =
            Fact::Balance { user: 7, asset: 3, available: 0, held: 0, traded: 0, totals };
        let head = [asset(), account(), balance()];
        let with = |facts: &[Fact]| build(&[&head[..], facts].concat()).err();
        for fact in [asset(), account(), balance()] {
            assert_eq!(with(&[fact]), Some(Error::Twice(Box::new(fact))));
        }
        assert_eq!(with(&[deposit, deposit]), Some(Error::Twice(Box::new(deposit))));
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
