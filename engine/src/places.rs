//! How many rows a ledger holds, and the configuration keys that set these bounds.

/// The most rows that a ledger holds. When a table is full, a command that needs a row changes
/// nothing.
///
/// The one exception is a DEPOSIT that needs a new account or a new balance: it is recorded as
/// refused. Replay takes this refusal from the record, so it does not depend on the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Accounts, and on average [`BALANCES_PER_ACCOUNT`] balances each. Status changes may add a
    /// few more.
    pub accounts_max: usize,
    /// Outcomes, with one place for each refund that may still come.
    pub outcomes_max: usize,
}

/// Balances that the table has room for, per account.
pub const BALANCES_PER_ACCOUNT: usize = 2;

/// The configuration key that bounds accounts and balances.
pub(crate) const ACCOUNTS_MAX: &str = "engine.accounts_max";
/// The configuration key that bounds outcomes.
pub(crate) const OUTCOMES_MAX: &str = "engine.outcomes_max";

/// Accounts above `accounts_max` that only a status change may add: one for 32, at least 64.
/// An operator can so freeze or disable a user without an account when the table is full.
pub(crate) const STATUS_ACCOUNTS_MIN: usize = 64;
const STATUS_ACCOUNTS_PART: usize = 32;

impl Places {
    /// Rows in the table of accounts.
    pub(crate) fn accounts(&self) -> usize {
        self.accounts_max + STATUS_ACCOUNTS_MIN.max(self.accounts_max / STATUS_ACCOUNTS_PART)
    }

    /// Rows in the table of balances.
    pub(crate) fn balances(&self) -> usize {
        self.accounts_max * BALANCES_PER_ACCOUNT
    }
}
