//! One flight: everything that one commit of one shard writes.
//!
//! The process decides, and PostgreSQL writes without a decision of its own. A flight therefore
//! names each row as the process holds it, before and after. If one of those rows differs in
//! PostgreSQL, nothing is written ([`Stopped::Differs`]).
//!
//! Flights of a shard are numbered without gaps, and the key (shard, number) of `journal_tb` is the
//! fence: two writers meet at the same number, and one of them gets a unique violation. The same
//! key settles a flight of unknown end: an empty flight under its number commits, and then the
//! other one never will, or it finds the number in use.
//!
//! [`Journal`] carries flights out: PostgreSQL in production, a model in the simulation.

pub mod difference;
pub mod draft;
pub mod entries;
pub mod memory;
pub mod recharged;
pub(super) mod tool;

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use wal::Sequence;

use self::recharged::{RechargeKey, RechargeRows, Recharged};
use super::incarnation::ORDER_NUMBER_BITS;
use super::store::{External, Failure, Page, Transfer, Unfinished};
use domain::account::{AccountStatus, UserId};
use domain::asset::AssetId;
use domain::code::Code;
use domain::hold::{Hold, HoldKey, HoldOrder};
use domain::transfer::{Cid, Decision, Op, ReqId, State};

/// A Funding balance as PostgreSQL holds it, smallest units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// The amount that the user can move; only a special balance may be below zero.
    pub available: i128,
    /// The amount set apart: the sum of the freezes and of the open holds.
    pub frozen: u128,
    /// Rises by one with each flight that changes the row.
    pub version: u64,
}

/// The writes of one commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flight {
    /// Its number in the shard, without gaps.
    pub number: u64,
    /// Tells flights of one number apart: no two of an incarnation have the same.
    pub attempt: u64,
    /// The highest log sequence that this process has seen durable.
    pub durable: Sequence,
    /// See [`Standing::open_from`](super::store::Standing::open_from).
    pub open_from: u64,
    /// The id of its first event, or of the next one if it has none: see [`EventIds`].
    pub event_first: u64,
    /// The time of everything in it, by the process's clock.
    pub at: Timestamp,
    /// New transfers.
    pub accepted: Vec<Written>,
    /// Transfers that go on.
    pub moved: Vec<Moved>,
    /// Transfers that are tried again later.
    pub deferred: Vec<Deferred>,
    /// Decided external operations.
    pub externals: Vec<Decided>,
    /// Accounts that the decisions rest on, by user.
    pub accounts: Vec<AccountRow>,
    /// Balances that the decisions rest on, by user and asset.
    pub balances: Vec<BalanceRow>,
    /// Holds that it makes or changes, by key.
    pub holds: Vec<HoldRow>,
    /// Freezes that holds change, by user, asset and purpose.
    pub freezes: Vec<FreezeRow>,
    /// Acts on holds, in order.
    pub acts: Vec<Acted>,
    /// Entries for the auditors.
    pub audited: Vec<Audited>,
    /// Rows of recharges.
    pub recharged: Recharged,
}

impl Flight {
    /// The transfers that it writes: those that go on, then the new ones.
    fn written(&self) -> impl Iterator<Item = &Written> {
        self.moved.iter().map(|moved| &moved.to).chain(&self.accepted)
    }

    /// The events, in the order of their ids: each id, its states, and the transfer at the end of
    /// the flight.
    pub fn events(&self) -> impl Iterator<Item = (u64, &Passed, &Transfer)> {
        let rows = self.written();
        let passed = rows.flat_map(|row| row.passed.iter().map(|passed| (passed, &row.transfer)));
        (self.event_first..).zip(passed).map(|(id, (passed, transfer))| (id, passed, transfer))
    }

    /// The number of its events: those of transfers, and behind them those of recharges.
    pub fn event_count(&self) -> usize {
        self.events().count() + self.recharged.notices.len()
    }

    /// The operations of transfers that it decides.
    pub fn operations(&self) -> impl Iterator<Item = (&Transfer, &Operation)> {
        self.written().flat_map(|row| row.operations.iter().map(|done| (&row.transfer, done)))
    }
}

/// [`Flight::attempt`] of the flights of tools: this number and above. The condition of an index
/// has it too.
pub const TOOL_ATTEMPT: u64 = 1 << 62;

/// The ids of events: `incarnation << 40 | counter`, one counter for all shards. They rise over
/// restarts and take-overs, without a clock.
#[derive(Debug)]
pub struct EventIds(AtomicU64);

impl EventIds {
    /// The ids of an incarnation.
    pub fn new(incarnation: u64) -> EventIds {
        EventIds(AtomicU64::new((incarnation << ORDER_NUMBER_BITS) + 1))
    }

    /// Takes `count` ids in a row. Returns the first one.
    pub fn take(&self, count: usize) -> u64 {
        let first = self.0.fetch_add(count as u64, Ordering::Relaxed);
        let counter = first % (1 << ORDER_NUMBER_BITS) + count as u64;
        assert!(counter < 1 << ORDER_NUMBER_BITS, "2^40 events in one incarnation");
        first
    }
}

/// Gets each flight of a shard that is committed, in their order.
pub trait Told: Send + Sync {
    /// A flight is committed, and no caller has its answer yet. Its worker calls this: never wait.
    fn committed(&self, flight: &Flight);
}

impl Told for () {
    fn committed(&self, _flight: &Flight) {}
}

/// A transfer as it stands at the end of a flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// All of it.
    pub transfer: Transfer,
    /// When it is tried again, if a try of its state has failed.
    pub next_retry_at: Option<Timestamp>,
    /// Its history in this flight.
    pub passed: Vec<Passed>,
    /// Funding's decisions in this flight.
    pub operations: Vec<Operation>,
}

/// A transfer that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Where it must stand.
    pub from: State,
    /// As it stands afterwards.
    pub to: Written,
    /// Whether its tries are those of `to`. An operation alone leaves them as they are.
    pub tries: bool,
}

/// A try that did not move a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// Which transfer.
    pub req_id: ReqId,
    /// Where it must stand; elsewhere nothing is written.
    pub state: State,
    /// Tries so far.
    pub retry_count: u32,
    /// When it is tried again.
    pub next_retry_at: Timestamp,
}

/// The states that one commit takes a transfer through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// In the order passed.
    pub states: Vec<State>,
    /// Tries before.
    pub attempt: u32,
    /// Why a participant refused.
    pub reason: Option<Code>,
}

/// A decision of Funding about an operation of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// WITHDRAW, DEPOSIT or REFUND.
    pub op: Op,
    /// Success or refusal.
    pub decision: Decision,
    /// The balance after a success, available and frozen, smallest units.
    pub balance_after: Option<i128>,
}

/// A decided external operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The request.
    pub external: External,
    /// Success or refusal.
    pub decision: Decision,
    /// The balance after a success, available and frozen, smallest units.
    pub balance_after: Option<i128>,
}

/// A Funding account: compared with `before`, and set to `after` if that is another status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountRow {
    /// The owner.
    pub user: UserId,
    /// `None`: there is none.
    pub before: Option<AccountStatus>,
    /// `None`: there is none afterwards either.
    pub after: Option<AccountStatus>,
}

/// A Funding balance: compared with `before`, and written if it has an `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceRow {
    /// The owner.
    pub user: UserId,
    /// Of what.
    pub asset: AssetId,
    /// `None`: there is no row.
    pub before: Option<Balance>,
    /// `None`: a decision rests on it, and it stays.
    pub after: Option<Balance>,
}

/// A hold of Funding: compared with `before`, and written as `after`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRow {
    /// Its key.
    pub key: HoldKey,
    /// `None`: there is no row.
    pub before: Option<Hold>,
    /// Behind the flight.
    pub after: Hold,
    /// Available and frozen behind its Settle, smallest units. `None`: it is not settled.
    pub settled_after: Option<i128>,
}

/// The freeze of a user, asset and purpose: compared with `before`, and written as `after`. Amounts
/// are smallest units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreezeRow {
    /// The owner.
    pub user: UserId,
    /// Of what.
    pub asset: AssetId,
    /// The purpose, above 0.
    pub purpose: u16,
    /// `None`: there is no row.
    pub before: Option<u128>,
    /// Behind the flight.
    pub after: u128,
}

/// A decided act on a hold. Amounts are smallest units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acted {
    /// The act.
    pub order: HoldOrder,
    /// Success or refusal.
    pub decision: Decision,
    /// The change of the available balance.
    pub available: i128,
    /// The change of the frozen balance.
    pub frozen: i128,
}

/// An entry of `admin_audit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    /// The person or part that asked for it.
    pub actor: String,
    /// The kind of change.
    pub action: &'static str,
    /// The changed account.
    pub subject: String,
    /// The change.
    pub detail: String,
    /// Why.
    pub reason: String,
}

/// Rows to be read before a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Accounts, each once.
    pub accounts: Vec<UserId>,
    /// Balances, each once.
    pub balances: Vec<(UserId, AssetId)>,
    /// Transfers by name.
    pub transfers: Vec<ReqId>,
    /// Transfers by their users' idempotency keys.
    pub cids: Vec<(UserId, Cid)>,
    /// External operations by their idempotency keys.
    pub externals: Vec<String>,
    /// Holds by their keys.
    pub holds: Vec<HoldKey>,
    /// Rows of recharges.
    pub recharges: Vec<RechargeKey>,
    /// Freezes by user, asset and purpose.
    pub freezes: Vec<(UserId, AssetId, u16)>,
}

impl Wanted {
    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        *self == Wanted::default()
    }
}

/// The rows that were read. A row that was wanted and is not here, not even as unreadable, does not
/// exist.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Statuses.
    pub accounts: Vec<(UserId, AccountStatus)>,
    /// Balances.
    pub balances: Vec<(UserId, AssetId, Balance)>,
    /// Transfers.
    pub transfers: Vec<Transfer>,
    /// External operations.
    pub externals: Vec<Decided>,
    /// Holds.
    pub holds: Vec<(HoldKey, Hold)>,
    /// Rows of recharges.
    pub recharges: RechargeRows,
    /// Freezes, smallest units.
    pub freezes: Vec<((UserId, AssetId, u16), u128)>,
    /// Rows that exist and cannot be read, with the reason.
    pub unreadable: Vec<(Key, String)>,
}

/// The key by which a row was wanted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A transfer's name.
    ReqId(ReqId),
    /// A user's idempotency key.
    Cid(UserId, Cid),
    /// An external operation's idempotency key.
    External(String),
    /// An account.
    Account(UserId),
    /// A balance.
    Balance(UserId, AssetId),
    /// A hold.
    Hold(HoldKey),
    /// Rows of recharges.
    Recharge(RechargeKey),
    /// The freeze of a user, asset and purpose.
    Freeze(UserId, AssetId, u16),
}

/// A kind of rows that a flight is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// A transfer is elsewhere, has another outcome on Funding, or is not there.
    Transfers,
    /// An account has another status.
    Accounts,
    /// A balance is another one.
    Balances,
    /// A hold stands elsewhere, or is not there.
    Holds,
    /// A row of recharges stands elsewhere, or a new one is there.
    Recharges,
    /// A freeze has another amount.
    Freezes,
}

/// Why a flight was not committed, or may not have been.
#[derive(Debug)]
pub enum Stopped {
    /// Nothing was written: the shard's last row is not the flight before this one.
    Predecessor,
    /// Nothing was written: this incarnation has written a flight of this number.
    Number,
    /// Nothing was written: another incarnation owns the shard.
    Superseded,
    /// Nothing was written: a name, a cid, an idempotency key or an order number is in use.
    Taken {
        /// Whether it is a name or an order number, which only this process gives.
        ours: bool,
        /// What PostgreSQL answered.
        source: Source,
    },
    /// Nothing was written: PostgreSQL holds other rows than the process.
    Differs(Compared),
    /// Nothing was written: other sessions hold rows of these users or transfers.
    Held {
        /// By account.
        users: Vec<UserId>,
        /// By transfer.
        req_ids: Vec<ReqId>,
        /// What PostgreSQL answered.
        source: Source,
    },
    /// Nothing was written: a row stops it that PostgreSQL does not name, such as a key that
    /// another session inserts, or a page that cannot be read.
    Unnamed(Source),
    /// Nothing was written: other sessions stop it as a whole, for example by a lock on a table.
    Blocked(Source),
    /// Nothing was written: PostgreSQL refuses the contents.
    Refused {
        /// Whether they break a rule of the protocol.
        violation: bool,
        /// What PostgreSQL answered.
        source: Source,
    },
    /// Nothing was written: PostgreSQL cannot be reached, or lacks a resource.
    Unreachable(Source),
    /// It may have been written, or may still be.
    Unknown(Source),
}

/// An error with its causes.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// A shard's last flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    /// See [`Flight::number`].
    pub number: u64,
    /// See [`Flight::attempt`].
    pub attempt: u64,
}

/// Carries flights out, for one shard of one incarnation.
pub trait Journal: Send + 'static {
    /// The shard's last flight; `None` if a later incarnation has written it.
    ///
    /// # Errors
    /// [`Failure`]: not known.
    fn last(&mut self) -> impl Future<Output = Result<Option<Last>, Failure>> + Send;

    /// Commits a flight as one transaction.
    ///
    /// # Errors
    /// [`Stopped`].
    fn fly(&mut self, flight: &Flight) -> impl Future<Output = Result<(), Stopped>> + Send;

    /// Reads rows.
    ///
    /// # Errors
    /// [`Failure`]: nothing was read.
    fn read(&mut self, wanted: &Wanted) -> impl Future<Output = Result<Found, Failure>> + Send;

    /// One page of the transfers that are not terminal.
    ///
    /// # Errors
    /// [`Failure`]: nothing was read.
    fn unfinished(
        &mut self,
        filter: Unfinished,
    ) -> impl Future<Output = Result<Page, Failure>> + Send;
}
