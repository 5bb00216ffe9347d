//! Freezes of purposes in postings by name, case by case.

use super::transactions::{NOW, now, pays};
use super::*;

const RESERVE: Op = Op::Reserve;
const SETTLE: Op = Op::Settle;
const RELEASE: Op = Op::Release;

fn dispute(user: u64) -> Place {
    Place::Frozen { user, purpose: 1 }
}

fn freezes(user: u64, amount: u64) -> Leg {
    leg(available(user), dispute(user), USD, amount)
}

fn unfreezes(user: u64, amount: u64) -> Leg {
    leg(dispute(user), available(user), USD, amount)
}

impl Market {
    /// The purposes of a user with their amounts.
    fn frozen(&self, user: u64) -> Vec<(u16, u128)> {
        let rows = self.ledger.held_of(user, USD, 256);
        let freezes = rows.iter().filter(|row| row.transaction == 0);
        freezes.map(|row| (row.purpose, row.amount)).collect()
    }

    fn usd_of(&self, user: u64) -> (u128, u128) {
        self.balance(user, USD)
    }

    /// A transaction of one round, booked.
    fn booked(&mut self, transaction: u128, legs: &[Leg]) {
        assert_eq!(self.name(RESERVE, transaction, 1, legs), NOW, "{legs:?}");
        assert_eq!(self.name(SETTLE, transaction, 1, legs), NOW, "{legs:?}");
    }

    /// The log alone leads to the same state.
    fn assert_replayed(&self) {
        let replayed = self.replayed(PLACES).expect("a log");
        assert_eq!(replayed.digest(), self.ledger.digest());
    }
}

/// HLD-009: freezes of a purpose are one amount, unfrozen no further than it, with any other
/// purpose beside it. Money apart out of a freeze is no longer in it, and stays held.
#[test]
fn a_freeze_is_set_apart_booked_and_given_back() {
    let mut market = Market::new(PLACES);
    market.booked(1, &[freezes(1, 30)]);
    market.booked(
        2,
        &[freezes(1, 15), leg(available(1), Place::Frozen { user: 1, purpose: 2 }, USD, 50)],
    );
    assert_eq!((market.frozen(1), market.usd_of(1)), (vec![(1, 45), (2, 50)], (905, 95)));
    assert_eq!(market.name(RESERVE, 3, 1, &[unfreezes(1, 46)]), now(Code::InsufficientFrozen, 0));
    assert_eq!(market.name(RESERVE, 4, 1, &[unfreezes(1, 45)]), NOW);
    assert_eq!((market.frozen(1), market.usd_of(1)), (vec![(2, 50)], (905, 95)));
    assert_eq!(market.name(RESERVE, 5, 1, &[unfreezes(1, 1)]), now(Code::InsufficientFrozen, 0));
    assert_eq!(market.name(RELEASE, 4, 1, &[]), NOW);
    assert_eq!((market.frozen(1), market.usd_of(1)), (vec![(2, 50), (1, 45)], (905, 95)));
    // A status does not count where money is unfrozen for its owner.
    market.status(1, AccountStatus::Disabled);
    let away = leg(dispute(1), available(2), USD, 1);
    assert_eq!(market.name(RESERVE, 6, 1, &[away]), now(Code::AccountDisabled, 0));
    market.booked(7, &[unfreezes(1, 45)]);
    assert_eq!((market.frozen(1), market.usd_of(1)), (vec![(2, 50)], (950, 50)));
    let between = leg(dispute(2), Place::Frozen { user: 2, purpose: 2 }, USD, 1);
    assert_eq!(market.name(RESERVE, 8, 1, &[between]), now(Code::InvalidPosting, 0));
    market.assert_replayed();
}

/// GTX-012. Goal: arriving money is frozen, and frozen and arriving money is unfrozen, to the unit,
/// in one round and in several.
#[test]
fn what_arrives_is_frozen_and_unfrozen_to_the_unit() {
    let mut market = Market::new(PLACES);
    market.booked(1, &[freezes(2, 20)]);
    // User 2 has 980 of its own and 20 frozen; 100 arrive.
    let legs = |amount| [pays(1, 2, 100), freezes(2, 1_080), unfreezes(2, amount)];
    assert_eq!(market.name(RESERVE, 2, 1, &legs(1_101)), now(Code::InsufficientFrozen, 2));
    let more = [pays(1, 2, 100), freezes(2, 1_081)];
    assert_eq!(market.name(RESERVE, 3, 1, &more), now(Code::InsufficientBalance, 1));
    for round in 1..=3_u8 {
        let legs = &legs(1_100)[..usize::from(round)];
        assert_eq!(market.name(RESERVE, 4, round, legs), NOW);
    }
    assert_eq!((market.frozen(2), market.usd_of(2)), (vec![], (0, 1_000)));
    assert_eq!(market.name(SETTLE, 4, 3, &legs(1_100)), NOW);
    assert_eq!((market.frozen(2), market.usd_of(2)), (vec![], (1_100, 0)));
    // Money that arrives in a freeze goes on from there.
    market
        .booked(5, &[leg(available(2), dispute(3), USD, 7), leg(dispute(3), available(1), USD, 7)]);
    assert_eq!((market.frozen(3), market.usd_of(1)), (vec![], (907, 0)));
    market.assert_replayed();
}

/// L13. Goal: a RESERVE keeps a place for each freeze that its legs make, and the freeze that it
/// empties can come back.
#[test]
fn a_reserve_keeps_the_places_of_its_freezes() {
    let venues = VenuePlaces { holds_max: 3, ..PLACES.venues };
    let mut market = Market::new(Places { venues, ..PLACES });
    market.booked(1, &[freezes(1, 10)]);
    assert_eq!(market.ledger.holds_left(), 2);
    // One row for the hold of user 2, and a kept one for the freeze of user 3.
    let legs = [leg(available(2), dispute(3), USD, 5)];
    assert_eq!(market.name(RESERVE, 2, 1, &legs), NOW);
    assert_eq!(market.ledger.holds_left(), 0);
    assert_eq!(market.send(1, &reserve(1, USD, 1)), refused(Code::Overloaded, 0));
    // The freeze of user 1 becomes a hold and comes back, in the one place that it has.
    assert_eq!(market.name(RESERVE, 3, 1, &[unfreezes(1, 10)]), NOW);
    assert_eq!(market.name(RELEASE, 3, 1, &[]), NOW);
    assert_eq!(market.name(SETTLE, 2, 1, &legs), NOW);
    assert_eq!((market.frozen(1), market.frozen(3)), (vec![(1, 10)], vec![(1, 5)]));
    assert_eq!(market.ledger.holds_left(), 1);
}
