//! A log of a few postings, and the facts that a ledger states of them.

use domain::code::Code;
use domain::posting::Posting;
use domain::transfer::Op;
use engine::totals::Totals;

use super::*;

const ASSET: u32 = 3;

fn posted(number: u64, op: Op, legs: &[(Place, Place, u64)]) -> Entry {
    let legs: Posting =
        legs.iter().map(|&(from, to, amount)| Leg { from, to, asset: ASSET, amount }).collect();
    Entry::Posting(Box::new(Posted { venue: 1, number, op, legs, ..Posted::empty() }))
}

fn funded(user: u64, deposits: u128) -> Entry {
    let totals = Totals { deposits, withdrawals: 0, refunds: 0 };
    Entry::Totals { user, asset: ASSET, totals }
}

/// User 1 sets 100 apart and pays 60 of it to user 2. User 2 pays 5 back and
/// freezes 10, and a refused posting moves nothing.
fn log() -> Vec<Entry> {
    let [one, two] = [1, 2].map(Place::Available);
    let freeze = Place::Frozen { user: 2, purpose: 7 };
    let refused = match posted(5, Op::Settle, &[(Place::Hold(1), two, 40)]) {
        Entry::Posting(posted) => {
            let decision = Decision::Refused(Code::HoldExceeded);
            Entry::Posting(Box::new(Posted { decision, ..*posted }))
        }
        _ => unreachable!("made above"),
    };
    vec![
        funded(1, 500),
        funded(2, 20),
        posted(1, Op::Reserve, &[(one, Place::Hold(0), 100)]),
        posted(2, Op::Settle, &[(Place::Hold(1), two, 60), (two, one, 5)]),
        posted(3, Op::Post, &[(two, freeze, 10)]),
        refused,
    ]
}

fn sums(entries: &[Entry]) -> LegSums {
    let mut sums = LegSums::default();
    entries.iter().for_each(|entry| sums.add(entry));
    sums
}

/// The same state, as a ledger states it.
fn facts() -> Vec<Fact> {
    let balance = |user, available, held, traded, deposits| Fact::Balance {
        user,
        asset: ASSET,
        available,
        held,
        traded,
        totals: Totals { deposits, withdrawals: 0, refunds: 0 },
    };
    let hold = HoldFact {
        venue: 1,
        transaction: 0,
        number: 1,
        purpose: 0,
        user: 1,
        asset: ASSET,
        amount: 40,
        reference: 0,
        record: 3,
        time_ns: 0,
        keeps: true,
    };
    let freeze =
        HoldFact { venue: 0, number: 0, purpose: 7, user: 2, amount: 10, keeps: false, ..hold };
    vec![
        balance(1, 405, 40, -55, 500),
        balance(2, 65, 10, 55, 20),
        Fact::Hold(hold),
        Fact::Hold(freeze),
    ]
}

#[test]
fn legs_add_up_to_the_facts_of_a_ledger() {
    let (added, stated) = (sums(&log()), LegSums::of(facts().into_iter()));
    assert_eq!(added.compare(&stated), []);
    assert_eq!([added.recount(), stated.recount()], [[], []].map(Vec::<Wrong>::from));
}

/// Goal: every change of a stated amount is found, and a changed hold is named. Method: each
/// fact changed alone.
#[test]
fn each_changed_fact_is_found() {
    let added = sums(&log());
    for index in 0..facts().len() {
        let mut facts = facts();
        match &mut facts[index] {
            Fact::Balance { available, .. } => *available += 1,
            Fact::Hold(hold) => hold.amount += 1,
            _ => unreachable!("no other fact"),
        }
        let stated = LegSums::of(facts.iter().copied());
        let found = added.compare(&stated);
        let [wrong] = &found[..] else { panic!("{found:?}") };
        assert_eq!((wrong.stated - wrong.added, wrong.user), (1, Some(1 + index as u64 % 2)));
        match facts[index] {
            Fact::Hold(ref hold) => {
                assert_eq!(
                    (wrong.part, &wrong.holds[..]),
                    (Part::Hold, &[Name::of_fact(hold)][..])
                );
                let recount = stated.recount();
                assert_eq!((recount[0].part, &recount[0].holds), (Part::HoldsOfHeld, &wrong.holds));
            }
            _ => assert_eq!(wrong.part, Part::Owned),
        }
    }
    let mut made = facts();
    let Fact::Balance { traded, available, .. } = &mut made[0] else { unreachable!("first") };
    (*traded, *available) = (*traded + 3, *available + 3);
    let stated = LegSums::of(made.into_iter());
    let parts = |wrong: Vec<Wrong>| wrong.iter().map(|wrong| wrong.part).collect::<Vec<_>>();
    assert_eq!(parts(added.compare(&stated)), [Part::Owned, Part::Traded]);
    let found = stated.recount();
    assert_eq!(found[0].sentence(0), "postings have brought 3 more than they have taken");
    assert_eq!(parts(found), [Part::TradedOfAsset]);
}

/// Goal: money that a transaction brings from outside is no money that postings have made, and
/// a changed sum of it is found. Method: a SETTLE of legs from and to the outside.
#[test]
fn money_that_crosses_is_counted() {
    let [one, two] = [1, 2].map(Place::Available);
    let leg = |from, to, amount| Leg { from, to, asset: ASSET, amount };
    let legs: Posting =
        [leg(Place::Outside, one, 40), leg(one, two, 50), leg(two, Place::Outside, 15)]
            .into_iter()
            .collect();
    let named = |op, legs: &Posting| {
        let named = Named { transaction: 9, op, round: 1, legs: legs.clone(), ..Named::empty() };
        Entry::Named(Box::new(named))
    };
    let log = [funded(1, 500), funded(2, 20), named(Op::Reserve, &legs), named(Op::Settle, &legs)];
    let added = sums(&log);
    assert_eq!(added.recount(), Vec::<Wrong>::new());
    let balance = |user, available, traded, deposits| Fact::Balance {
        user,
        asset: ASSET,
        available,
        held: 0,
        traded,
        totals: Totals { deposits, withdrawals: 0, refunds: 0 },
    };
    let facts = |brought| {
        let balances = [balance(1, 490, -10, 500), balance(2, 55, 35, 20)];
        LegSums::of(balances.into_iter().chain([Fact::Crossed { asset: ASSET, brought }]))
    };
    assert_eq!(added.compare(&facts(25)), Vec::<Wrong>::new());
    assert_eq!(facts(25).recount(), Vec::<Wrong>::new());
    let found = added.compare(&facts(24));
    assert_eq!(found[0].sentence(0), "24 came from outside, the legs of the log add up to 25");
    assert_eq!(facts(24).recount()[0].part, Part::TradedOfAsset);
}

#[test]
fn a_leg_out_of_a_hold_that_was_never_made_is_found() {
    let two = Place::Available(2);
    let added = sums(&[funded(2, 1), posted(9, Op::Settle, &[(Place::Hold(4), two, 6)])]);
    let found = added.compare(&LegSums::default());
    let sentence = "hold 1:4 pays 6, and no record has begun it";
    assert!(found.iter().any(|wrong| wrong.sentence(0) == sentence), "{found:?}");
}
