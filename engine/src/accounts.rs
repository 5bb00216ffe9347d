//! The rows of the Spot accounts and balances in [`crate::ledger`].

use domain::account::AccountStatus;

use crate::fact::Fact;
use crate::holds::Chain;
use crate::table::{Misfit, Row, Table};
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
    /// The position of its [`Sums`] plus one; 0 for a balance that no posting has named. So the
    /// balance of a user without trades stays in one cache line.
    pub(crate) sums: u32,
}

const _: () = assert!(size_of::<Balance>() == 64);

impl Row for Balance {
    type Key = (u64, u32);

    fn key(&self) -> (u64, u32) {
        (self.user, self.asset)
    }
}

/// The sums of a balance that postings have named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// All holds and freezes, smallest units.
    pub(crate) held: u128,
    /// All that postings have brought less all that they have taken, smallest units.
    pub(crate) traded: i128,
    /// The holds and freezes of this balance.
    pub(crate) holds: Chain,
}

impl Sums {
    /// The balance with these totals, holds and freezes included, smallest units; `None` if it is
    /// below 0 or below the held amount.
    pub(crate) fn owned(&self, totals: &Totals) -> Option<u128> {
        // Withdrawals may exceed deposits: trades have brought the rest.
        let entered = totals.deposits.checked_add(totals.refunds)?;
        let owned = entered.checked_add_signed(self.traded)?.checked_sub(totals.withdrawals)?;
        (owned >= self.held).then_some(owned)
    }
}

/// All balances, with the sums of those that postings have named.
pub(crate) struct Balances {
    table: Table<Balance>,
    /// As many as balances have room: none is removed.
    sums: Vec<Sums>,
}

impl Balances {
    pub(crate) fn new(places: usize, sums_max: usize) -> Balances {
        Balances { table: Table::new(places), sums: Vec::with_capacity(sums_max) }
    }

    pub(crate) fn prefault(&mut self) {
        self.table.prefault();
    }

    pub(crate) fn prefault_sums(&mut self) {
        let (used, places) = (self.sums.len(), self.sums.capacity());
        self.sums.resize(places, Sums::default());
        self.sums.truncate(used);
    }

    /// Whether there are places for the sums of postings.
    pub(crate) fn has_sums(&self) -> bool {
        self.sums.capacity() > 0
    }

    /// Whether a posting has named a balance.
    pub(crate) fn are_traded(&self) -> bool {
        !self.sums.is_empty()
    }

    pub(crate) fn rows(&self) -> &[Balance] {
        self.table.rows()
    }

    pub(crate) fn places_left(&self) -> usize {
        self.table.places_left()
    }

    #[inline]
    pub(crate) fn expect_slot(&self, user: u64, asset: u32) {
        self.table.expect_slot((user, asset));
    }

    #[inline]
    pub(crate) fn expect_row(&self, user: u64, asset: u32) {
        self.table.expect_row((user, asset));
    }

    #[inline]
    pub(crate) fn get(&self, user: u64, asset: u32) -> Option<&Balance> {
        self.table.get((user, asset))
    }

    /// Adds a balance with its sums, for a restore.
    pub(crate) fn restore(&mut self, balance: Balance, sums: Sums) -> Result<(), Misfit> {
        let position = self.sums.len() + 1;
        if sums == Sums::default() {
            return self.table.try_insert(balance);
        }
        let position = u32::try_from(position).expect("as many as balances");
        self.table.try_insert(Balance { sums: position, ..balance })?;
        self.sums.push(sums);
        Ok(())
    }

    /// The sums of a balance; zeros if no posting has named it.
    #[inline]
    pub(crate) fn sums(&self, balance: &Balance) -> Sums {
        match usize::try_from(balance.sums).expect("32 bits fit").checked_sub(1) {
            None => Sums::default(),
            Some(position) => self.sums[position],
        }
    }

    /// The sums at a position, see [`Balances::sums_of`].
    pub(crate) fn sums_mut(&mut self, position: u32) -> &mut Sums {
        &mut self.sums[usize::try_from(position).expect("32 bits fit") - 1]
    }

    /// The position of the sums of a balance. Both are made if they are absent.
    ///
    /// Returns also the balance's fact before, `None` if it was made.
    pub(crate) fn sums_of(&mut self, user: u64, asset: u32) -> (u32, Option<Fact>) {
        let before = self.get(user, asset).map(|balance| self.fact(balance));
        if before.is_none() {
            self.table.insert(Balance { totals: Totals::default(), user, asset, sums: 0 });
        }
        let balance = self.table.get_mut((user, asset)).expect("it is there now");
        if balance.sums == 0 {
            self.sums.push(Sums::default());
            balance.sums = u32::try_from(self.sums.len()).expect("as many as balances");
        }
        (balance.sums, before)
    }

    /// Replaces the totals of a balance, made if absent. Returns the facts before and after.
    #[inline]
    pub(crate) fn set_totals(
        &mut self,
        user: u64,
        asset: u32,
        totals: impl FnOnce(Totals) -> Totals,
    ) -> (Option<Fact>, Fact) {
        // One search for the row: beside that for the outcome it is the largest cost of an order.
        let Balances { table, sums } = self;
        let Some(balance) = table.get_mut((user, asset)) else {
            let made = Balance { totals: totals(Totals::default()), user, asset, sums: 0 };
            table.insert(made);
            return (None, fact_of(&made, &Sums::default()));
        };
        let after = Balance { totals: totals(balance.totals), ..*balance };
        let facts = |sums: &Sums| (Some(fact_of(balance, sums)), fact_of(&after, sums));
        let facts = match usize::try_from(balance.sums).expect("32 bits fit").checked_sub(1) {
            // Apart, so that the compiler knows the zeros.
            None => facts(&Sums::default()),
            Some(position) => facts(&sums[position]),
        };
        *balance = after;
        facts
    }

    /// Smallest units, holds and freezes included.
    #[inline]
    pub(crate) fn owned(&self, balance: &Balance) -> u128 {
        self.owned_and_held(balance).0
    }

    /// Smallest units, without holds and freezes.
    #[inline]
    pub(crate) fn available(&self, balance: &Balance) -> u128 {
        let (owned, held) = self.owned_and_held(balance);
        owned - held
    }

    /// The balance with its holds and freezes, and these alone, smallest units.
    #[inline]
    pub(crate) fn owned_and_held(&self, balance: &Balance) -> (u128, u128) {
        match usize::try_from(balance.sums).expect("32 bits fit").checked_sub(1) {
            // Apart, so that the compiler knows the zeros.
            None => (owned_of(balance, &Sums::default()), 0),
            Some(position) => {
                let sums = &self.sums[position];
                (owned_of(balance, sums), sums.held)
            }
        }
    }

    pub(crate) fn fact(&self, balance: &Balance) -> Fact {
        fact_of(balance, &self.sums(balance))
    }
}

#[inline]
fn owned_of(balance: &Balance, sums: &Sums) -> u128 {
    let owned = sums.owned(&balance.totals);
    owned.unwrap_or_else(|| panic!("below 0: {:?} {sums:?}", balance.totals))
}

#[inline]
fn fact_of(balance: &Balance, sums: &Sums) -> Fact {
    let Balance { totals, user, asset, .. } = *balance;
    let Sums { held, traded, .. } = *sums;
    let available = owned_of(balance, sums) - held;
    Fact::Balance { user, asset, available, held, traded, totals }
}
