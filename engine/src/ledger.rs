//! UBSCore's state: all accounts, balances, assets and outcomes. No I/O, no clock and no random
//! number: the same log gives the same ledger on every machine.
//!
//! This file holds the state, and the reads of it. The room `op` holds the two functions that
//! change it, [`Ledger::step`] and [`Ledger::apply`], with one file for each command.

use std::collections::BTreeMap;
use std::thread;

use domain::account::AccountStatus;
use domain::asset::SYMBOL_BYTES_MAX;
use domain::code::Code;
use domain::transfer::Decision;
use hashbrown::HashMap;

use crate::accounts::{Account, Balance, Balances};
use crate::entry::Entry;
use crate::external::Outside;
use crate::fact::{Fact, HoldFact};
use crate::holds::{
    Chain, Chains, Hold, HoldKey, Holds, TRANSACTION_HOLDS_MAX, hold_key, transaction_key,
};
use crate::named::NamedAnswer;
use crate::order::Order;
use crate::outcomes::Outcomes;
use crate::places::Places;
use crate::recorded::Recorded;
use crate::table::{HashState, Row, Table};
use crate::text::Text;
use crate::totals::Totals;
use crate::venue::{HoldRow, OpenError, VenueRow};
use crate::venues::{Venue, Venues};

/// Commands that are prefetched together before the first one is decided: a processor waits for so
/// many cache misses at once.
pub const LOOK_AHEAD: usize = 16;
/// Outcomes checked with each command: more than it can add, so that places are freed faster than
/// they are taken.
pub const FORGET_LOOKS: usize = 16;
/// Outcomes evicted with each command: for the same reason more than one.
pub const FORGET_LEAVES: usize = 2;

/// The most rows that one command reads: the core thread decides nothing meanwhile.
pub const ROWS_READ_MAX: usize = 256;

/// The largest order number: PostgreSQL stores it as a BIGINT.
pub(crate) const ORDER_NUMBER_MAX: u64 = i64::MAX as u64;

/// The decision of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Append this entry to the log, then [`Ledger::apply`] it.
    Append(Entry),
    /// The state is so already: nothing to append.
    Known(Answer),
    /// A repeat with other fields, or a command of a wrong form, with the reason. Nothing changes.
    Violation(&'static str),
    /// No place is left, with the configuration key of the bound. Nothing changes; the caller may
    /// retry.
    Full(&'static str),
    /// The order is below the watermark and has no outcome: it may have been decided and evicted.
    /// Nothing changes.
    Forgotten,
}

/// The answer of UBSCore, sent once it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The decision of an order, made now or before.
    Decided(Recorded),
    /// A status or an asset is set.
    Done,
    /// One balance at a point of the log.
    Balance {
        /// Smallest units, without holds and freezes; `None` without a Spot account.
        available: Option<u128>,
        /// All holds and freezes, smallest units.
        held: u128,
        /// The last record that this balance includes.
        sequence: wal::Sequence,
    },
    /// An operator has released a hold.
    Released {
        /// Its owner.
        user: u64,
        /// Its asset.
        asset: u32,
        /// Smallest units.
        amount: u64,
        /// The record.
        sequence: wal::Sequence,
    },
    /// The sum of all balances of an asset at a point of the log.
    Total {
        /// Smallest units, with what is held; 0 for an unknown asset.
        units: u128,
        /// All holds and freezes of it, smallest units.
        held: u128,
        /// All that transactions have brought to it from outside less all taken there.
        crossed: i128,
        /// The last record that this sum includes.
        sequence: wal::Sequence,
    },
    /// The decision that an order would get now. An error is the code of the refusal;
    /// [`Code::Overloaded`]: its account or balance has no place.
    Foreseen(Result<(), Code>),
    /// A Spot account's status; `None` without an account.
    Status(Option<AccountStatus>),
    /// The recorded outcome of an operation; `None` without one.
    Query(Option<Recorded>),
    /// The decision of a posting by name, made now or before.
    Named(NamedAnswer),
    /// The recorded outcome of a posting by name; `None` without one.
    QueryNamed(Option<NamedAnswer>),
    /// The watermark: outcomes of smaller order numbers may have been evicted.
    Watermark(u64),
    /// See [`Step::Forgotten`].
    Forgotten,
    /// See [`Step::Violation`].
    Violation(&'static str),
    /// See [`Step::Full`]; also if the log has no room. Nothing has changed.
    Overloaded,
    /// A venue's session is open.
    Opened {
        /// Its epoch.
        epoch: u64,
        /// The last number decided, 0 for none.
        last: u64,
        /// The last number acknowledged, 0 for none.
        acknowledged: u64,
    },
    /// A venue is not opened, or not changed.
    NotOpened(OpenError),
}

/// The state of a venue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VenueState {
    /// The epoch of its last session, 0 for none.
    pub epoch: u64,
    /// An operator has closed it.
    pub closed: bool,
    /// The last number decided, 0 for none.
    pub last: u64,
    /// The last number acknowledged, 0 for none.
    pub acknowledged: u64,
    /// The most answers without an acknowledgement.
    pub window: u64,
}

/// A registered asset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AssetEntry {
    pub(crate) precision: u8,
    pub(crate) symbol: Text<SYMBOL_BYTES_MAX>,
    /// The sum of all its balances, smallest units. It follows from them, so it is no fact.
    pub(crate) total: u128,
    /// The sum of all its holds and freezes, smallest units. No fact either.
    pub(crate) held: u128,
    /// Its external operations.
    pub(crate) outside: Outside,
    /// All that transactions have brought from outside less all that they have taken there,
    /// smallest units: see [`crate::crossed`].
    pub(crate) crossed: i128,
}

impl AssetEntry {
    /// An asset without balances and without external operations.
    pub(crate) fn new(precision: u8, symbol: Text<SYMBOL_BYTES_MAX>) -> AssetEntry {
        let outside = Outside::default();
        AssetEntry { precision, symbol, total: 0, held: 0, outside, crossed: 0 }
    }
}

/// All balances, statuses, assets and outcomes.
pub struct Ledger {
    /// Accounts above this number are made by status changes only.
    accounts_max: usize,
    pub(crate) accounts: Table<Account>,
    pub(crate) balances: Balances,
    /// Holds and freezes.
    pub(crate) holds: Holds,
    pub(crate) venues: Venues,
    pub(crate) assets: HashMap<u32, AssetEntry, HashState>,
    pub(crate) outcomes: Outcomes,
    /// Outcomes of smaller order numbers may be evicted.
    pub(crate) watermark: u64,
    pub(crate) sequence: wal::Sequence,
    /// The sum of all facts' digests.
    digest: u128,
    /// A planted bug of the tests.
    #[cfg(test)]
    pub(crate) named_bug: Option<crate::named::NamedBug>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(places: Places) -> Ledger {
        let watermark = Fact::Watermark { order_number: 0 };
        Ledger {
            accounts_max: places.accounts_max,
            accounts: Table::new(places.accounts()),
            balances: Balances::new(places.balances(), places.sums()),
            holds: Holds::new(places.venues.holds_max),
            venues: Venues::new(places.venues.venues_max, places.venues.window),
            assets: HashMap::with_hasher(HashState::default()),
            outcomes: Outcomes::new(places.outcomes_max),
            watermark: 0,
            sequence: 0,
            digest: watermark.digest(),
            #[cfg(test)]
            named_bug: None,
        }
    }

    /// The last record applied.
    pub fn sequence(&self) -> wal::Sequence {
        self.sequence
    }

    /// Outcomes of smaller order numbers may be evicted.
    pub fn watermark(&self) -> u64 {
        self.watermark
    }

    /// A number above every order number with a decision.
    pub fn order_numbers_end(&self) -> u64 {
        let end = self.outcomes.last_order_number().map_or(0, |last| last + 1);
        end.max(self.watermark)
    }

    /// The number of outcomes held.
    pub fn outcome_count(&self) -> usize {
        self.outcomes.len()
    }

    /// Free places for outcomes, without those kept for refunds and for ends of transactions.
    pub fn places_left(&self) -> usize {
        self.outcomes.places_left()
    }

    /// Keeps places for the ends of transactions without a RESERVE, see
    /// [`Options::ends_kept`](crate::Options::ends_kept). Call it behind the replay: an older
    /// process may have used these places.
    pub fn keep_for_ends(&mut self, places: usize) {
        self.outcomes.keep_for_ends(places);
    }

    /// The number of Spot accounts.
    pub fn account_count(&self) -> usize {
        self.accounts.rows().len()
    }

    /// Accounts that deposits can still make.
    pub fn accounts_left(&self) -> usize {
        self.accounts_max.saturating_sub(self.account_count() + self.outcomes.kept_accounts())
    }

    /// The number of balances.
    pub fn balance_count(&self) -> usize {
        self.balances.rows().len()
    }

    /// Balances that deposits can still make: without those that holds and open transactions keep.
    pub fn balances_left(&self) -> usize {
        self.balances.places_left() - self.holds.kept() - self.outcomes.kept_balances()
    }

    /// Holds and freezes that can still be made: without the freezes that open transactions keep.
    pub(crate) fn holds_left(&self) -> usize {
        self.holds.places_left() - self.outcomes.kept_freezes()
    }

    /// Whether venues are registered, or postings have named a balance: PostgreSQL alone cannot
    /// rebuild such a log.
    pub fn has_postings(&self) -> bool {
        !self.venues.rows().is_empty() || self.balances.are_traded()
    }

    /// Whether a venue is registered.
    pub fn knows_venue(&self, id: u32) -> bool {
        self.venues.get(id).is_some()
    }

    /// The state of a venue; `None` if it is not registered.
    pub fn venue_state(&self, id: u32) -> Option<VenueState> {
        let venue = self.venues.get(id)?;
        Some(VenueState {
            epoch: venue.epoch,
            closed: venue.closed,
            last: venue.last(),
            acknowledged: venue.acknowledged,
            window: self.venues.window as u64,
        })
    }

    /// The number of holds and freezes.
    pub fn hold_count(&self) -> usize {
        self.holds.rows().len()
    }

    /// Takes all memory of the tables from the system, so that no order waits for it.
    pub fn prefault(&mut self) {
        // The system clears it all: two processors take half of the time.
        thread::scope(|scope| {
            scope.spawn(|| self.outcomes.prefault());
            self.accounts.prefault();
            self.balances.prefault();
        });
    }

    /// Takes the memory of the tables of venues too, once a venue is registered. A service without
    /// venues does not pay for them.
    pub fn prefault_venues(&mut self) {
        if !self.venues.rows().is_empty() {
            self.balances.prefault_sums();
            self.holds.prefault();
            self.venues.prefault();
        }
    }

    /// Checks up to `looks_max` outcomes and evicts up to `leaves_max` below the watermark. Records
    /// and digests do not depend on it.
    pub fn forget(&mut self, looks_max: usize, leaves_max: usize) {
        self.outcomes.forget(self.watermark, looks_max, leaves_max);
        self.forget_answers(None, leaves_max);
    }

    /// Lets up to `leaves_max` acknowledged answers leave, of one venue or of all. Records and
    /// digests do not depend on it.
    pub(crate) fn forget_answers(&mut self, of: Option<u32>, leaves_max: usize) {
        let left = self.venues.forget(of, leaves_max);
        self.outcomes.add_evicted(left);
    }

    /// Evicts every outcome below the watermark. It takes long: not for the core thread.
    pub fn forget_all(&mut self) {
        while !self.has_forgotten() {
            self.forget(usize::MAX, usize::MAX);
        }
    }

    /// Whether no outcome below the watermark and no acknowledged answer is held.
    pub fn has_forgotten(&self) -> bool {
        self.outcomes.has_forgotten() && self.venues.has_forgotten()
    }

    /// Every balance, with holds and freezes, as (user, asset, smallest units), sorted.
    pub fn balances(&self) -> Vec<(u64, u32, u128)> {
        let balance = |row: &Balance| (row.user, row.asset, self.balances.owned(row));
        let mut all: Vec<_> = self.balances.rows().iter().map(balance).collect();
        all.sort_unstable();
        all
    }

    /// A balance with its holds and freezes, smallest units; 0 without operations.
    pub(crate) fn balance(&self, user: u64, asset: u32) -> u128 {
        self.balances.get(user, asset).map_or(0, |balance| self.balances.owned(balance))
    }

    /// A balance without its holds and freezes, smallest units; 0 without operations.
    pub(crate) fn available(&self, user: u64, asset: u32) -> u128 {
        self.balances.get(user, asset).map_or(0, |balance| self.balances.available(balance))
    }

    /// All holds and freezes of a balance, smallest units.
    pub(crate) fn held(&self, user: u64, asset: u32) -> u128 {
        self.balances.get(user, asset).map_or(0, |balance| self.balances.sums(balance).held)
    }

    /// The first holds and freezes of a balance, oldest first, at most `looks_max`.
    pub fn held_of(&self, user: u64, asset: u32, looks_max: usize) -> Vec<HoldFact> {
        let Some(balance) = self.balances.get(user, asset) else { return Vec::new() };
        let chain = self.balances.sums(balance).holds;
        let first = self.holds.next_of_owner(chain, None);
        let rows = std::iter::successors(first, |row| self.holds.next_of_owner(chain, Some(row)));
        rows.take(looks_max).map(Hold::content).collect()
    }

    /// Holds of a venue with numbers above `after`, in number order, looking at `looks_max` rows.
    ///
    /// They are added to `found`. Returns the number to ask with for the next ones; `None` at the
    /// end, and for an unknown venue.
    pub fn holds_of(
        &self,
        venue: u32,
        after: u64,
        looks_max: usize,
        found: &mut Vec<HoldRow>,
    ) -> Option<u64> {
        let chain = self.venues.get(venue)?.holds;
        // If the hold has ended, the search begins at the first one.
        let mut row = self.holds.get(hold_key(venue, after));
        for _ in 0..looks_max {
            row = Some(self.holds.next_of_venue(chain, row)?);
            let hold = row.expect("set above");
            if hold.number() > after {
                found.push(HoldRow {
                    number: hold.number(),
                    user: hold.user,
                    asset: hold.asset,
                    remaining: u64::try_from(hold.amount()).expect("a venue's hold"),
                    reference: hold.reference(),
                    record: hold.record,
                    time_ns: hold.time_ns,
                });
            }
        }
        let last = row?;
        self.holds.next_of_venue(chain, Some(last)).map(|_| last.number())
    }

    /// Holds and freezes at positions of the table below `before`, the highest first, at most
    /// `rows_max`. They are added to `found`.
    ///
    /// Returns the position to ask with for the next ones; `None` at the end. A row may take the
    /// position of one that has ended, always a lower one: so none is missed, and a row may come
    /// twice.
    pub fn holds_below(
        &self,
        before: usize,
        rows_max: usize,
        found: &mut Vec<HoldFact>,
    ) -> Option<usize> {
        let rows = self.holds.rows();
        let end = before.min(rows.len());
        let first = end.saturating_sub(rows_max);
        found.extend(rows[first..end].iter().rev().map(Hold::content));
        (first > 0).then_some(first)
    }

    /// A hold of a venue, if it is there.
    pub fn hold(&self, venue: u32, number: u64) -> Option<HoldFact> {
        self.holds.get(hold_key(venue, number)).map(Hold::content)
    }

    /// The open holds of a transaction, at most 16, by number.
    pub fn transaction_holds(&self, transaction: u128) -> impl Iterator<Item = HoldFact> + '_ {
        self.transaction_rows(transaction).map(Hold::content)
    }

    /// The rows of [`Ledger::transaction_holds`].
    pub(crate) fn transaction_rows(&self, transaction: u128) -> impl Iterator<Item = &Hold> {
        let indexes = 1..=TRANSACTION_HOLDS_MAX;
        indexes.filter_map(move |index| self.holds.get(transaction_key(transaction, index)))
    }

    /// All venues, in the order of their registration. They are added to `found`.
    pub fn venues(&self, found: &mut Vec<VenueRow>) {
        found.extend(self.venues.rows().iter().map(|venue| {
            let oldest = self.holds.next_of_venue(venue.holds, None);
            VenueRow {
                id: venue.id,
                name: venue.name,
                posts: venue.posts,
                closed: venue.closed,
                epoch: venue.epoch,
                last: venue.last(),
                acknowledged: venue.acknowledged,
                oldest: oldest.map(|hold| (hold.number(), hold.time_ns)),
            }
        }));
    }

    /// All holds and freezes of an asset, smallest units; 0 for an unknown one.
    pub(crate) fn total_held(&self, asset: u32) -> u128 {
        self.assets.get(&asset).map_or(0, |entry| entry.held)
    }

    /// Money of an asset that transactions have brought from outside less all that they have
    /// taken there, smallest units.
    pub fn crossed(&self, asset: u32) -> i128 {
        self.assets.get(&asset).map_or(0, |entry| entry.crossed)
    }

    /// The status of a Spot account, if there is one.
    pub(crate) fn status(&self, user: u64) -> Option<AccountStatus> {
        self.accounts.get(user).map(|account| account.status)
    }

    /// The sum of all balances of an asset, smallest units; 0 for an unknown one.
    pub fn total(&self, asset: u32) -> u128 {
        self.assets.get(&asset).map_or(0, |entry| entry.total)
    }

    /// All operations of one balance, also those with evicted outcomes.
    pub fn totals(&self, user: u64, asset: u32) -> Totals {
        self.balances.get(user, asset).map(|balance| balance.totals).unwrap_or_default()
    }

    /// The operations of each balance with order numbers below `below`, by user and asset: all
    /// operations without those held from `below` on. It does not depend on the evicted outcomes.
    /// `None` below the watermark, where the outcomes may be gone.
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
            let settled = settled.unwrap_or_else(|| panic!("{above:?} of {:?}", balance.totals));
            (balance.key(), settled)
        };
        Some(self.balances.rows().iter().map(settled).collect())
    }

    /// The external operations of each asset with order numbers below `below`; an asset without any
    /// is absent. `None` below the watermark, where the outcomes may be gone.
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

    /// All facts: evicted outcomes, watermark, assets, accounts, balances, venues, holds, answers,
    /// outcomes. Facts of one kind have no order.
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
        let crossed = self.assets.iter();
        let crossed = crossed.filter_map(|(&asset, entry)| crossed_fact(asset, entry.crossed));
        let accounts = self.accounts.rows().iter().map(Account::fact);
        let balances = self.balances.rows().iter().map(|balance| self.balances.fact(balance));
        let venues = self.venues.rows().iter().map(Venue::fact);
        let answers = self.venues.rows().iter().flat_map(Venue::answers);
        let holds = self.holds.rows().iter().map(Hold::fact);
        let outcomes = self.outcomes.facts();
        let head = [evicted, watermark].into_iter();
        let head = head.chain(assets).chain(outside).chain(crossed);
        let spot = head.chain(accounts).chain(balances);
        spot.chain(venues).chain(holds).chain(answers).chain(outcomes)
    }

    /// The sum of all facts' digests, modulo 2^128. It depends on the log only: neither the places
    /// nor the evictions change it.
    pub fn digest(&self) -> u128 {
        self.digest
    }

    /// Replaces the digest of `before` by that of `after`.
    pub(crate) fn exchange(&mut self, before: Option<Fact>, after: Fact) {
        let before = before.map_or(0, |before| before.digest());
        self.digest = self.digest.wrapping_sub(before).wrapping_add(after.digest());
    }

    /// Replaces the digest of `before` by that of `after`; either may be absent.
    pub(crate) fn replace(&mut self, before: Option<Fact>, after: Option<Fact>) {
        let digest = |fact: Option<Fact>| fact.map_or(0, |fact| fact.digest());
        self.digest = self.digest.wrapping_sub(digest(before)).wrapping_add(digest(after));
    }

    /// Adds a hold to its chains.
    pub(crate) fn add_hold(&mut self, row: Hold) {
        let Ledger { holds, venues, balances, .. } = self;
        holds.insert(row, &mut Owners { venues, balances });
    }

    /// See [`Holds::set`].
    pub(crate) fn set_hold(
        &mut self,
        key: HoldKey,
        amount: u128,
        keeps: bool,
    ) -> (Fact, Option<Fact>) {
        let Ledger { holds, venues, balances, .. } = self;
        holds.set(key, amount, keeps, &mut Owners { venues, balances })
    }

    /// Chains all restored holds.
    pub(crate) fn chain_holds(&mut self) {
        let Ledger { holds, venues, balances, .. } = self;
        holds.chain_all(&mut Owners { venues, balances });
    }

    /// Prefetches the rows of these orders: first their slots in the index, then the rows. It does
    /// not wait for them.
    pub fn expect<'a>(&self, orders: impl Iterator<Item = &'a Order> + Clone) {
        for order in orders.clone() {
            self.outcomes.expect_slot(order.req_id, order.op);
            self.balances.expect_slot(order.user, order.asset);
            self.accounts.expect_slot(order.user);
        }
        for order in orders {
            self.balances.expect_row(order.user, order.asset);
            self.accounts.expect_row(order.user);
        }
    }

    /// Whether a deposit cannot make this user's account.
    pub(crate) fn lacks_account(&self, user: u64) -> bool {
        self.accounts_left() == 0 && self.accounts.get(user).is_none()
    }

    /// Sets a status. An absent account is made.
    pub(crate) fn set_status(&mut self, user: u64, status: AccountStatus) {
        let after = Account { user, status };
        let before = self.accounts.get(user).map(Account::fact);
        match self.accounts.get_mut(user) {
            Some(account) => *account = after,
            None => self.accounts.insert(after),
        }
        self.exchange(before, after.fact());
    }

    /// Sets the external operations of a registered asset.
    pub(crate) fn set_outside(&mut self, asset: u32, after: Outside) {
        let entry = self.assets.get_mut(&asset).expect("an entry names a registered asset");
        let before = std::mem::replace(&mut entry.outside, after);
        let fact = |outside| Fact::Outside { asset, outside };
        let before = (before != Outside::default()).then(|| fact(before));
        self.exchange(before, fact(after));
    }

    /// Adds money of a registered asset that came from outside, or went there if below 0. The
    /// balances change apart from this.
    pub(crate) fn cross(&mut self, asset: u32, brought: i128) {
        let entry = self.assets.get_mut(&asset).expect("the judge has found it");
        let before = entry.crossed;
        let after = before.checked_add(brought).expect("2^62 of the largest amounts fit");
        let total = entry.total.checked_add_signed(brought);
        entry.total = total.expect("a payer has what goes outside");
        entry.crossed = after;
        self.replace(crossed_fact(asset, before), crossed_fact(asset, after));
    }
}

/// A sum of 0 has no fact.
fn crossed_fact(asset: u32, brought: i128) -> Option<Fact> {
    (brought != 0).then_some(Fact::Crossed { asset, brought })
}

/// The owners of the chains of holds.
struct Owners<'a> {
    venues: &'a mut Venues,
    balances: &'a mut Balances,
}

impl Chains for Owners<'_> {
    fn of_venue(&mut self, venue: u32) -> &mut Chain {
        &mut self.venues.get_mut(venue).expect("a hold's venue is registered").holds
    }

    fn of_owner(&mut self, sums: u32) -> &mut Chain {
        &mut self.balances.sums_mut(sums).holds
    }
}
