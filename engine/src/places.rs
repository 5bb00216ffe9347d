//! How many rows a ledger holds, and the configuration keys that set these bounds.

/// The most rows that a ledger holds. When a table is full, a command that needs a row changes
/// nothing.
///
/// The exceptions are a DEPOSIT that needs a new account or a new balance, and a posting by number:
/// they are recorded as refused. Replay takes these refusals from the record, so it does not depend
/// on the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Accounts, and on average [`BALANCES_PER_ACCOUNT`] balances each. Status changes may add a
    /// few more.
    pub accounts_max: usize,
    /// Outcomes, with one place for each refund that may still come.
    pub outcomes_max: usize,
    /// The places of venues.
    pub venues: VenuePlaces,
}

/// The most rows that venues may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VenuePlaces {
    /// Holds and freezes. When they are full, a RESERVE is recorded as refused; an end never is.
    pub holds_max: usize,
    /// Venues.
    pub venues_max: usize,
    /// Answers of one venue without an acknowledgement. At this number its commands wait.
    pub window: usize,
}

impl VenuePlaces {
    /// No venue.
    pub const NONE: VenuePlaces = VenuePlaces { holds_max: 0, venues_max: 0, window: 0 };
}

/// Balances that the table has room for, per account.
pub const BALANCES_PER_ACCOUNT: usize = 2;

/// The configuration key that bounds accounts and balances.
pub(crate) const ACCOUNTS_MAX: &str = "engine.accounts_max";
/// The configuration key that bounds outcomes.
pub(crate) const OUTCOMES_MAX: &str = "engine.outcomes_max";
/// The configuration key that bounds holds and freezes.
pub(crate) const HOLDS_MAX: &str = "engine.holds_max";
/// The configuration key that bounds venues.
pub(crate) const VENUES_MAX: &str = "engine.venues_max";

/// Accounts above `accounts_max` that only a status change may add: one for 32, at least 64.
/// An operator can so freeze or disable a user without an account when the table is full.
pub(crate) const STATUS_ACCOUNTS_MIN: usize = 64;
const STATUS_ACCOUNTS_PART: usize = 32;

impl Places {
    /// Rows in the table of accounts.
    pub(crate) fn accounts(&self) -> usize {
        self.accounts_max + STATUS_ACCOUNTS_MIN.max(self.accounts_max / STATUS_ACCOUNTS_PART)
    }

    /// Places without any venue.
    pub const fn of_transfers(accounts_max: usize, outcomes_max: usize) -> Places {
        Places { accounts_max, outcomes_max, venues: VenuePlaces::NONE }
    }

    /// Balances with sums of postings: all, if there may be a venue.
    pub(crate) fn sums(&self) -> usize {
        if self.venues == VenuePlaces::NONE { 0 } else { self.balances() }
    }

    /// Rows in the table of balances.
    pub(crate) fn balances(&self) -> usize {
        self.accounts_max * BALANCES_PER_ACCOUNT
    }
}
