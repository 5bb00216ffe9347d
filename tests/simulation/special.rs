//! Special accounts in a run: an operator makes one special and ends that, while callers book it.

use std::sync::Arc;

use domain::account::{AccountStatus, UserId};
use domain::asset::AssetId;
use domain::transfer::Participant;
use ubscore::transaction::{LegPlace, Party, TransactionLeg, TransactionRow};

use super::chance::Chance;
use super::law::Law;
use super::postgres::Postgres;
use super::world::{ASSET, Bug, World};

/// The user with a balance on Funding that is special at times. Clients do not use it.
pub(super) const SPECIAL: u64 = 9;
/// Changes by the operator in one run.
const CHANGES: u64 = 24;

/// The user and the asset of a special place.
pub(super) fn special_place(place: LegPlace, asset: AssetId) -> Option<(u64, u32)> {
    match place {
        LegPlace::Special { user } => Some((user.number(), asset.0)),
        LegPlace::Available { .. } | LegPlace::Frozen { .. } | LegPlace::Outside => None,
    }
}

/// The special places of legs.
pub(super) fn special_places<'a>(
    legs: impl IntoIterator<Item = &'a TransactionLeg>,
) -> Vec<(u64, u32)> {
    let both = |leg: &TransactionLeg| [leg.from, leg.to].map(|place| (place, leg.asset));
    let places = legs.into_iter().flat_map(both);
    places.filter_map(|(place, asset)| special_place(place, asset)).collect()
}

/// The legs of Funding in all rounds.
pub(super) fn funding_legs(row: &TransactionRow) -> impl Iterator<Item = &TransactionLeg> {
    let funding = Party::Store(Participant::Funding);
    let of_funding = row.branches.iter().filter(move |branch| branch.party == funding);
    of_funding.flat_map(|branch| &branch.legs)
}

/// Whether no available balance of Funding is special in one of these legs and not in others.
pub(super) fn agrees<'a>(legs: impl Iterator<Item = &'a TransactionLeg> + Clone) -> bool {
    let special = special_places(legs.clone());
    let plain = |place: LegPlace, asset: AssetId| match place {
        LegPlace::Available { store: Participant::Funding, user } => {
            special.contains(&(user.number(), asset.0))
        }
        _ => false,
    };
    let mut legs = legs;
    !legs.any(|leg| plain(leg.from, leg.asset) || plain(leg.to, leg.asset))
}

impl Postgres {
    /// `special_set`. Returns its word.
    pub(super) fn special_set(&mut self, user: u64, asset: u32, law: &mut Law) -> &'static str {
        if self.accounts.get(&user).is_none() {
            return "unknown";
        }
        if self.special.contains(&(user, asset)) {
            return "same";
        }
        self.make_special(user, asset, law);
        "changed"
    }

    /// `special_unset`. Returns its word.
    pub(super) fn special_unset(
        &mut self,
        user: u64,
        asset: u32,
        law: &mut Law,
        bug: Option<Bug>,
    ) -> &'static str {
        let key = (user, asset);
        if !self.special.contains(&key) {
            return "same";
        }
        if self.balances.get(&key).is_some_and(|(available, _)| *available < 0) {
            return "negative";
        }
        let names = |row: &TransactionRow| {
            !row.state.is_terminal() && special_places(funding_legs(row)).contains(&key)
        };
        if bug != Some(Bug::SpecialUnsetNamed) && self.transacted.all().any(names) {
            return "named";
        }
        self.special.remove(&key);
        law.special_ended(key);
        "changed"
    }
}

impl World {
    /// The account of the special user.
    pub(super) fn open_special(&self) {
        self.postgres.lock().open_account(SPECIAL, AccountStatus::Active);
    }

    /// The operator: makes the account special, and ends that.
    pub(super) async fn keep_special(self: Arc<World>, mut chance: Chance) {
        for number in 0..CHANGES {
            let set = number == 0 || chance.one_in(2);
            {
                let mut postgres = self.postgres.lock();
                if postgres.up {
                    let (law, bug) = (&mut *self.law.lock(), self.plan.bug);
                    let word = match set {
                        true => postgres.special_set(SPECIAL, ASSET.0, law),
                        false => postgres.special_unset(SPECIAL, ASSET.0, law, bug),
                    };
                    self.trace(format_args!("special {set}: {word}"));
                }
            }
            self.time.sleep(chance.micros(1_000, 120_000)).await;
        }
    }

    /// Whether the process takes a balance of Funding for special. Its knowledge is old at times.
    pub(super) fn knows_special(&self, user: UserId, asset: AssetId) -> bool {
        let is = self.postgres.lock().special.contains(&(user.number(), asset.0));
        is != (user.number() == SPECIAL && self.chance().one_in(10))
    }
}
