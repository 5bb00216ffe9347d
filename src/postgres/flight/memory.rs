//! Accounts and balances of the users at work, as PostgreSQL holds them.

use std::collections::HashMap;

use super::{Balance, Flight, Found, Key, Wanted};
use crate::recharge::RechargeId;
use domain::account::{AccountStatus, UserId};
use domain::asset::AssetId;

/// Orders of recharges in one generation. It covers the seconds between a look at an order and the
/// flight that rests on it. An older order costs a flight that PostgreSQL refuses.
const ORDERS_MAX: usize = 8192;

/// A user's Funding. Each part is known, or has not been read: `None`.
#[derive(Clone, Debug, Default)]
struct Held {
    account: Option<Option<AccountStatus>>,
    balances: Vec<(AssetId, Option<Balance>)>,
}

/// What this process knows of Funding, for a bounded number of users.
///
/// It changes only with a commit. Two generations bound it: a used entry is in the young one, and
/// when that one is half of the bound, it becomes the old one and the older entries are dropped.
#[derive(Debug)]
pub struct Memory {
    young: HashMap<UserId, Held>,
    old: HashMap<UserId, Held>,
    users_max: usize,
    /// The last version of each order that a flight has written lately, young and old.
    orders: [HashMap<RechargeId, u64>; 2],
}

impl Memory {
    /// An empty memory for at most `users_max` users.
    pub fn new(users_max: usize) -> Memory {
        assert!(users_max >= 2, "two generations");
        Memory { young: HashMap::new(), old: HashMap::new(), users_max, orders: Default::default() }
    }

    fn held(&self, user: UserId) -> Option<&Held> {
        self.young.get(&user).or_else(|| self.old.get(&user))
    }

    /// The account's status, `Some(None)` if there is no account, `None` if it was not read.
    pub fn account(&self, user: UserId) -> Option<Option<AccountStatus>> {
        self.held(user)?.account
    }

    /// The balance, `Some(None)` if there is no row, `None` if it was not read.
    pub fn balance(&self, user: UserId, asset: AssetId) -> Option<Option<Balance>> {
        let balances = &self.held(user)?.balances;
        balances.iter().find(|(held, _)| *held == asset).map(|(_, balance)| *balance)
    }

    /// The version of an order behind the last flight that has written it; `None`: none has lately.
    pub fn order_version(&self, id: RechargeId) -> Option<u64> {
        self.orders.iter().find_map(|orders| orders.get(&id)).copied()
    }

    fn entry(&mut self, user: UserId) -> &mut Held {
        let old = self.old.remove(&user);
        self.young.entry(user).or_insert_with(|| old.unwrap_or_default())
    }

    fn set_balance(&mut self, user: UserId, asset: AssetId, balance: Option<Balance>) {
        let balances = &mut self.entry(user).balances;
        match balances.iter_mut().find(|(held, _)| *held == asset) {
            Some((_, held)) => *held = balance,
            None => balances.push((asset, balance)),
        }
    }

    /// Learns rows. A wanted row that was not found does not exist. A row that cannot be read stays
    /// unknown, so that the next batch sees when it is corrected.
    pub fn learn(&mut self, wanted: &Wanted, found: &Found) {
        let unreadable = |key: Key| found.unreadable.iter().any(|(bad, _)| *bad == key);
        for user in wanted.accounts.iter().filter(|user| !unreadable(Key::Account(**user))) {
            self.entry(*user).account = Some(None);
        }
        for &(user, asset) in &wanted.balances {
            if !unreadable(Key::Balance(user, asset)) {
                self.set_balance(user, asset, None);
            }
        }
        for (user, status) in &found.accounts {
            self.entry(*user).account = Some(Some(*status));
        }
        for (user, asset, balance) in &found.balances {
            self.set_balance(*user, *asset, Some(*balance));
        }
    }

    /// Follows a flight that is committed.
    pub fn advance(&mut self, flight: &Flight) {
        for row in &flight.accounts {
            self.entry(row.user).account = Some(row.after);
        }
        for row in &flight.balances {
            self.set_balance(row.user, row.asset, row.after.or(row.before));
        }
        for (order, _) in &flight.recharged.orders {
            self.orders[0].insert(order.id, order.version);
        }
        if self.orders[0].len() > ORDERS_MAX {
            self.orders[1] = std::mem::take(&mut self.orders[0]);
        }
        // Between two flights, when no decision rests on an entry.
        if self.young.len() > self.users_max / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }

    /// Forgets the users of a flight, because PostgreSQL holds other rows.
    pub fn forget(&mut self, flight: &Flight) {
        let accounts = flight.accounts.iter().map(|row| row.user);
        for user in accounts.chain(flight.balances.iter().map(|row| row.user)) {
            self.young.remove(&user);
            self.old.remove(&user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::flight::{AccountRow, BalanceRow};

    const ASSET: AssetId = AssetId(3);

    fn user(number: u64) -> UserId {
        UserId::new(number).expect("not zero")
    }

    /// A flight that rests on one user's account.
    fn flight(number: u64) -> Flight {
        let status = Some(AccountStatus::Active);
        let account = AccountRow { user: user(number), before: status, after: status };
        Flight { accounts: vec![account], ..Flight::default() }
    }

    #[test]
    fn a_wanted_row_that_was_not_found_is_known_to_be_absent() {
        let mut memory = Memory::new(4);
        assert_eq!(memory.account(user(1)), None);
        let wanted = Wanted {
            accounts: vec![user(1), user(2)],
            balances: vec![(user(1), ASSET)],
            ..Wanted::default()
        };
        let found = Found { accounts: vec![(user(2), AccountStatus::Frozen)], ..Found::default() };
        memory.learn(&wanted, &found);
        assert_eq!(memory.account(user(1)), Some(None));
        assert_eq!(memory.account(user(2)), Some(Some(AccountStatus::Frozen)));
        assert_eq!(memory.balance(user(1), ASSET), Some(None));
        assert_eq!(memory.balance(user(2), ASSET), None);
    }

    #[test]
    fn a_row_that_cannot_be_read_is_not_known() {
        let mut memory = Memory::new(4);
        let accounts = vec![user(1), user(2)];
        let balances = vec![(user(1), ASSET), (user(2), ASSET)];
        let wanted = Wanted { accounts, balances, ..Wanted::default() };
        let bad = [Key::Account(user(1)), Key::Balance(user(2), ASSET)];
        let unreadable = bad.map(|key| (key, "status 9".to_owned())).into();
        memory.learn(&wanted, &Found { unreadable, ..Found::default() });
        assert_eq!((memory.account(user(1)), memory.account(user(2))), (None, Some(None)));
        let balance = |number| memory.balance(user(number), ASSET);
        assert_eq!((balance(1), balance(2)), (Some(None), None));
    }

    #[test]
    fn a_balance_follows_a_flight_and_is_forgotten_with_it() {
        let mut memory = Memory::new(4);
        let before = Balance { available: 7, frozen: 0, version: 1 };
        let after = Balance { available: 9, frozen: 0, version: 2 };
        let row = |after| BalanceRow { user: user(1), asset: ASSET, before: Some(before), after };
        let rested = Flight { balances: vec![row(None)], ..Flight::default() };
        memory.advance(&rested);
        assert_eq!(memory.balance(user(1), ASSET), Some(Some(before)));
        let paid = Flight { balances: vec![row(Some(after))], ..Flight::default() };
        memory.advance(&paid);
        assert_eq!(memory.balance(user(1), ASSET), Some(Some(after)));
        memory.forget(&paid);
        assert_eq!(memory.balance(user(1), ASSET), None);
    }

    #[test]
    fn used_users_stay_and_the_others_go() {
        let mut memory = Memory::new(8);
        for number in 1..=100 {
            memory.advance(&flight(number));
            memory.advance(&flight(1));
            assert!(memory.young.len() + memory.old.len() <= 10, "at {number}");
            assert_eq!(memory.account(user(1)), Some(Some(AccountStatus::Active)));
        }
        assert_eq!(memory.account(user(2)), None);
    }
}
