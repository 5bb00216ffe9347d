//! From the rounds of a transaction to the words for both stores.
//!
//! A refused round has used up its number, and its legs count no more. Funding has one hold for
//! each user, asset and purpose, and its words are absolute, so each of them can be repeated. Round
//! n sets its holds by the numbers 2n - 1 (the try) and 2n (back to the rounds before, if it is
//! refused). The hold of a special place has nothing apart: it is booked with all of its legs.

use std::collections::{BTreeMap, BTreeSet};

use domain::account::UserId;
use domain::amount::UNITS_MAX;
use domain::asset::AssetId;
use domain::code::Code;
use domain::hold::{HoldAct, HoldKey, HoldOrder};
use domain::posting::{Breakdown, LEGS_MAX, Leg, Place, Posting};
use domain::transfer::Participant;

use crate::transaction::{
    BranchState, LegPlace, Party, TransactionLeg, TransactionRound, TransactionRow,
};

const FUNDING: Participant = Participant::Funding;

/// Whether a round was refused: its legs count no more.
pub fn is_used_up(row: &TransactionRow, round: u8) -> bool {
    row.branches.iter().any(|branch| branch.round == round && branch.state == BranchState::Refused)
}

/// The legs of one store in the accepted rounds up to `round`, and the number of those that belong
/// to earlier rounds.
fn legs(row: &TransactionRow, store: Participant, round: u8) -> (Vec<TransactionLeg>, usize) {
    let party = Party::Store(store);
    let (mut legs, mut earlier) = (Vec::new(), 0);
    for branch in row.branches.iter().filter(|branch| branch.party == party) {
        if branch.round > round || (branch.round < round && is_used_up(row, branch.round)) {
            continue;
        }
        if branch.round < round {
            earlier += branch.legs.len();
        }
        legs.extend(&branch.legs);
    }
    (legs, earlier)
}

/// All accepted legs of one store.
fn accepted(row: &TransactionRow, store: Participant) -> Vec<TransactionLeg> {
    // No round has this number, so that the last one is judged like the others.
    legs(row, store, u8::MAX).0
}

/// The legs of one store in this round alone.
fn of_round(row: &TransactionRow, store: Participant, round: u8) -> &[TransactionLeg] {
    let party = Party::Store(store);
    let found = row.branches.iter().find(|branch| (&branch.party, branch.round) == (&party, round));
    found.map_or(&[], |branch| &branch.legs)
}

/// A place of a store with an asset. Purpose 0 is the available balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Holder {
    user: UserId,
    asset: AssetId,
    purpose: u16,
    special: bool,
}

impl Holder {
    /// `None`: the place is none of this store.
    fn of(store: Participant, place: LegPlace, asset: AssetId) -> Option<Holder> {
        let purpose = match place {
            LegPlace::Frozen { purpose, .. } => purpose,
            LegPlace::Available { .. } | LegPlace::Special { .. } | LegPlace::Outside => 0,
        };
        let special = matches!(place, LegPlace::Special { .. });
        Some(Holder { user: place.user_in(store)?, asset, purpose, special })
    }

    fn place(self) -> Place {
        let user = self.user.number();
        match self.purpose {
            0 => Place::Available(user),
            purpose => Place::Frozen { user, purpose },
        }
    }
}

/// The amounts of one place over many legs, smallest units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    apart: u64,
    arriving: u64,
    flows: Flows,
}

/// All that the legs bring to a place and take from it, smallest units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flows {
    brought: u128,
    taken: u128,
    deposited: u128,
    withdrawn: u128,
}

impl Flows {
    /// Of a place in Funding.
    fn of(holder: Holder, legs: &[TransactionLeg]) -> Flows {
        let mut flows = Flows::default();
        // No leg goes between a purpose and the outside.
        let legs = if holder.purpose == 0 { legs } else { &[] };
        for leg in legs.iter().filter(|leg| leg.asset == holder.asset) {
            let is_it = |place| Holder::of(FUNDING, place, leg.asset) == Some(holder);
            let units = u128::from(leg.amount);
            match (leg.from, leg.to) {
                (LegPlace::Outside, to) if is_it(to) => flows.deposited += units,
                (from, LegPlace::Outside) if is_it(from) => flows.withdrawn += units,
                (from, to) => {
                    flows.taken += if is_it(from) { units } else { 0 };
                    flows.brought += if is_it(to) { units } else { 0 };
                }
            }
        }
        flows
    }
}

impl Share {
    /// The amount that a try sets apart: nothing of a special place.
    fn set_apart(self, holder: Holder) -> u64 {
        if holder.special { 0 } else { self.apart }
    }

    /// The act that books it. Money that comes and goes on among other places is left out of both
    /// amounts. The outside is told whole: its records prove it.
    fn settle(self, holder: Holder) -> HoldAct {
        let Share { apart, arriving, flows: Flows { brought, taken, deposited, withdrawn } } = self;
        let plain = HoldAct::settle(apart, arriving);
        if (deposited, withdrawn) == (0, 0) {
            return plain;
        }
        // Nothing of a special place is apart, so nothing passes: both ways are told whole.
        let through = match holder.special {
            true => 0,
            false => (taken + withdrawn).saturating_sub(apart.into()),
        };
        let passed_on = through.min(taken).min(brought);
        let small = |units: u128| u64::try_from(units).ok().filter(|units| *units <= UNITS_MAX);
        let amounts =
            [taken - passed_on, brought - passed_on, deposited, withdrawn, through - passed_on];
        match amounts.map(small) {
            [Some(taken), Some(brought), Some(deposited), Some(withdrawn), Some(passed)] => {
                HoldAct::Settle { taken, brought, deposited, withdrawn, passed }
            }
            // No column has such a sum. It counts as it did before the outside had records.
            _ => plain,
        }
    }
}

/// The shares of all places of these legs in their store.
///
/// # Errors
/// [`Code::InvalidPosting`]: too many legs; [`Code::Overflow`]: a sum is too large for a column.
fn shares(store: Participant, legs: &[TransactionLeg]) -> Result<BTreeMap<Holder, Share>, Code> {
    if legs.len() > LEGS_MAX {
        return Err(Code::InvalidPosting);
    }
    let legs_of: Vec<Leg> = legs.iter().map(|leg| leg.in_store(store)).collect();
    let parts = Breakdown::of(&legs_of, |_| true);
    let fits = |units: u128| {
        let fitting = u64::try_from(units).ok().filter(|units| *units <= UNITS_MAX);
        fitting.ok_or(Code::Overflow)
    };
    let mut shares = BTreeMap::new();
    for holder in holders(store, legs) {
        let flows = Flows::of(holder, legs);
        let part = parts.at(holder.place(), holder.asset.0);
        let (apart, arriving) = match holder.special {
            true => (flows.taken + flows.withdrawn, flows.brought + flows.deposited),
            false => (part.apart, part.arriving),
        };
        let share = Share { apart: fits(apart)?, arriving: fits(arriving)?, flows };
        shares.insert(holder, share);
    }
    Ok(shares)
}

/// Fixes the special places of a round: as the rounds before it have them, and other ones as they
/// are now. `row`: the transaction, unless it is new. `is_special`: of a user on Funding.
pub fn fix_special(
    row: Option<&TransactionRow>,
    round: &mut TransactionRound,
    is_special: impl Fn(UserId, AssetId) -> bool,
) {
    let earlier = |user: UserId, asset: AssetId| {
        let legs = row?.branches.iter().flat_map(|branch| &branch.legs);
        let mut places = legs.filter(|leg| leg.asset == asset).flat_map(|leg| [leg.from, leg.to]);
        places.find_map(|place| match place {
            LegPlace::Special { user: of } if of == user => Some(true),
            LegPlace::Available { store: FUNDING, user: of } if of == user => Some(false),
            _ => None,
        })
    };
    // Once for each place: the accounts that are special may change between two legs.
    let mut decided = BTreeMap::new();
    let mut is_fixed = |user: UserId, asset: AssetId| {
        let decide = || earlier(user, asset).unwrap_or_else(|| is_special(user, asset));
        *decided.entry((user, asset)).or_insert_with(decide)
    };
    let mut fixed = |place: LegPlace, asset: AssetId| match place {
        LegPlace::Available { store: FUNDING, user } if is_fixed(user, asset) => {
            LegPlace::Special { user }
        }
        place => place,
    };
    for leg in &mut round.legs {
        (leg.from, leg.to) = (fixed(leg.from, leg.asset), fixed(leg.to, leg.asset));
    }
}

/// The places that these legs name in one store.
fn holders(store: Participant, legs: &[TransactionLeg]) -> BTreeSet<Holder> {
    let both =
        |leg: &TransactionLeg| [leg.from, leg.to].map(|place| Holder::of(store, place, leg.asset));
    legs.iter().flat_map(both).flatten().collect()
}

/// Checks that a round can join the rounds before it. `row`: the transaction, unless it is new.
///
/// # Errors
/// [`Code::InvalidPosting`]: more than [`LEGS_MAX`] legs of one store in all rounds, a leg from a
/// place to itself, or of nothing; [`Code::Overflow`]: a sum of amounts is too large.
pub fn check(row: Option<&TransactionRow>, round: &TransactionRound) -> Result<(), Code> {
    if round.legs.iter().any(|leg| leg.from == leg.to || leg.amount == 0) {
        return Err(Code::InvalidPosting);
    }
    for store in [Participant::Funding, Participant::Spot] {
        let mut all = row.map_or_else(Vec::new, |row| accepted(row, store));
        all.extend(round.legs_in(store));
        shares(store, &all)?;
    }
    Ok(())
}

/// The order for one hold of Funding.
fn order(row: &TransactionRow, holder: Holder, act: HoldAct) -> HoldOrder {
    let Holder { user, asset, purpose, special } = holder;
    let mut key = format!("{}:{}:{}", row.id, user.number(), asset.0);
    if purpose != 0 {
        key.push_str(&format!(":{purpose}"));
    }
    let key = HoldKey::new(&key).expect("26 + 20 + 10 + 5 characters of digits and colons");
    let order_number = row.order_number;
    HoldOrder { key, order_number, user, asset, purpose, special, act, outside_numbers: [0, 0] }
}

/// Whether the leg unfreezes: the status of the account does not count.
fn unfreezes(leg: &TransactionLeg) -> bool {
    matches!(leg.from, LegPlace::Frozen { .. })
        && matches!(leg.to, LegPlace::Available { .. } | LegPlace::Special { .. })
        && (leg.from.store(), leg.from.user()) == (leg.to.store(), leg.to.user())
}

/// Whether payer and payee are one account: the payer's status alone counts.
fn is_within(leg: &TransactionLeg) -> bool {
    leg.from.user().is_some()
        && (leg.from.store(), leg.from.user()) == (leg.to.store(), leg.to.user())
}

/// A hold of Funding, with the first leg of its round that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldWord {
    /// The order.
    pub order: HoldOrder,
    /// The leg in its round, from 0.
    pub leg: u8,
}

/// The words by which Funding tries a round: each hold of its users is set to all that the accepted
/// rounds and this one need.
///
/// # Errors
/// A code that refuses the round before anything is asked.
pub fn set(row: &TransactionRow, round: u8) -> Result<Vec<HoldWord>, Code> {
    let here = of_round(row, FUNDING, round);
    let shares = shares(FUNDING, &legs(row, FUNDING, round).0)?;
    let word = |holder: Holder| {
        let is_it = |place: LegPlace, leg: &TransactionLeg| {
            Holder::of(FUNDING, place, leg.asset) == Some(holder)
        };
        let pays = here.iter().any(|leg| is_it(leg.from, leg) && !unfreezes(leg));
        let paid = here.iter().any(|leg| is_it(leg.to, leg) && !is_within(leg));
        let amount = shares[&holder].set_apart(holder);
        let act = HoldAct::Set { round: 2 * round - 1, amount, pays, paid };
        HoldWord { order: order(row, holder, act), leg: first_leg(here, holder) }
    };
    Ok(holders(FUNDING, here).into_iter().map(word).collect())
}

/// The words that set the holds of a refused round back to the rounds before it.
pub fn set_back(row: &TransactionRow, round: u8) -> Vec<HoldWord> {
    let here = of_round(row, FUNDING, round);
    let (all, earlier) = legs(row, FUNDING, round);
    // They were accepted, so they have shares.
    let shares = shares(FUNDING, &all[..earlier]).unwrap_or_default();
    let word = |holder: Holder| {
        let amount = shares.get(&holder).map_or(0, |share| share.set_apart(holder));
        let act = HoldAct::Set { round: 2 * round, amount, pays: false, paid: false };
        HoldWord { order: order(row, holder, act), leg: first_leg(here, holder) }
    };
    holders(FUNDING, here).into_iter().map(word).collect()
}

/// The words that book all accepted rounds on Funding. A hold of refused rounds alone is released.
pub fn settle(row: &TransactionRow) -> Vec<HoldWord> {
    // They were accepted, so they have shares.
    let shares = shares(FUNDING, &accepted(row, FUNDING)).unwrap_or_default();
    let word = |holder: Holder| {
        let act = shares.get(&holder).map_or(HoldAct::Release, |share| share.settle(holder));
        HoldWord { order: order(row, holder, act), leg: 0 }
    };
    every_holder(row).into_iter().map(word).collect()
}

/// The words that give back all that any round may have set apart on Funding.
pub fn release(row: &TransactionRow) -> Vec<HoldWord> {
    let word = |holder| HoldWord { order: order(row, holder, HoldAct::Release), leg: 0 };
    every_holder(row).into_iter().map(word).collect()
}

/// The places of Funding in all rounds, refused ones included.
fn every_holder(row: &TransactionRow) -> BTreeSet<Holder> {
    let funding = Party::Store(FUNDING);
    let branches = row.branches.iter().filter(|branch| branch.party == funding);
    branches.flat_map(|branch| holders(FUNDING, &branch.legs)).collect()
}

fn first_leg(legs: &[TransactionLeg], holder: Holder) -> u8 {
    let names =
        |leg: &TransactionLeg| holders(FUNDING, std::slice::from_ref(leg)).contains(&holder);
    let found = legs.iter().position(names).unwrap_or_default();
    u8::try_from(found).expect("16 legs at most")
}

/// The legs that Spot is asked for in a round, with the number of those of earlier rounds.
///
/// # Errors
/// A code that refuses the round before anything is asked.
pub fn spot(row: &TransactionRow, round: u8) -> Result<(Posting, u8), Code> {
    let (legs, earlier) = legs(row, Participant::Spot, round);
    shares(Participant::Spot, &legs)?;
    let posting = legs.iter().map(|leg| leg.in_store(Participant::Spot)).collect();
    Ok((posting, u8::try_from(earlier).expect("16 legs at most")))
}

/// All accepted legs of Spot, with the round of the last of them.
pub fn spot_end(row: &TransactionRow) -> (Posting, u8) {
    let legs = accepted(row, Participant::Spot);
    let legs = legs.iter().map(|leg| leg.in_store(Participant::Spot)).take(LEGS_MAX).collect();
    let spot = Party::Store(Participant::Spot);
    let rounds = row.branches.iter().filter(|branch| branch.party == spot);
    let rounds = rounds.map(|branch| branch.round).filter(|round| !is_used_up(row, *round));
    (legs, rounds.max().unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transactions::example::{between, leg, place, row, user};

    fn act_of(words: &[HoldWord], user: u64) -> HoldAct {
        let of_user = |word: &&HoldWord| word.order.user.number() == user;
        words.iter().find(of_user).expect("the user has a hold").order.act
    }

    /// GTX-011. Goal: a later round counts the money of earlier ones, and a refused one counts no
    /// more. Method: A pays B 100; B pays C 50; C pays D 200, which is refused; B pays E 60.
    #[test]
    fn rounds_count_what_earlier_ones_bring() {
        let mut row = row(&[
            (FUNDING, 1, vec![leg(1, 2, 100)]),
            (FUNDING, 2, vec![leg(2, 3, 50)]),
            (FUNDING, 3, vec![leg(3, 4, 200)]),
            (FUNDING, 4, vec![leg(2, 5, 60)]),
        ]);
        let set = |round, amount, pays, paid| HoldAct::Set { round, amount, pays, paid };
        let words = super::set(&row, 1).expect("small");
        assert_eq!(act_of(&words, 1), set(1, 100, true, false));
        assert_eq!(act_of(&words, 2), set(1, 0, false, true));
        let words = super::set(&row, 2).expect("small");
        assert_eq!(act_of(&words, 2), set(3, 0, true, false), "it has 100 arriving");
        assert_eq!(act_of(&words, 3), set(3, 0, false, true));
        let words = super::set(&row, 3).expect("small");
        assert_eq!(act_of(&words, 3), set(5, 150, true, false));
        row.branches[2].state = BranchState::Refused;
        let words = set_back(&row, 3);
        assert_eq!(act_of(&words, 3), set(6, 0, false, false));
        assert_eq!(act_of(&words, 4), set(6, 0, false, false));
        let words = super::set(&row, 4).expect("small");
        assert_eq!(act_of(&words, 2), set(7, 10, true, false), "50 of 100 have left");
        let words = settle(&row);
        let settle = HoldAct::settle;
        assert_eq!(act_of(&words, 1), settle(100, 0));
        assert_eq!(act_of(&words, 2), settle(10, 0));
        assert_eq!(act_of(&words, 3), settle(0, 50));
        assert_eq!(act_of(&words, 4), HoldAct::Release, "only a refused round names it");
        assert_eq!(act_of(&words, 5), settle(0, 60));
        assert!(release(&row).iter().all(|word| word.order.act == HoldAct::Release));
        assert_eq!(release(&row).len(), 5);
    }

    /// GTX-012. Goal: a purpose has a hold of its own, and its arriving money is taken first. The
    /// status counts of each payer, but not where money is unfrozen for its owner. Method: user 2
    /// gets 100, freezes it, unfreezes 120, and freezes 30 for user 3.
    #[test]
    fn a_purpose_has_a_hold_of_its_own() {
        let of = |number| place(FUNDING, number);
        let frozen = |number| LegPlace::Frozen { store: FUNDING, user: user(number), purpose: 7 };
        let row = row(&[(
            FUNDING,
            1,
            vec![
                leg(1, 2, 100),
                between(of(2), frozen(2), 100),
                between(frozen(2), of(2), 120),
                between(of(2), frozen(3), 30),
            ],
        )]);
        let said = |word: &HoldWord| {
            let HoldOrder { key, user, purpose, act, .. } = &word.order;
            let name = format!("{}:{}:3", row.id, user.number());
            let name = if *purpose == 0 { name } else { format!("{name}:{purpose}") };
            assert_eq!(key.as_str(), name);
            (user.number(), *purpose, *act)
        };
        let set = |amount, pays, paid| HoldAct::Set { round: 1, amount, pays, paid };
        let words: Vec<_> = super::set(&row, 1).expect("small").iter().map(said).collect();
        assert_eq!(
            words,
            [
                (1, 0, set(100, true, false)),
                (2, 0, set(0, true, true)),
                (2, 7, set(20, false, false)),
                (3, 7, set(0, false, true)),
            ]
        );
        let settle = HoldAct::settle;
        let words: Vec<_> = super::settle(&row).iter().map(said).collect();
        assert_eq!(
            words,
            [
                (1, 0, settle(100, 0)),
                (2, 0, settle(0, 90)),
                (2, 7, settle(20, 0)),
                (3, 7, settle(0, 30)),
            ]
        );
    }

    /// GTX-014. Goal: a special place has nothing apart, and its money is not arriving: a leg
    /// of it needs no leg before. Money that passes through it is set apart at its payer. A round
    /// keeps the places of the rounds before. Method: user 9 is special in the first round,
    /// and no longer behind it.
    #[test]
    fn a_special_place_is_booked_at_the_end() {
        let special = LegPlace::Special { user: user(9) };
        let place = |number| place(FUNDING, number);
        let mut row = row(&[(
            FUNDING,
            1,
            vec![
                between(place(1), special, 100),
                between(special, place(2), 130),
                between(place(2), place(3), 30),
            ],
        )]);
        let words = super::set(&row, 1).expect("small");
        let set = |amount, pays, paid| HoldAct::Set { round: 1, amount, pays, paid };
        assert_eq!(act_of(&words, 9), set(0, true, true));
        assert_eq!(act_of(&words, 1), set(100, true, false));
        assert_eq!(act_of(&words, 2), set(0, true, true), "it has 130 arriving");
        let is_special = |words: &[HoldWord], number| {
            let mut all = words.iter().filter(|word| word.order.special);
            all.any(|word| word.order.user == user(number))
        };
        assert!(is_special(&words, 9) && !is_special(&words, 2));
        let words = settle(&row);
        let settle = HoldAct::settle;
        assert_eq!(act_of(&words, 9), settle(130, 100));
        assert_eq!(act_of(&words, 2), settle(0, 100));
        let mut round = TransactionRound {
            name: row.name.clone(),
            round: 2,
            decider: row.decider,
            ttl_ms: 1,
            legs: vec![between(place(9), place(3), 5), between(place(8), place(2), 5)],
            services: Vec::new(),
            last: None,
            followers: Vec::new(),
            fingerprint: [0; 16],
        };
        fix_special(Some(&row), &mut round, |of, _| [user(2), user(8)].contains(&of));
        assert_eq!(round.legs[0].from, special, "as in round 1");
        let new = LegPlace::Special { user: user(8) };
        assert_eq!((round.legs[1].from, round.legs[1].to), (new, place(2)), "2 was not special");
        row.branches[0].state = BranchState::Refused;
        fix_special(Some(&row), &mut round, |_, _| true);
        assert_eq!(round.legs[0].to, place(3), "a refused round has set its hold too");
        let asked = std::cell::Cell::new(0);
        round.legs = vec![between(place(6), place(7), 5), between(place(7), place(6), 5)];
        fix_special(None, &mut round, |_, _| asked.replace(asked.get() + 1) > 1);
        assert_eq!(round.legs, [leg(6, 7, 5), leg(7, 6, 5)], "the accounts changed between both");
    }

    /// The legs of Spot are those of the accepted rounds; a failing leg is counted in its round.
    #[test]
    fn spot_has_the_legs_of_all_accepted_rounds() {
        let spot = Participant::Spot;
        let mut row = row(&[
            (spot, 1, vec![leg(1, 2, 100), leg(1, 3, 1)]),
            (spot, 2, vec![leg(2, 3, 50)]),
            (spot, 3, vec![leg(3, 4, 20)]),
        ]);
        row.branches[1].state = BranchState::Refused;
        let (legs, earlier) = super::spot(&row, 3).expect("small");
        assert_eq!((legs.len(), earlier), (3, 2));
        let (legs, round) = spot_end(&row);
        assert_eq!((legs.len(), round), (3, 3));
        row.branches[2].state = BranchState::Refused;
        let (legs, round) = spot_end(&row);
        assert_eq!((legs.len(), round), (2, 1));
    }

    /// GTX-013. Goal: each store has its own side of a leg that crosses. A recharge only has
    /// arriving, and a payout only apart. Method: legs between the stores and the outside, in
    /// both branches.
    #[test]
    fn each_store_has_its_side_of_a_leg_that_crosses() {
        let (funding, spot) =
            (|user| place(Participant::Funding, user), |user| place(Participant::Spot, user));
        let legs = vec![
            between(funding(1), spot(2), 30),
            between(spot(2), funding(3), 10),
            between(LegPlace::Outside, funding(4), 7),
            between(funding(5), LegPlace::Outside, 9),
            between(spot(6), funding(1), 50),
        ];
        let in_spot: Vec<_> =
            legs.iter().filter(|leg| leg.is_in(Participant::Spot)).copied().collect();
        let row = row(&[(FUNDING, 1, legs), (Participant::Spot, 1, in_spot)]);
        let words = super::set(&row, 1).expect("small");
        let set = |amount, pays, paid| HoldAct::Set { round: 1, amount, pays, paid };
        assert_eq!(act_of(&words, 1), set(30, true, true));
        assert_eq!(act_of(&words, 3), set(0, false, true));
        assert_eq!(act_of(&words, 4), set(0, false, true));
        assert_eq!(act_of(&words, 5), set(9, true, false));
        assert_eq!(words.len(), 4, "users 2 and 6 are on Spot");
        let words = settle(&row);
        let settle = HoldAct::settle;
        assert_eq!(act_of(&words, 1), settle(30, 50));
        let outside = |deposited, withdrawn| HoldAct::Settle {
            taken: 0,
            brought: 0,
            deposited,
            withdrawn,
            passed: 0,
        };
        assert_eq!(act_of(&words, 4), outside(7, 0));
        assert_eq!(act_of(&words, 5), outside(0, 9));
        let (legs, _) = super::spot(&row, 1).expect("small");
        let sides: Vec<_> = legs.iter().map(|leg| (leg.from, leg.to, leg.amount)).collect();
        let (outside, user) = (Place::Outside, Place::Available);
        let want = [(outside, user(2), 30), (user(2), outside, 10), (user(6), outside, 50)];
        assert_eq!(sides, want);
        assert_eq!(spot_end(&row).0, legs);
    }

    /// GTX-013. Goal: the outside is told whole, though a part passes on, and every act fits the
    /// amount apart. Method: money from outside is passed on, money of another is paid out, and
    /// both at once; each with the change of the balance.
    #[test]
    fn the_outside_is_told_whole_when_it_passes_on() {
        let funding = |user| place(FUNDING, user);
        let comes = |units| between(LegPlace::Outside, funding(1), units);
        let goes = |units| between(funding(1), LegPlace::Outside, units);
        for (legs, want) in [
            (vec![comes(100), leg(1, 2, 30)], [30, 0, 100, 0, 30]),
            (vec![leg(2, 1, 100), goes(100)], [0, 100, 0, 100, 100]),
            (vec![comes(9), goes(9)], [0, 0, 9, 9, 9]),
            (vec![goes(9), comes(9)], [0, 0, 9, 9, 0]),
            (vec![leg(2, 1, 5), comes(9), leg(1, 3, 8), goes(10)], [3, 0, 9, 10, 9]),
        ] {
            let row = row(&[(FUNDING, 1, legs.clone())]);
            let HoldAct::Set { amount, .. } = act_of(&super::set(&row, 1).expect("small"), 1)
            else {
                panic!("a Set")
            };
            let act = act_of(&settle(&row), 1);
            let HoldAct::Settle { taken, brought, deposited, withdrawn, passed } = act else {
                panic!("{act:?}")
            };
            assert_eq!([taken, brought, deposited, withdrawn, passed], want, "{legs:?}");
            assert_eq!(taken + withdrawn, amount + passed, "{legs:?}");
        }
    }

    #[test]
    fn too_many_legs_and_too_large_sums_are_refused() {
        let legs: Vec<_> = (2..18).map(|user| leg(1, user, 1)).collect();
        let full = row(&[(FUNDING, 1, legs)]);
        assert!(super::set(&full, 1).is_ok(), "16 legs");
        let mut large = row(&[(FUNDING, 1, vec![leg(1, 2, UNITS_MAX), leg(1, 3, 1)])]);
        assert_eq!(super::set(&large, 1), Err(Code::Overflow));
        large.branches[0].legs = (2..19).map(|user| leg(1, user, 1)).collect();
        assert_eq!(super::set(&large, 1), Err(Code::InvalidPosting));
    }
}
