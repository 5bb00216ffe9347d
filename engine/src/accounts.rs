//! The Spot accounts and their balances, as the rows that [`super::ledger`] holds.

use domain::account::AccountStatus;

use super::fact::{Fact, Totals};
use super::table::Row;

/// There is room for so many balances an account, on average.
pub const BALANCES_PER_ACCOUNT: usize = 2;

/// A user has a Spot account.
#[derive(Clone, Copy)]
pub(super) struct Account {
    pub(super) user: u64,
    pub(super) status: AccountStatus,
}

impl Row for Account {
    type Key = u64;

    fn key(&self) -> u64 {
        self.user
    }
}

impl Account {
    pub(super) fn fact(&self) -> Fact {
        Fact::Account { user: self.user, status: self.status }
    }
}

/// A user has had money on Spot.
#[derive(Clone, Copy)]
pub(super) struct Balance {
    pub(super) totals: Totals,
    pub(super) user: u64,
    pub(super) asset: u32,
}

const _: () = assert!(size_of::<Balance>() == 64);

impl Row for Balance {
    type Key = (u64, u32);

    fn key(&self) -> (u64, u32) {
        (self.user, self.asset)
    }
}

impl Balance {
    /// Smallest units.
    pub(super) fn available(&self) -> u128 {
        let available = self.totals.available();
        available.unwrap_or_else(|| panic!("more withdrawn than there was: {:?}", self.totals))
    }

    pub(super) fn fact(&self) -> Fact {
        let Balance { totals, user, asset } = *self;
        Fact::Balance { user, asset, available: self.available(), totals }
    }
}
