//! The rows of the Spot accounts and balances in [`crate::ledger`].

use domain::account::AccountStatus;

use crate::fact::Fact;
use crate::table::Row;
use crate::totals::Totals;

/// A Spot account.
#[derive(Clone, Copy)]
pub(crate) struct Account {
    pub(crate) user: u64,
    pub(crate) status: AccountStatus,
}

impl Row for Account {
    type Key = u64;

    fn key(&self) -> u64 {
        self.user
    }
}

impl Account {
    pub(crate) fn fact(&self) -> Fact {
        Fact::Account { user: self.user, status: self.status }
    }
}

/// A Spot balance that has had at least one operation.
#[derive(Clone, Copy)]
pub(crate) struct Balance {
    pub(crate) totals: Totals,
    pub(crate) user: u64,
    pub(crate) asset: u32,
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
    pub(crate) fn available(&self) -> u128 {
        let available = self.totals.available();
        available.unwrap_or_else(|| panic!("withdrawals exceed deposits: {:?}", self.totals))
    }

    pub(crate) fn fact(&self) -> Fact {
        let Balance { totals, user, asset } = *self;
        Fact::Balance { user, asset, available: self.available(), totals }
    }
}
