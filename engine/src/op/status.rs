//! The status of a Spot account. [`Ledger::set_status`] carries it out.

use domain::account::{AccountStatus, UserId};

use crate::entry::Entry;
use crate::ledger::{Answer, Ledger, Step};
use crate::places::ACCOUNTS_MAX;

/// Decides a change of status.
pub(super) fn step(ledger: &Ledger, user: u64, status: AccountStatus) -> Step {
    match UserId::new(user) {
        None => Step::Violation("no such user"),
        Some(_) if ledger.status(user) == Some(status) => Step::Known(Answer::Done),
        Some(_) if lacks_place(ledger, user, status) => Step::Full(ACCOUNTS_MAX),
        Some(_) => Step::Append(Entry::AccountStatus { user, status }),
    }
}

/// Whether the account of a new status cannot be made. A status that stops a user has places of
/// its own.
fn lacks_place(ledger: &Ledger, user: u64, status: AccountStatus) -> bool {
    match status {
        AccountStatus::Active => ledger.lacks_account(user),
        AccountStatus::Frozen | AccountStatus::Disabled => {
            // Those of the payees of open transactions stay free.
            ledger.accounts.places_left() <= ledger.outcomes.kept_accounts()
                && ledger.accounts.get(user).is_none()
        }
    }
}
