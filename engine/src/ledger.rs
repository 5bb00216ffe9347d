//! UBSCore's state and its two pure functions: [`Ledger::step`] decides, [`Ledger::apply`] carries out what the log
//! holds. No I/O, no clock, no random number: the same log gives the same ledger on any machine.

pub mod builder;
mod carried;

use std::collections::BTreeMap;
use std::thread;

use domain::account::{AccountStatus, UserId};
use domain::amount::PRECISION_MAX;
use domain::code::Code;
use domain::form::{Form, check_form};
use domain::transfer::{Decision, Op, Participant};
use hashbrown::HashMap;

use super::accounts::{Account, BALANCES_PER_ACCOUNT, Balance};
use super::external::{External, Outside};
use super::fact::{Fact, Totals};
use super::order::{Command, Entry, Order};
use super::outcomes::{Outcomes, Recorded};
use super::table::{HashState, Row, Table};

/// Commands that are looked at together before the first is decided: as many cache misses wait for memory at once as a
/// processor lets.
pub const LOOK_AHEAD: usize = 16;
/// Outcomes looked at with each command: more than it can add, so that places come free sooner than they are taken.
pub const FORGET_LOOKS: usize = 16;
/// Outcomes forgotten with each command, for the same reason more than one.
pub const FORGET_LEAVES: usize = 2;

/// Accounts beyond `accounts_max` that only a status change may make: one for 32, and at least so many. So a person can
/// freeze or disable a user without an account when the table is full.
const STATUS_ACCOUNTS_MIN: usize = 64;
const STATUS_ACCOUNTS_PART: usize = 32;

/// The keys of the configuration that say how many places there are.
pub(super) const ACCOUNTS_MAX: &str = "engine.accounts_max";
pub(super) const OUTCOMES_MAX: &str = "engine.outcomes_max";

/// The largest order number: PostgreSQL keeps it in a BIGINT.
pub(super) const ORDER_NUMBER_MAX: u64 = i64::MAX as u64;

/// Why an external operation is no order: PostgreSQL decides it, and UBSCore records the decision.
const NO_EXTERNAL: &str = "UBSCore decides no external operation";

/// What is to be done with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Append this entry to the log, then [`Ledger::apply`] it.
    Append(Entry),
    /// Already so: nothing to append.
    Known(Answer),
    /// A repeat with another user, asset or amount, or a refund of what was never withdrawn. Nothing happens.
    Violation(&'static str),
    /// There is no place for it; named is the key of the configuration. Nothing happens; the caller may ask again.
    Full(&'static str),
    /// The order is below the watermark and no outcome is held: it may have been decided and forgotten. Nothing happens.
    Forgotten,
}

/// What UBSCore answers once it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An order has been decided, now or before.
    Decided(Recorded),
    /// A status or an asset is set.
    Done,
    /// One balance at a point of the log.
    Balance {
        /// Smallest units; `None` where the user has no Spot account.
        available: Option<u128>,
        /// The last record this balance includes.
        sequence: wal::Sequence,
    },
    /// What all balances of an asset add up to, at a point of the log.
    Total {
        /// Smallest units; 0 for an asset that is not known.
        units: u128,
        /// The last record this sum includes.
        sequence: wal::Sequence,
    },
    /// What an order would come to now. An error is the code of its refusal; [`Code::Overloaded`]: its account or balance
    /// has no place.
    Foreseen(Result<(), Code>),
    /// A Spot account's status, if there is one.
    Status(Option<AccountStatus>),
    /// What is recorded for an operation, if anything.
    Query(Option<Recorded>),
    /// Outcomes of smaller order numbers may have been forgotten.
    Watermark(u64),
    /// See [`Step::Forgotten`].
    Forgotten,
    /// See [`Step::Violation`].
    Violation(&'static str),
    /// See [`Step::Full`]; also when the log has no room. Nothing happened.
    Overloaded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AssetEntry {
    precision: u8,
    symbol: super::order::Text<{ domain::asset::SYMBOL_BYTES_MAX }>,
    /// What all balances of it add up to, smallest units. It follows from them, so it is no fact of its own.
    total: u128,
    /// Its external operations.
    outside: Outside,
}

impl AssetEntry {
    /// One of which there is nothing yet.
    fn new(
        precision: u8,
        symbol: super::order::Text<{ domain::asset::SYMBOL_BYTES_MAX }>,
    ) -> AssetEntry {
        AssetEntry { precision, symbol, total: 0, outside: Outside::default() }
    }
}

/// What a ledger holds at most. At a limit nothing happens, but for one case: a DEPOSIT that needs an account or a balance
/// and finds no place is recorded as refused. Replay takes that refusal from its record, so no replay depends on places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Accounts, and on average [`BALANCES_PER_ACCOUNT`] balances each. Status changes may make some more.
    pub accounts_max: usize,
    /// Outcomes, those of refunds that may be needed included.
    pub outcomes_max: usize,
}

/// All balances, statuses, assets and outcomes.
pub struct Ledger {
    /// More than this are made by status changes only.
    accounts_max: usize,
    accounts: Table<Account>,
    balances: Table<Balance>,
    assets: HashMap<u32, AssetEntry, HashState>,
    outcomes: Outcomes,
    /// Outcomes of smaller order numbers may be forgotten.
    watermark: u64,
    sequence: wal::Sequence,
    /// The sum of all facts' digests.
    digest: u128,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(places: Places) -> Ledger {
        let watermark = Fact::Watermark { order_number: 0 };
        let for_statuses = STATUS_ACCOUNTS_MIN.max(places.accounts_max / STATUS_ACCOUNTS_PART);
        Ledger {
            accounts_max: places.accounts_max,
            accounts: Table::new(places.accounts_max + for_statuses),
            balances: Table::new(places.accounts_max * BALANCES_PER_ACCOUNT),
            assets: HashMap::with_hasher(HashState::default()),
            outcomes: Outcomes::new(places.outcomes_max),
            watermark: 0,
            sequence: 0,
            digest: watermark.digest(),
        }
    }

    /// The last record applied.
    pub fn sequence(&self) -> wal::Sequence {
        self.sequence
    }

    /// Outcomes of smaller order numbers may be forgotten.
    pub fn watermark(&self) -> u64 {
        self.watermark
    }

    /// A number above every order number that UBSCore has ever decided under.
    pub fn order_numbers_end(&self) -> u64 {
        let held = self.outcomes.iter().map(|(_, _, recorded)| recorded.order_number + 1);
        held.max().unwrap_or(0).max(self.watermark)
    }

    /// The number of outcomes held.
    pub fn outcome_count(&self) -> usize {
        self.outcomes.len()
    }

    /// Outcomes that can still be recorded, promised refunds left aside.
    pub fn places_left(&self) -> usize {
        self.outcomes.places_left()
    }

    /// The number of Spot accounts.
    pub fn account_count(&self) -> usize {
        self.accounts.rows().len()
    }

    /// Accounts that deposits can still make.
    pub fn accounts_left(&self) -> usize {
        self.accounts_max.saturating_sub(self.account_count())
    }

    /// The number of balances.
    pub fn balance_count(&self) -> usize {
        self.balances.rows().len()
    }

    /// Balances that deposits can still make.
    pub fn balances_left(&self) -> usize {
        self.balances.places_left()
    }

    /// Takes all the memory there may be need of from the system, so that no order waits for it.
    pub fn prefault(&mut self) {
        // The system clears it all: half of the time on two processors.
        thread::scope(|scope| {
            scope.spawn(|| self.outcomes.prefault());
            self.accounts.prefault();
            self.balances.prefault();
        });
    }

    /// Looks at up to `looks_max` outcomes and forgets up to `leaves_max` of them that are below the watermark.
    /// Whatever is forgotten, and when, records and digests stay the same.
    pub fn forget(&mut self, looks_max: usize, leaves_max: usize) {
        self.outcomes.forget(self.watermark, looks_max, leaves_max);
    }

    /// Forgets every outcome below the watermark: not for the core thread.
    pub fn forget_all(&mut self) {
        while !self.has_forgotten() {
            self.forget(usize::MAX, usize::MAX);
        }
    }

    /// Whether no outcome below the watermark is held.
    pub fn has_forgotten(&self) -> bool {
        self.outcomes.has_forgotten()
    }

    /// Every balance as (user, asset, smallest units), in order.
    pub fn balances(&self) -> Vec<(u64, u32, u128)> {
        let balance = |row: &Balance| (row.user, row.asset, row.available());
        let mut all: Vec<_> = self.balances.rows().iter().map(balance).collect();
        all.sort_unstable();
        all
    }

    /// Smallest units, 0 where the user has never had any.
    fn balance(&self, user: u64, asset: u32) -> u128 {
        self.balances.get((user, asset)).map_or(0, Balance::available)
    }

    fn status(&self, user: u64) -> Option<AccountStatus> {
        self.accounts.get(user).map(|account| account.status)
    }

    /// What all balances of an asset add up to, smallest units; 0 for one that is not known.
    pub fn total(&self, asset: u32) -> u128 {
        self.assets.get(&asset).map_or(0, |entry| entry.total)
    }

    /// What has ever been done to one balance, forgotten outcomes included.
    pub fn totals(&self, user: u64, asset: u32) -> Totals {
        self.balances.get((user, asset)).map(|balance| balance.totals).unwrap_or_default()
    }

    /// What has been done to each balance under order numbers below `below`, by user and asset: all there ever was
    /// without what is held above. It does not depend on what has been forgotten already. `None` for a number below the
    /// watermark, of which nothing is known any more.
    pub fn settled(&self, below: u64) -> Option<BTreeMap<(u64, u32), Totals>> {
        if below < self.watermark {
            return None;
        }
        let mut above = BTreeMap::<(u64, u32), Totals>::new();
        for (_, op, recorded) in self.outcomes.iter() {
            let moved = recorded.decision == Decision::Success && op.row().sum.is_some();
            if moved && recorded.order_number >= below {
                let totals = above.entry((recorded.user, recorded.asset)).or_default();
                *totals = totals.with(op, recorded.amount);
            }
        }
        let settled = |balance: &Balance| {
            let above = above.get(&balance.key()).copied().unwrap_or_default();
            let settled = balance.totals.without(above);
            let settled = settled.unwrap_or_else(|| panic!("{above:?} of {:?}", balance.fact()));
            (balance.key(), settled)
        };
        Some(self.balances.rows().iter().map(settled).collect())
    }

    /// The external operations of each asset with order numbers below `below`; an asset without any is absent. `None` for
    /// a number below the watermark, of which nothing is known any more.
    pub fn outside(&self, below: u64) -> Option<BTreeMap<u32, Outside>> {
        if below < self.watermark {
            return None;
        }
        let mut above = BTreeMap::<u32, Outside>::new();
        for (_, op, recorded) in self.outcomes.iter() {
            if op.is_external() && recorded.order_number >= below {
                let outside = above.entry(recorded.asset).or_default();
                *outside = outside.with(op, recorded.decision, recorded.amount);
            }
        }
        let settled = |(&asset, entry): (&u32, &AssetEntry)| {
            let above = above.get(&asset).copied().unwrap_or_default();
            let settled = entry.outside.without(above);
            (asset, settled.unwrap_or_else(|| panic!("{above:?} of {:?}", entry.outside)))
        };
        let settled = self.assets.iter().map(settled);
        Some(settled.filter(|(_, outside)| *outside != Outside::default()).collect())
    }

    /// Everything that is so: what has left and the watermark, assets, accounts, balances, outcomes, of each kind in
    /// no order.
    pub fn facts(&self) -> impl Iterator<Item = Fact> + '_ {
        let evicted = Fact::Evicted { digest: self.outcomes.evicted() };
        let watermark = Fact::Watermark { order_number: self.watermark };
        let assets = self.assets.iter().map(|(&asset, entry)| {
            let AssetEntry { precision, symbol, .. } = *entry;
            Fact::Asset { asset, precision, symbol }
        });
        let outside = self.assets.iter().map(|(&asset, entry)| (asset, entry.outside));
        let outside = outside.filter(|(_, outside)| *outside != Outside::default());
        let outside = outside.map(|(asset, outside)| Fact::Outside { asset, outside });
        let accounts = self.accounts.rows().iter().map(Account::fact);
        let balances = self.balances.rows().iter().map(Balance::fact);
        let outcomes = self.outcomes.iter();
        let outcomes =
            outcomes.map(|(req_id, op, recorded)| Fact::Outcome { req_id, op, recorded });
        let head = [evicted, watermark].into_iter();
        head.chain(assets).chain(outside).chain(accounts).chain(balances).chain(outcomes)
    }

    /// The sum of all facts' digests, modulo 2^128. It tells what the log adds up to: neither the places nor what has
    /// been forgotten already change it.
    pub fn digest(&self) -> u128 {
        self.digest
    }

    /// Makes `after` so, in the place of `before`.
    fn exchange(&mut self, before: Option<Fact>, after: Fact) {
        let before = before.map_or(0, |before| before.digest());
        self.digest = self.digest.wrapping_sub(before).wrapping_add(after.digest());
    }

    /// Has what these orders look for on its way from memory: first where their rows stand, then the rows. Nothing waits
    /// for it.
    pub fn expect<'a>(&self, orders: impl Iterator<Item = &'a Order> + Clone) {
        for order in orders.clone() {
            self.outcomes.expect_slot(order.req_id, order.op);
            self.balances.expect_slot((order.user, order.asset));
            self.accounts.expect_slot(order.user);
        }
        for order in orders {
            self.balances.expect_row((order.user, order.asset));
            self.accounts.expect_row(order.user);
        }
    }

    /// Decides a command without changing anything.
    pub fn step(&self, command: &Command) -> Step {
        match *command {
            Command::Order(ref order) => {
                self.step_order(order, false, |balance| self.judge(order, balance))
            }
            Command::Refuse { ref order, code } => {
                self.step_order(order, true, |_balance| impose(order.op, code))
            }
            Command::External(ref external) => self.step_external(external),
            Command::SetStatus { user, status } => match UserId::new(user) {
                None => Step::Violation("no such user"),
                Some(_) if self.status(user) == Some(status) => Step::Known(Answer::Done),
                Some(_) if self.lacks_status(user, status) => Step::Full(ACCOUNTS_MAX),
                Some(_) => Step::Append(Entry::AccountStatus { user, status }),
            },
            Command::RegisterAsset { asset, precision, symbol } => match self.assets.get(&asset) {
                Some(known) if (known.precision, known.symbol) == (precision, symbol) => {
                    Step::Known(Answer::Done)
                }
                Some(_) => Step::Violation("the asset is known with another symbol or precision"),
                None if precision > PRECISION_MAX => Step::Violation("precision out of range"),
                None => Step::Append(Entry::Asset { asset, precision, symbol }),
            },
            Command::RaiseWatermark { order_number } if order_number <= self.watermark => {
                Step::Known(Answer::Done)
            }
            Command::RaiseWatermark { order_number } => {
                Step::Append(Entry::Watermark { order_number })
            }
            Command::CarryTotals { user, asset, totals } => self.step_totals(user, asset, totals),
            Command::CarryOutside { asset, outside } => self.step_outside(asset, outside),
            Command::Digest => Step::Append(Entry::Digest { digest: self.digest() }),
            Command::ReadBalance { user, asset } => {
                let available = self.status(user).map(|_| self.balance(user, asset));
                Step::Known(Answer::Balance { available, sequence: self.sequence })
            }
            Command::ReadTotal { asset } => {
                let (units, sequence) = (self.total(asset), self.sequence);
                Step::Known(Answer::Total { units, sequence })
            }
            Command::Foresee(ref order) => Step::Known(Answer::Foreseen(self.foresee(order))),
            Command::ReadStatus { user } => Step::Known(Answer::Status(self.status(user))),
            Command::ReadWatermark => Step::Known(Answer::Watermark(self.watermark)),
            Command::Query { req_id, op } => {
                Step::Known(Answer::Query(self.outcomes.get(req_id, op)))
            }
        }
    }

    /// `decide`: by the balance, for an order that nothing is recorded for; an error is a violation.
    fn step_order(
        &self,
        order: &Order,
        imposed: bool,
        decide: impl Fn(u128) -> Result<Decision, &'static str>,
    ) -> Step {
        if let Some(recorded) = self.outcomes.get(order.req_id, order.op) {
            return match recorded.matches(order) {
                true => Step::Known(Answer::Decided(recorded)),
                false => {
                    Step::Violation("a repeat with another user, asset, amount or order number")
                }
            };
        }
        if order.order_number < self.watermark {
            return Step::Forgotten;
        }
        if order.order_number > ORDER_NUMBER_MAX {
            return Step::Violation("order number out of range");
        }
        let balance = self.balance(order.user, order.asset);
        let mut decision = match decide(balance) {
            Ok(decision) => decision,
            Err(why) => return Step::Violation(why),
        };
        let mut imposed = imposed;
        if decision == Decision::Success && self.lacks_place(order) {
            // Its source has paid: a recorded refusal sends the money back, and no answer would keep it in flight.
            // Only a deposit gets here: an amount that leaves or comes back had a balance.
            assert!(order.op.pays() && order.op.row().undoes.is_none(), "{order:?}");
            (decision, imposed) = (Decision::Refused(Code::Overloaded), true);
        }
        if !self.outcomes.has_place(order.op, decision) {
            return Step::Full(OUTCOMES_MAX);
        }
        let balance_after = balance_after(order, decision, balance);
        Step::Append(Entry::Order { order: *order, decision, balance_after, imposed })
    }

    /// Records what PostgreSQL has decided. A repeat must say the same.
    fn step_external(&self, external: &External) -> Step {
        let External { op, user, asset, amount, order_number, decision, .. } = *external;
        if !op.is_external() {
            return Step::Violation("no external operation");
        }
        if let Some(recorded) = self.outcomes.get(external.key(), op) {
            return match recorded.matches_external(external) {
                true => Step::Known(Answer::Decided(recorded)),
                false => Step::Violation("the idem_key is recorded with another operation"),
            };
        }
        if order_number < self.watermark {
            return Step::Forgotten;
        }
        if order_number > ORDER_NUMBER_MAX {
            return Step::Violation("order number out of range");
        }
        if external.idem_key.as_str().is_empty() || UserId::new(user).is_none() || amount == 0 {
            return Step::Violation("not the form of an external operation");
        }
        if !self.assets.contains_key(&asset) {
            return Step::Violation("no such asset");
        }
        match self.outcomes.has_place(op, decision) {
            true => Step::Append(Entry::External(*external)),
            false => Step::Full(OUTCOMES_MAX),
        }
    }

    /// What a new order comes to by itself.
    ///
    /// # Errors
    /// Why it is none.
    fn judge(&self, order: &Order, balance: u128) -> Result<Decision, &'static str> {
        let by = |checked: Result<(), Code>| match checked {
            Ok(()) => Decision::Success,
            Err(code) => Decision::Refused(code),
        };
        if order.op.is_external() {
            return Err(NO_EXTERNAL);
        }
        match order.op.row().undoes {
            None => Ok(by(self.check(order).and_then(|()| self.admit(order, balance)))),
            Some(undone) => match self.outcomes.get(order.req_id, undone) {
                Some(paid) if paid.decision == Decision::Success && paid.matches(order) => {
                    Ok(Decision::Success)
                }
                Some(_) | None => Err("a refund of what was not withdrawn"),
            },
        }
    }

    /// What an order would come to now, whatever is recorded under its name.
    fn foresee(&self, order: &Order) -> Result<(), Code> {
        let balance = self.balance(order.user, order.asset);
        match self.judge(order, balance) {
            Ok(Decision::Success) if self.lacks_place(order) => Err(Code::Overloaded),
            Ok(Decision::Success) => Ok(()),
            Ok(Decision::Refused(code)) => Err(code),
            Err(_) => Err(Code::InvalidRequest),
        }
    }

    /// Whether a deposit cannot make this user's account.
    fn lacks_account(&self, user: u64) -> bool {
        self.accounts_left() == 0 && self.accounts.get(user).is_none()
    }

    /// Whether this status cannot be set for want of an account. A status that stops a user has places of its own.
    fn lacks_status(&self, user: u64, status: AccountStatus) -> bool {
        match status {
            AccountStatus::Active => self.lacks_account(user),
            AccountStatus::Frozen | AccountStatus::Disabled => {
                self.accounts.places_left() == 0 && self.accounts.get(user).is_none()
            }
        }
    }

    /// Whether the account or the balance that the order asks for cannot be made.
    fn lacks_place(&self, order: &Order) -> bool {
        let key = (order.user, order.asset);
        self.lacks_account(order.user)
            || self.balances.places_left() == 0 && self.balances.get(key).is_none()
    }

    fn check(&self, order: &Order) -> Result<(), Code> {
        let asset_known = self.assets.contains_key(&order.asset);
        let (req_id, user, amount) = (order.req_id, order.user, order.amount);
        check_form(Form { req_id, user, amount, asset_known }).map(|_| ())
    }

    /// The verdict of the account's status and its balance.
    fn admit(&self, order: &Order, balance: u128) -> Result<(), Code> {
        let enough = balance >= u128::from(order.amount);
        order.op.verdict(Participant::Spot, self.status(order.user), enough)
    }

    /// Carries out an entry of the log. `time_ns` and `sequence` are the record's own.
    ///
    /// Panics when the entry could not have been decided by [`Ledger::step`] in this state: replay compares first.
    pub fn apply(&mut self, entry: &Entry, sequence: wal::Sequence, time_ns: u64) -> Answer {
        assert_eq!(sequence, self.sequence + 1, "records are applied in order");
        self.sequence = sequence;
        match *entry {
            Entry::Order { ref order, decision, balance_after, imposed: _ } => {
                if decision == Decision::Success {
                    self.succeed(order, balance_after);
                }
                let recorded = Recorded::new(order, decision, balance_after, sequence, time_ns);
                let (req_id, op) = (order.req_id, order.op);
                self.outcomes.insert(req_id, op, recorded);
                self.exchange(None, Fact::Outcome { req_id, op, recorded });
                Answer::Decided(recorded)
            }
            Entry::External(ref external) => {
                let recorded = Recorded::of_external(external, sequence, time_ns);
                let (req_id, op) = (external.key(), external.op);
                self.outcomes.insert(req_id, op, recorded);
                self.exchange(None, Fact::Outcome { req_id, op, recorded });
                self.count_outside(external);
                Answer::Decided(recorded)
            }
            Entry::AccountStatus { user, status } => {
                self.set_status(user, status);
                Answer::Done
            }
            Entry::Asset { asset, precision, symbol } => {
                let before = self.assets.insert(asset, AssetEntry::new(precision, symbol));
                assert!(before.is_none(), "asset {asset} registered twice");
                self.exchange(None, Fact::Asset { asset, precision, symbol });
                Answer::Done
            }
            Entry::Watermark { order_number } => {
                assert!(order_number > self.watermark, "a watermark only rises");
                let before = Fact::Watermark { order_number: self.watermark };
                self.watermark = order_number;
                self.outcomes.risen();
                self.exchange(Some(before), Fact::Watermark { order_number });
                Answer::Done
            }
            Entry::Totals { user, asset, totals } => {
                self.carry_totals(user, asset, totals);
                Answer::Done
            }
            Entry::Outside { asset, outside } => {
                self.set_outside(asset, outside);
                Answer::Done
            }
            Entry::Mark | Entry::Digest { .. } => Answer::Done,
        }
    }

    fn count_outside(&mut self, external: &External) {
        let asset = external.asset;
        let entry = self.assets.get_mut(&asset).expect("nothing is recorded of an unknown asset");
        let after = entry.outside.with(external.op, external.decision, external.amount);
        self.set_outside(asset, after);
    }

    fn set_outside(&mut self, asset: u32, after: Outside) {
        let entry = self.assets.get_mut(&asset).expect("nothing is recorded of an unknown asset");
        let before = std::mem::replace(&mut entry.outside, after);
        let fact = |outside| Fact::Outside { asset, outside };
        let before = (before != Outside::default()).then(|| fact(before));
        self.exchange(before, fact(after));
    }

    fn set_status(&mut self, user: u64, status: AccountStatus) {
        let after = Account { user, status };
        let before = self.accounts.get(user).map(Account::fact);
        match self.accounts.get_mut(user) {
            Some(account) => *account = after,
            None => self.accounts.insert(after),
        }
        self.exchange(before, after.fact());
    }

    /// Carries out a success.
    fn succeed(&mut self, order: &Order, balance_after: u128) {
        let Order { op, user, asset, amount, .. } = *order;
        if self.status(user).is_none() {
            self.set_status(user, AccountStatus::Active);
        }
        // One look for the row: it is what an order costs most, beside its outcome's.
        let row = self.balances.get_mut((user, asset));
        let before = row.as_ref().map(|balance| balance.fact());
        let known = row.as_ref().map_or_else(Totals::default, |balance| balance.totals);
        let after = Balance { totals: known.with(op, amount), user, asset };
        assert_eq!(after.available(), balance_after, "{before:?} and {order:?}");
        match row {
            Some(balance) => *balance = after,
            None => self.balances.insert(after),
        }
        self.exchange(before, after.fact());
        let entry = self.assets.get_mut(&asset).expect("nothing succeeds of an unknown asset");
        // The balance is part of it, and a u128 holds 2^64 of the largest amounts.
        let total = op.row().available.of(entry.total, u128::from(amount));
        entry.total = total.unwrap_or_else(|| panic!("{} and {order:?}", entry.total));
    }
}

/// The decision that refuses a new order with `code`, whatever its account would answer.
///
/// # Errors
/// The violation: UBSCore never refuses this operation, or does not decide it.
fn impose(op: Op, code: Code) -> Result<Decision, &'static str> {
    match (op.is_external(), op.row().refusable) {
        (true, _) => Err(NO_EXTERNAL),
        (false, true) => Ok(Decision::Refused(code)),
        (false, false) => Err("a refund is never refused"),
    }
}

/// The balance once the decision is carried out, smallest units.
fn balance_after(order: &Order, decision: Decision, balance: u128) -> u128 {
    let after = match decision {
        Decision::Refused(_) => Some(balance),
        // A u128 holds 2^64 of the largest amounts, so that no legal sequence of them overflows.
        Decision::Success => order.op.row().available.of(balance, u128::from(order.amount)),
    };
    after.unwrap_or_else(|| panic!("balance {balance} and {order:?}"))
}

#[cfg(test)]
mod tests {
    use domain::transfer::Direction;
    use proptest::prelude::*;

    use super::*;
    use crate::order::Text;

    const USDT: u32 = 3;

    fn order(op: Op, req_id: u128, user: u64, amount: u64) -> Order {
        let direction = Direction::FundingToSpot;
        let cid = Text::EMPTY;
        Order { op, req_id, cid, user, asset: USDT, amount, direction, order_number: 1 }
    }

    fn refusal(order: Order) -> Command {
        Command::Refuse { order, code: Code::ResolvedByOperator }
    }

    fn run(ledger: &mut Ledger, command: Command) -> Answer {
        match ledger.step(&command) {
            Step::Append(entry) => ledger.apply(&entry, ledger.sequence + 1, 0),
            Step::Known(answer) => answer,
            Step::Violation(why) => Answer::Violation(why),
            Step::Full(_) => Answer::Overloaded,
            Step::Forgotten => Answer::Forgotten,
        }
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(Places { accounts_max: 100, outcomes_max: 1_000 });
        let symbol = Text::new("USDT").expect("short");
        run(&mut ledger, Command::RegisterAsset { asset: USDT, precision: 8, symbol });
        ledger
    }

    fn decide(ledger: &mut Ledger, order: Order) -> Decision {
        match run(ledger, Command::Order(order)) {
            Answer::Decided(recorded) => recorded.decision,
            other => panic!("{other:?}"),
        }
    }

    fn balance(ledger: &mut Ledger, user: u64) -> Option<u128> {
        match run(ledger, Command::ReadBalance { user, asset: USDT }) {
            Answer::Balance { available, .. } => available,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_operation_is_decided_once_and_repeats_are_told_the_decision() {
        let mut ledger = ledger();
        assert_eq!(balance(&mut ledger, 1), None);
        assert_eq!(decide(&mut ledger, order(Op::Deposit, 10, 1, 100)), Decision::Success);
        assert_eq!(decide(&mut ledger, order(Op::Deposit, 10, 1, 100)), Decision::Success);
        assert_eq!(balance(&mut ledger, 1), Some(100));
        let refused = Decision::Refused(Code::InsufficientBalance);
        assert_eq!(decide(&mut ledger, order(Op::Withdraw, 11, 1, 101)), refused);
        assert_eq!(decide(&mut ledger, order(Op::Deposit, 12, 1, 900)), Decision::Success);
        // The money is there now, yet the door is closed.
        assert_eq!(decide(&mut ledger, order(Op::Withdraw, 11, 1, 101)), refused);
        assert_eq!(balance(&mut ledger, 1), Some(1000));
    }

    /// Found by a seed of a fuzz target: a log with a larger one was replayed, and stopped the start that looked for the next.
    #[test]
    fn an_order_number_that_postgres_cannot_hold_is_no_order() {
        let mut ledger = ledger();
        let deposit = order(Op::Deposit, 10, 1, 100);
        let last = Order { order_number: ORDER_NUMBER_MAX, ..deposit };
        assert_eq!(decide(&mut ledger, last), Decision::Success);
        assert_eq!(ledger.order_numbers_end(), ORDER_NUMBER_MAX + 1);
        let beyond = Order { req_id: 11, order_number: ORDER_NUMBER_MAX + 1, ..deposit };
        let violation = Step::Violation("order number out of range");
        assert_eq!(ledger.step(&Command::Order(beyond)), violation);
    }

    #[test]
    fn a_refund_has_the_withdraws_name_and_is_no_repeat_of_it() {
        let mut ledger = ledger();
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        decide(&mut ledger, order(Op::Withdraw, 2, 7, 300));
        run(&mut ledger, Command::SetStatus { user: 7, status: AccountStatus::Disabled });
        assert_eq!(decide(&mut ledger, order(Op::Refund, 2, 7, 300)), Decision::Success);
        assert_eq!(decide(&mut ledger, order(Op::Refund, 2, 7, 300)), Decision::Success);
        assert_eq!(balance(&mut ledger, 7), Some(500));
    }

    /// Goal: from an operator's refusal on nothing else is ever decided, what was decided stands, and a refund is never refused.
    #[test]
    fn an_operators_refusal_closes_the_door_and_changes_nothing_that_is_decided() {
        let refuse = |ledger: &mut Ledger, order| run(ledger, refusal(order));
        let told = |answer| match answer {
            Answer::Decided(recorded) => (recorded.decision, recorded.balance_after),
            other => panic!("{other:?}"),
        };
        let resolved = Decision::Refused(Code::ResolvedByOperator);
        let mut ledger = ledger();
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        decide(&mut ledger, order(Op::Withdraw, 2, 7, 100));
        decide(&mut ledger, order(Op::Withdraw, 3, 7, 900));
        // Whatever the balance would have said.
        for (op, req_id, amount) in
            [(Op::Withdraw, 4, 50), (Op::Withdraw, 5, 9_000), (Op::Deposit, 6, 50)]
        {
            let late = order(op, req_id, 7, amount);
            assert_eq!(told(refuse(&mut ledger, late)), (resolved, 400));
            let recorded = ledger.sequence();
            assert_eq!(decide(&mut ledger, late), resolved, "a late call is told");
            assert_eq!(told(refuse(&mut ledger, late)), (resolved, 400), "and a repeat");
            assert_eq!(ledger.sequence(), recorded);
        }
        // Of somebody who has no account, none is made.
        assert_eq!(told(refuse(&mut ledger, order(Op::Deposit, 7, 8, 50))), (resolved, 0));
        assert_eq!(balance(&mut ledger, 8), None);
        // What was decided before stands, either way.
        let short = Decision::Refused(Code::InsufficientBalance);
        for (op, req_id, amount, want) in [
            (Op::Deposit, 1, 500, Decision::Success),
            (Op::Withdraw, 2, 100, Decision::Success),
            (Op::Withdraw, 3, 900, short),
        ] {
            assert_eq!(told(refuse(&mut ledger, order(op, req_id, 7, amount))).0, want);
        }
        let recorded = ledger.sequence();
        for bad in [
            order(Op::Refund, 2, 7, 100),
            order(Op::Deposit, 1, 7, 501),
            order(Op::Deposit, 1, 8, 500),
            order(Op::ExtDeposit, 9, 7, 1),
            Order { order_number: u64::MAX, ..order(Op::Deposit, 9, 7, 1) },
        ] {
            let answer = refuse(&mut ledger, bad);
            assert!(matches!(answer, Answer::Violation(_)), "{bad:?} {answer:?}");
        }
        // A refused withdraw needs no refund, and has none.
        let answer = run(&mut ledger, Command::Order(order(Op::Refund, 4, 7, 50)));
        assert!(matches!(answer, Answer::Violation(_)), "{answer:?}");
        run(&mut ledger, Command::RaiseWatermark { order_number: 2 });
        assert_eq!(refuse(&mut ledger, order(Op::Deposit, 9, 7, 1)), Answer::Forgotten);
        assert_eq!(ledger.sequence(), recorded + 1);
        assert_eq!(balance(&mut ledger, 7), Some(400));
        // It needs a place, as every outcome does.
        let mut small = Ledger::new(Places { accounts_max: 1, outcomes_max: 1 });
        refuse(&mut small, order(Op::Deposit, 1, 7, 1));
        assert_eq!(refuse(&mut small, order(Op::Deposit, 2, 7, 1)), Answer::Overloaded);
    }

    #[test]
    fn violations_change_and_record_nothing() {
        let mut ledger = ledger();
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        for bad in [
            order(Op::Deposit, 1, 8, 500),
            order(Op::Deposit, 1, 7, 501),
            Order { asset: 4, ..order(Op::Deposit, 1, 7, 500) },
            order(Op::Refund, 1, 7, 500),
            order(Op::Refund, 99, 7, 500),
            order(Op::ExtDeposit, 98, 7, 500),
        ] {
            let answer = run(&mut ledger, Command::Order(bad));
            assert!(matches!(answer, Answer::Violation(_)), "{bad:?} {answer:?}");
        }
        assert_eq!(ledger.outcome_count(), 1);
        assert_eq!(balance(&mut ledger, 7), Some(500));
    }

    #[test]
    fn ubscore_checks_what_reaches_it_for_itself() {
        let mut ledger = ledger();
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        let refused = Decision::Refused;
        for (id, bad, want) in [
            (20, order(Op::Withdraw, 20, 7, 0), Code::InvalidAmount),
            (21, order(Op::Deposit, 21, 0, 5), Code::InvalidRequest),
            (22, order(Op::Deposit, 22, u64::MAX, 5), Code::InvalidRequest),
            (23, Order { asset: 9, ..order(Op::Deposit, 23, 7, 5) }, Code::InvalidAsset),
            (24, order(Op::Withdraw, 24, 9, 5), Code::SourceAccountNotFound),
            (0, order(Op::Withdraw, 0, 7, 5), Code::InvalidRequest),
        ] {
            assert_eq!(decide(&mut ledger, bad), refused(want), "{id}");
        }
        let frozen = Command::SetStatus { user: 7, status: AccountStatus::Frozen };
        run(&mut ledger, frozen);
        let withdraw = order(Op::Withdraw, 30, 7, 5);
        assert_eq!(decide(&mut ledger, withdraw), refused(Code::AccountFrozen));
        assert_eq!(decide(&mut ledger, order(Op::Deposit, 31, 7, 5)), Decision::Success);
        run(&mut ledger, Command::SetStatus { user: 7, status: AccountStatus::Disabled });
        let deposit = order(Op::Deposit, 32, 7, 5);
        assert_eq!(decide(&mut ledger, deposit), refused(Code::AccountDisabled));
        let withdraw = order(Op::Withdraw, 33, 7, 5);
        assert_eq!(decide(&mut ledger, withdraw), refused(Code::AccountDisabled));
    }

    #[test]
    fn a_full_map_refuses_new_transfers_but_never_a_refund() {
        let mut ledger = Ledger::new(Places { accounts_max: 1, outcomes_max: 4 });
        let symbol = Text::new("USDT").expect("short");
        run(&mut ledger, Command::RegisterAsset { asset: USDT, precision: 8, symbol });
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        decide(&mut ledger, order(Op::Withdraw, 2, 7, 100));
        // Three places are taken: the deposit, the withdraw and the refund it may need.
        let again = Command::Order(order(Op::Withdraw, 3, 7, 100));
        assert_eq!(run(&mut ledger, again), Answer::Overloaded);
        decide(&mut ledger, order(Op::Deposit, 4, 7, 1));
        let more = Command::Order(order(Op::Deposit, 5, 7, 1));
        assert_eq!(run(&mut ledger, more), Answer::Overloaded);
        assert_eq!(decide(&mut ledger, order(Op::Refund, 2, 7, 100)), Decision::Success);
        assert_eq!(ledger.outcome_count(), 4);
    }

    #[test]
    fn below_the_watermark_nothing_is_decided() {
        let mut ledger = ledger();
        let numbered = |op, req_id, amount, order_number| {
            Command::Order(Order { order_number, ..order(op, req_id, 7, amount) })
        };
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        decide(&mut ledger, order(Op::Withdraw, 2, 7, 200));
        run(&mut ledger, numbered(Op::Deposit, 3, 50, 5));
        assert_eq!(run(&mut ledger, Command::RaiseWatermark { order_number: 5 }), Answer::Done);
        let raised = ledger.sequence();
        assert_eq!(run(&mut ledger, Command::RaiseWatermark { order_number: 4 }), Answer::Done);
        // Held still: a repeat is told, under its own number only.
        assert_eq!(decide(&mut ledger, order(Op::Deposit, 1, 7, 500)), Decision::Success);
        for number in [0, 2, 5, 9] {
            let answer = run(&mut ledger, numbered(Op::Deposit, 1, 500, number));
            assert!(matches!(answer, Answer::Violation(_)), "{number} {answer:?}");
        }
        // Not decided yet, and too late.
        assert_eq!(run(&mut ledger, numbered(Op::Refund, 2, 200, 1)), Answer::Forgotten);
        assert_eq!(run(&mut ledger, numbered(Op::Deposit, 9, 1, 4)), Answer::Forgotten);
        ledger.forget_all();
        for late in [
            numbered(Op::Deposit, 1, 500, 1),
            numbered(Op::Withdraw, 2, 200, 1),
            numbered(Op::Refund, 2, 200, 1),
        ] {
            assert_eq!(run(&mut ledger, late), Answer::Forgotten);
        }
        assert_eq!(ledger.sequence(), raised, "nothing has been recorded");
        assert_eq!((ledger.outcome_count(), ledger.places_left()), (1, 999));
        let totals = Totals { deposits: 550, withdrawals: 200, refunds: 0 };
        assert_eq!(ledger.totals(7, USDT), totals);
        assert_eq!(
            ledger.settled(ledger.watermark()).expect("known")[&(7, USDT)],
            Totals { deposits: 500, ..totals }
        );
        assert_eq!(balance(&mut ledger, 7), Some(350));
    }

    #[test]
    fn f05_without_a_place_for_an_account_or_a_balance_a_deposit_is_refused_for_good() {
        let mut ledger = Ledger::new(Places { accounts_max: 1, outcomes_max: 100 });
        for asset in 1..=3 {
            let symbol = Text::new("USDT").expect("short");
            run(&mut ledger, Command::RegisterAsset { asset, precision: 8, symbol });
        }
        let deposit = |req_id, user, asset| Order { asset, ..order(Op::Deposit, req_id, user, 9) };
        let foreseen = |ledger: &mut Ledger, order| run(ledger, Command::Foresee(order));
        assert_eq!(foreseen(&mut ledger, deposit(1, 7, 1)), Answer::Foreseen(Ok(())));
        decide(&mut ledger, deposit(1, 7, 1));
        let overloaded = Decision::Refused(Code::Overloaded);
        let no_place = Answer::Foreseen(Err(Code::Overloaded));
        assert_eq!(foreseen(&mut ledger, deposit(2, 8, 1)), no_place);
        let step = ledger.step(&Command::Order(deposit(2, 8, 1)));
        let refuse = Command::Refuse { order: deposit(2, 8, 1), code: Code::Overloaded };
        // What replay decides from the record, whatever the places are.
        assert_eq!(step, ledger.step(&refuse));
        let large = Ledger::new(Places { accounts_max: 100, outcomes_max: 100 });
        assert_eq!(step, large.step(&refuse));
        assert_eq!(decide(&mut ledger, deposit(2, 8, 1)), overloaded);
        assert_eq!(balance(&mut ledger, 8), None, "no account was made");
        let set =
            |ledger: &mut Ledger, user, status| run(ledger, Command::SetStatus { user, status });
        assert_eq!(set(&mut ledger, 8, AccountStatus::Active), Answer::Overloaded);
        // A person can stop users who have no account, and let them go on again; up to a bound.
        for user in 8..8 + STATUS_ACCOUNTS_MIN as u64 {
            assert_eq!(set(&mut ledger, user, AccountStatus::Frozen), Answer::Done, "{user}");
        }
        assert_eq!(set(&mut ledger, 8, AccountStatus::Active), Answer::Done);
        assert_eq!(set(&mut ledger, 1_000, AccountStatus::Frozen), Answer::Overloaded);
        assert_eq!(decide(&mut ledger, deposit(2, 8, 1)), overloaded, "the door is closed");
        // Two balances an account.
        decide(&mut ledger, deposit(3, 7, 2));
        assert_eq!(decide(&mut ledger, deposit(4, 7, 3)), overloaded);
        // What needs no new place goes on, refusals included.
        decide(&mut ledger, deposit(5, 7, 1));
        let refused = Decision::Refused(Code::SourceAccountNotFound);
        assert_eq!(decide(&mut ledger, order(Op::Withdraw, 6, 1_000, 9)), refused);
    }

    /// Goal: every command that is no order is decided as its table says. Method: the table, written down a second time.
    #[test]
    fn commands_are_decided_by_this_table() {
        use AccountStatus::{Active, Frozen};
        let mut ledger = ledger();
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        run(&mut ledger, Command::RaiseWatermark { order_number: 5 });
        let [usdt, usdc] = ["USDT", "USDC"].map(|text| Text::new(text).expect("short"));
        let register =
            |asset, precision, symbol| Command::RegisterAsset { asset, precision, symbol };
        let new =
            |asset, precision, symbol| Step::Append(Entry::Asset { asset, precision, symbol });
        let status = |user, status| Command::SetStatus { user, status };
        let raise = |order_number| Command::RaiseWatermark { order_number };
        let read = |user, asset| Command::ReadBalance { user, asset };
        let known = |available| {
            let sequence = ledger.sequence();
            Step::Known(Answer::Balance { available, sequence })
        };
        let total = |units| {
            let sequence = ledger.sequence();
            Step::Known(Answer::Total { units, sequence })
        };
        let query = |req_id, op| Command::Query { req_id, op };
        let recorded = ledger.outcomes.get(1, Op::Deposit);
        assert!(recorded.is_some());
        let done = Step::Known(Answer::Done);
        for (command, want) in [
            (status(7, Active), done),
            (status(7, Frozen), Step::Append(Entry::AccountStatus { user: 7, status: Frozen })),
            (status(8, Active), Step::Append(Entry::AccountStatus { user: 8, status: Active })),
            (register(USDT, 8, usdt), done),
            (register(9, 8, usdc), new(9, 8, usdc)),
            (register(9, 0, usdc), new(9, 0, usdc)),
            (raise(4), done),
            (raise(5), done),
            (raise(6), Step::Append(Entry::Watermark { order_number: 6 })),
            (Command::ReadWatermark, Step::Known(Answer::Watermark(5))),
            (Command::Digest, Step::Append(Entry::Digest { digest: ledger.digest() })),
            (read(7, USDT), known(Some(500))),
            (read(7, 9), known(Some(0))),
            (read(8, USDT), known(None)),
            (Command::ReadTotal { asset: USDT }, total(500)),
            (Command::ReadTotal { asset: 9 }, total(0)),
            (Command::ReadStatus { user: 7 }, Step::Known(Answer::Status(Some(Active)))),
            (Command::ReadStatus { user: 8 }, Step::Known(Answer::Status(None))),
            (query(1, Op::Deposit), Step::Known(Answer::Query(recorded))),
            (query(1, Op::Withdraw), Step::Known(Answer::Query(None))),
            (query(2, Op::Deposit), Step::Known(Answer::Query(None))),
        ] {
            assert_eq!(ledger.step(&command), want, "{command:?}");
        }
        for command in [
            status(0, Active),
            status(u64::MAX, Active),
            register(USDT, 7, usdt),
            register(USDT, 8, usdc),
            register(9, 9, usdc),
        ] {
            let step = ledger.step(&command);
            assert!(matches!(step, Step::Violation(_)), "{command:?}: {step:?}");
        }
    }

    /// Goal: UBSCore records what PostgreSQL has decided outside, once, and moves nothing. Method: deposits, a withdrawal and
    /// a refusal; repeats, contradictions, bad forms, the watermark, a full map.
    #[test]
    fn an_external_operation_is_recorded_once_and_moves_nothing() {
        let external = |op, idem_key: &str, amount, order_number| External {
            op,
            idem_key: Text::new(idem_key).expect("short"),
            user: 7,
            asset: USDT,
            amount,
            order_number,
            decision: Decision::Success,
            balance_after: 9,
        };
        let mut ledger = ledger();
        let deposit = external(Op::ExtDeposit, "d1", 500, 1);
        let refused = Decision::Refused(Code::InsufficientBalance);
        let refusal = External { decision: refused, ..external(Op::ExtWithdraw, "w2", 900, 3) };
        for external in [deposit, external(Op::ExtWithdraw, "w1", 200, 2), refusal] {
            for _ in 0..2 {
                let answer = run(&mut ledger, Command::External(external));
                let Answer::Decided(recorded) = answer else { panic!("{answer:?}") };
                assert_eq!(recorded.decision, external.decision);
                let query = Command::Query { req_id: external.key(), op: external.op };
                assert_eq!(run(&mut ledger, query), Answer::Query(Some(recorded)));
            }
        }
        assert_eq!((ledger.sequence(), ledger.outcome_count()), (4, 3));
        assert_eq!(balance(&mut ledger, 7), None, "no Spot account");
        for bad in [
            External { amount: 501, ..deposit },
            External { user: 8, ..deposit },
            External { order_number: 4, ..deposit },
            External { decision: refused, ..deposit },
            External { balance_after: 8, ..deposit },
            External { idem_key: Text::EMPTY, ..deposit },
            external(Op::Deposit, "d3", 5, 5),
            external(Op::ExtDeposit, "d4", 0, 5),
            External { user: 0, ..external(Op::ExtDeposit, "d5", 5, 5) },
            External { asset: 9, ..external(Op::ExtDeposit, "d6", 5, 5) },
            external(Op::ExtDeposit, "d7", 5, u64::MAX),
        ] {
            let answer = run(&mut ledger, Command::External(bad));
            assert!(matches!(answer, Answer::Violation(_)), "{bad:?} {answer:?}");
        }
        let all = Outside { deposits: 1, deposited: 500, withdrawals: 2, withdrawn: 200 };
        let one = Outside { withdrawals: 1, ..all };
        assert_eq!(ledger.outside(3), Some(BTreeMap::from([(USDT, one)])));
        run(&mut ledger, Command::RaiseWatermark { order_number: 4 });
        ledger.forget_all();
        assert_eq!((ledger.outcome_count(), ledger.outside(3)), (0, None));
        assert_eq!(ledger.outside(4), Some(BTreeMap::from([(USDT, all)])));
        assert_eq!(run(&mut ledger, Command::External(deposit)), Answer::Forgotten);
        let mut small = Ledger::new(Places { accounts_max: 1, outcomes_max: 1 });
        let symbol = Text::new("USDT").expect("short");
        run(&mut small, Command::RegisterAsset { asset: USDT, precision: 8, symbol });
        run(&mut small, Command::External(deposit));
        let more = external(Op::ExtDeposit, "d2", 5, 5);
        assert_eq!(run(&mut small, Command::External(more)), Answer::Overloaded);
    }

    /// The last unit can be withdrawn, and not one more.
    #[test]
    fn a_balance_can_be_emptied_and_not_overdrawn() {
        let mut ledger = ledger();
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        let refused = Decision::Refused(Code::InsufficientBalance);
        assert_eq!(decide(&mut ledger, order(Op::Withdraw, 2, 7, 501)), refused);
        assert_eq!(decide(&mut ledger, order(Op::Withdraw, 3, 7, 500)), Decision::Success);
        assert_eq!(decide(&mut ledger, order(Op::Withdraw, 4, 7, 1)), refused);
        assert_eq!(balance(&mut ledger, 7), Some(0));
        assert_eq!(ledger.balances(), [(7, USDT, 0)]);
    }

    /// Order numbers from [`Ledger::order_numbers_end`] on are free, also when what was decided under the last one is
    /// forgotten; what lies below a number is settled from the watermark on.
    #[test]
    fn order_numbers_end_behind_the_last_and_settle_from_the_watermark_on() {
        let mut ledger = ledger();
        assert_eq!(ledger.order_numbers_end(), 0);
        for (req_id, op, order_number) in
            [(1, Op::Deposit, 3), (2, Op::Deposit, 9), (3, Op::Withdraw, 4), (4, Op::Withdraw, 10)]
        {
            // The last one is refused.
            let amount = if req_id == 4 { 1_000 } else { 100 };
            let order = Order { order_number, ..order(op, req_id, 7, amount) };
            run(&mut ledger, Command::Order(order));
        }
        assert_eq!(ledger.order_numbers_end(), 11);
        run(&mut ledger, Command::RaiseWatermark { order_number: 4 });
        assert_eq!(ledger.order_numbers_end(), 11);
        assert_eq!(ledger.settled(3), None);
        for (below, deposits, withdrawals) in
            [(4, 100, 0), (5, 100, 100), (9, 100, 100), (10, 200, 100), (11, 200, 100)]
        {
            let totals = Totals { deposits, withdrawals, refunds: 0 };
            let settled = ledger.settled(below).expect("at or above the watermark");
            assert_eq!(settled, BTreeMap::from([((7, USDT), totals)]), "below {below}");
        }
        run(&mut ledger, Command::RaiseWatermark { order_number: 20 });
        ledger.forget_all();
        assert_eq!((ledger.order_numbers_end(), ledger.outcome_count()), (20, 0));
        // The watermark's own number is not below it.
        let first = Order { order_number: 20, ..order(Op::Deposit, 5, 7, 1) };
        assert_eq!(decide(&mut ledger, first), Decision::Success);
        assert_eq!((ledger.order_numbers_end(), ledger.outcome_count()), (21, 1));
    }

    /// A digest is the sum of the facts, whatever has been set, changed, raised and forgotten.
    #[test]
    fn the_digest_is_the_sum_of_the_facts() {
        let mut ledger = ledger();
        let sum = |ledger: &Ledger| -> u128 {
            let add = |sum: u128, fact: Fact| sum.wrapping_add(fact.digest());
            ledger.facts().fold(0, add)
        };
        let mut seen = vec![Ledger::new(Places { accounts_max: 1, outcomes_max: 1 }).digest()];
        for command in [
            Command::Order(order(Op::Deposit, 1, 7, 500)),
            Command::Order(order(Op::Withdraw, 2, 7, 100)),
            Command::Order(order(Op::Withdraw, 3, 7, 900)),
            Command::SetStatus { user: 7, status: AccountStatus::Frozen },
            Command::SetStatus { user: 8, status: AccountStatus::Active },
            Command::RaiseWatermark { order_number: 2 },
        ] {
            assert_eq!(ledger.digest(), sum(&ledger), "before {command:?}");
            assert!(!seen.contains(&ledger.digest()), "nothing has changed before {command:?}");
            seen.push(ledger.digest());
            run(&mut ledger, command);
        }
        let before = ledger.digest();
        ledger.forget_all();
        assert_eq!((ledger.digest(), sum(&ledger)), (before, before));
    }

    /// What the balances of each asset add up to, one by one.
    fn recounted(ledger: &Ledger) -> BTreeMap<u32, u128> {
        let mut totals = BTreeMap::new();
        for (_, asset, units) in ledger.balances() {
            *totals.entry(asset).or_default() += units;
        }
        totals
    }

    proptest! {
        /// Goal: an asset's total is what its balances add up to, whatever the orders were, and is the same when the log is
        /// replayed and when the facts of a snapshot are read back. Method: random orders of few names, users and assets.
        #[test]
        fn a_total_is_what_the_balances_add_up_to(
            orders in prop::collection::vec((0..5u8, 1..12u128, 1..4u64, 1..4u32, 1..50u64), 1..200)
        ) {
            let empty = || Ledger::new(Places { accounts_max: 100, outcomes_max: 1_000 });
            let (mut ledger, mut replayed) = (empty(), empty());
            let mut builder = builder::Builder::new(empty());
            let symbol = Text::new("USDT").expect("short");
            let register = |asset| Command::RegisterAsset { asset, precision: 8, symbol };
            let mut commands: Vec<Command> = (1..4).map(register).collect();
            for (step, req_id, user, asset, amount) in orders {
                let op = [Op::Withdraw, Op::Deposit, Op::Refund][usize::from(step % 3)];
                let order = Order { asset, ..order(op, req_id, user, amount) };
                commands.push(if step > 2 { refusal(order) } else { Command::Order(order) });
            }
            for command in commands {
                if let Step::Append(entry) = ledger.step(&command) {
                    let sequence = ledger.sequence + 1;
                    ledger.apply(&entry, sequence, 0);
                    replayed.apply(&entry, sequence, 0);
                }
                for (asset, units) in recounted(&ledger) {
                    prop_assert_eq!(ledger.total(asset), units);
                }
            }
            for fact in ledger.facts() {
                builder.add(fact).expect("its own facts");
            }
            let restored = builder.finish(ledger.sequence(), ledger.digest()).expect("its own facts");
            for asset in 1..4 {
                let total = ledger.total(asset);
                prop_assert_eq!(recounted(&ledger).get(&asset).copied().unwrap_or(0), total);
                prop_assert_eq!([replayed.total(asset), restored.total(asset)], [total; 2]);
            }
        }

        /// Goal: no sequence of orders makes or loses money. Method: random orders with few names and users, added
        /// up from the answers.
        #[test]
        fn balances_are_what_the_successes_add_up_to(
            orders in prop::collection::vec((0..5u8, 1..12u128, 1..4u64, 1..50u64), 1..200)
        ) {
            let mut ledger = ledger();
            let mut sum = HashMap::<u64, i128>::new();
            for (step, req_id, user, amount) in orders {
                let op = [Op::Withdraw, Op::Deposit, Op::Refund][usize::from(step % 3)];
                let before = ledger.sequence();
                let order = order(op, req_id, user, amount);
                let refuse = step > 2;
                let command = if refuse { refusal(order) } else { Command::Order(order) };
                let answer = run(&mut ledger, command);
                if let Answer::Decided(recorded) = answer
                    && recorded.decision == Decision::Success
                    && ledger.sequence() > before
                {
                    let sign = if op == Op::Withdraw { -1 } else { 1 };
                    *sum.entry(user).or_default() += sign * i128::from(amount);
                }
            }
            for (user, want) in sum {
                let have = balance(&mut ledger, user).expect("has an account");
                prop_assert_eq!(i128::try_from(have).expect("small"), want);
            }
        }
    }
}
