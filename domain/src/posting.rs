//! A posting: up to [`LEGS_MAX`] legs that are booked together or not at all. A leg moves an amount
//! of one asset from one place to another, so a posting cannot make or lose money.
//!
//! [`Breakdown`] is the one calculation for any posting: per place the amount that must be there
//! before the posting, and the amount that the posting leaves there. For each asset over all legs:
//!
//! ```text
//! all that is set apart + all that enters from outside
//!     = all that arrives + all that leaves to the outside
//! ```

use arrayvec::ArrayVec;

/// The most legs of a posting: a trade has six, and a record of the log holds so many. A request
/// with more is [`Code::InvalidPosting`](crate::code::Code::InvalidPosting).
pub const LEGS_MAX: usize = 16;
/// The amount of a leg that takes all that the legs before it have left in a hold.
pub const ALL: u64 = u64::MAX;
/// The most places of a posting: each leg has two.
pub const PLACES_MAX: usize = 2 * LEGS_MAX;

/// A place where money stands. Numbers are not checked here: every layer checks them itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Outside of the store. For Spot it is Funding.
    Outside,
    /// The available balance of a user.
    Available(u64),
    /// The amount of a user that is frozen for one purpose.
    Frozen {
        /// The user.
        user: u64,
        /// The purpose, 1..=65535.
        purpose: u16,
    },
    /// A hold of the venue that sends the posting, by number. In a RESERVE, 0 is the hold that the
    /// command makes.
    Hold(u64),
}

/// A kind of [`Place`]. The log and the stream hold its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PlaceKind {
    /// [`Place::Outside`].
    Outside = 0,
    /// [`Place::Available`].
    Available = 1,
    /// [`Place::Frozen`].
    Frozen = 2,
    /// [`Place::Hold`].
    Hold = 3,
}

impl Place {
    /// The kind of this place.
    #[inline]
    pub const fn kind(self) -> PlaceKind {
        match self {
            Place::Outside => PlaceKind::Outside,
            Place::Available(_) => PlaceKind::Available,
            Place::Frozen { .. } => PlaceKind::Frozen,
            Place::Hold(_) => PlaceKind::Hold,
        }
    }

    /// The user of an available or frozen amount; `None` for the outside and for a hold.
    #[inline]
    pub const fn user(self) -> Option<u64> {
        match self {
            Place::Available(user) | Place::Frozen { user, .. } => Some(user),
            Place::Outside | Place::Hold(_) => None,
        }
    }
}

/// One movement of a posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// The place that pays.
    pub from: Place,
    /// The place that is paid.
    pub to: Place,
    /// The asset's number.
    pub asset: u32,
    /// Smallest units; [`ALL`] from a hold takes all that the legs before it have left.
    pub amount: u64,
}

/// The legs of one posting, in order. Judge and log accept 1..=[`LEGS_MAX`] of them.
pub type Posting = ArrayVec<Leg, LEGS_MAX>;

/// The share of one place and asset in a posting, smallest units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The place.
    pub place: Place,
    /// The asset's number.
    pub asset: u32,
    /// The amount that must be there before the posting.
    pub apart: u128,
    /// The amount that the posting brings and leaves there.
    pub arriving: u128,
}

/// The parts of all places of a posting, in the order in which its legs name them.
#[derive(Clone, Debug, Default)]
pub struct Breakdown {
    parts: ArrayVec<Part, PLACES_MAX>,
}

impl Breakdown {
    /// Adds the legs of a posting one after the other.
    ///
    /// `counts` is false for a special place. Such a place and the outside have no part.
    pub fn of(legs: &[Leg], counts: impl Fn(Place) -> bool) -> Breakdown {
        let mut parts = Breakdown::default();
        for leg in legs {
            parts.take(leg.from, leg.asset, leg.amount.into(), &counts);
            parts.bring(leg.to, leg.asset, leg.amount.into(), &counts);
        }
        parts
    }

    /// An amount leaves a place: first from the amount that has arrived there. The rest is set
    /// apart.
    ///
    /// Returns all that is set apart at this place so far, 0 for a place without a part.
    #[inline]
    pub fn take(
        &mut self,
        place: Place,
        asset: u32,
        amount: u128,
        counts: impl Fn(Place) -> bool,
    ) -> u128 {
        let Some(part) = self.part(place, asset, counts) else { return 0 };
        let arrived = part.arriving.min(amount);
        part.arriving -= arrived;
        part.apart += amount - arrived;
        part.apart
    }

    /// An amount arrives at a place.
    #[inline]
    pub fn bring(
        &mut self,
        place: Place,
        asset: u32,
        amount: u128,
        counts: impl Fn(Place) -> bool,
    ) {
        if let Some(part) = self.part(place, asset, counts) {
            part.arriving += amount;
        }
    }

    /// The part of a place so far; an empty one if no leg has named it.
    #[inline]
    pub fn at(&self, place: Place, asset: u32) -> Part {
        let found = self.parts.iter().find(|part| (part.place, part.asset) == (place, asset));
        found.copied().unwrap_or(Part { place, asset, apart: 0, arriving: 0 })
    }

    /// All parts.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter()
    }

    /// The part of a place, made if absent; `None` for the outside and for a special place.
    #[inline]
    fn part(
        &mut self,
        place: Place,
        asset: u32,
        counts: impl Fn(Place) -> bool,
    ) -> Option<&mut Part> {
        if place == Place::Outside || !counts(place) {
            return None;
        }
        let known = self.parts.iter().position(|part| (part.place, part.asset) == (place, asset));
        let index = known.unwrap_or_else(|| {
            self.parts.push(Part { place, asset, apart: 0, arriving: 0 });
            self.parts.len() - 1
        });
        self.parts.get_mut(index)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const ASSET: u32 = 3;

    fn leg(from: Place, to: Place, amount: u64) -> Leg {
        Leg { from, to, asset: ASSET, amount }
    }

    /// MLT-002: A pays B 100, B pays C 50, C pays D 200. After each leg the parts are those of the
    /// specification's table.
    #[test]
    fn what_is_apart_and_arriving_is_the_table_of_the_specification() {
        let [a, b, c, d] = [1, 2, 3, 4].map(Place::Available);
        let legs = [leg(a, b, 100), leg(b, c, 50), leg(c, d, 200)];
        let table: [&[(Place, u128, u128)]; 3] = [
            &[(a, 100, 0), (b, 0, 100)],
            &[(a, 100, 0), (b, 0, 50), (c, 0, 50)],
            &[(a, 100, 0), (b, 0, 50), (c, 150, 0), (d, 0, 200)],
        ];
        for (legs_done, want) in (1..).zip(table) {
            let parts = Breakdown::of(&legs[..legs_done], |_| true);
            let parts: Vec<_> =
                parts.iter().map(|part| (part.place, part.apart, part.arriving)).collect();
            assert_eq!(parts, want, "after leg {legs_done}");
        }
    }

    fn place() -> impl Strategy<Value = Place> {
        prop_oneof![
            1 => Just(Place::Outside),
            4 => (1..5u64).prop_map(Place::Available),
            1 => (1..3u64, 1..3u16).prop_map(|(user, purpose)| Place::Frozen { user, purpose }),
            2 => (1..4u64).prop_map(Place::Hold),
        ]
    }

    /// Legs with random places; place 4 is special.
    fn legs() -> impl Strategy<Value = Vec<Leg>> {
        let leg = (place(), place(), 1..3u32, 1..100u64);
        let leg = leg.prop_map(|(from, to, asset, amount)| Leg { from, to, asset, amount });
        prop::collection::vec(leg, 1..=LEGS_MAX)
    }

    fn counts(place: Place) -> bool {
        place != Place::Available(4)
    }

    proptest! {
        /// MLT-003. Goal: apart and entered are arriving and gone; booking by places is booking leg
        /// by leg; with exactly the amount apart no place falls below 0 on the way, and with one
        /// unit less it does. Method: random legs, booked leg by leg in a second model.
        #[test]
        fn parts_are_the_smallest_balances_with_which_the_legs_can_be_booked(legs in legs()) {
            let parts = Breakdown::of(&legs, counts);
            let (mut entered, mut gone) = (0_u128, 0_u128);
            let mut balances = BTreeMap::<(Place, u32), i128>::new();
            let mut lowest = BTreeMap::<(Place, u32), i128>::new();
            let passes = |place| place == Place::Outside || !counts(place);
            for leg in &legs {
                entered += if passes(leg.from) { u128::from(leg.amount) } else { 0 };
                gone += if passes(leg.to) { u128::from(leg.amount) } else { 0 };
                for (place, change) in
                    [(leg.from, -i128::from(leg.amount)), (leg.to, i128::from(leg.amount))]
                {
                    let balance = balances.entry((place, leg.asset)).or_default();
                    *balance += change;
                    let lowest = lowest.entry((place, leg.asset)).or_default();
                    *lowest = (*lowest).min(*balance);
                }
            }
            let apart: u128 = parts.iter().map(|part| part.apart).sum();
            let arriving: u128 = parts.iter().map(|part| part.arriving).sum();
            prop_assert_eq!(apart + entered, arriving + gone);
            for part in parts.iter() {
                let key = (part.place, part.asset);
                let change = i128::try_from(part.arriving).expect("small")
                    - i128::try_from(part.apart).expect("small");
                prop_assert_eq!(balances[&key], change);
                prop_assert_eq!(lowest[&key].unsigned_abs(), part.apart);
            }
            let counted = balances.keys().filter(|(place, _)| !passes(*place)).count();
            prop_assert_eq!(parts.iter().count(), counted);
        }

        /// What is apart never falls when legs are appended: a later round only adds.
        #[test]
        fn more_legs_never_set_less_apart(legs in legs(), cut in 0..LEGS_MAX) {
            let cut = cut.min(legs.len());
            let (first, all) = (Breakdown::of(&legs[..cut], counts), Breakdown::of(&legs, counts));
            for part in first.iter() {
                prop_assert!(all.at(part.place, part.asset).apart >= part.apart);
            }
        }
    }
}
