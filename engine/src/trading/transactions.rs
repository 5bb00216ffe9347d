//! Postings by name, case by case.

use domain::posting::{LEGS_MAX, Posting};
use domain::transfer::ReqId;

use super::*;
use crate::fact::{Kept, NamedFact};
use crate::named::{Named, NamedPosting, NamedStep, TxId};
use crate::places::OUTCOMES_MAX;

const RESERVE: Op = Op::Reserve;
const SETTLE: Op = Op::Settle;
const RELEASE: Op = Op::Release;
const POST: Op = Op::Post;

/// The answer to a command by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Recorded now.
    Now(Result<(), (Code, u8)>),
    /// Recorded before.
    Before(Result<(), (Code, u8)>),
    Violation,
    Full(&'static str),
    Forgotten,
}

pub(super) const NOW: Said = Said::Now(SUCCESS);

pub(super) fn now(code: Code, leg: u8) -> Said {
    Said::Now(refused(code, leg))
}

pub(super) fn body(transaction: u128, round: u8, legs: &[Leg]) -> NamedPosting {
    NamedPosting {
        transaction: ReqId::new(transaction).expect("not 0"),
        order_number: order_number(transaction),
        round,
        tx_id: TxId::new("pay:7").expect("short"),
        user: 0,
        legs: legs.iter().copied().collect::<Posting>(),
    }
}

/// Above those of the transfers of [`Market::new`].
fn order_number(transaction: u128) -> u64 {
    1_000 + u64::try_from(transaction).expect("small")
}

pub(super) fn pays(from: u64, to: u64, amount: u64) -> Leg {
    leg(available(from), available(to), USD, amount)
}

impl Market {
    pub(super) fn name(&mut self, op: Op, transaction: u128, round: u8, legs: &[Leg]) -> Said {
        self.name_posting(op, &body(transaction, round, legs))
    }

    fn name_posting(&mut self, op: Op, posting: &NamedPosting) -> Said {
        let (mut named, mut parts) = (Named::new(op, posting), Breakdown::default());
        let before = (self.ledger.digest(), self.ledger.sequence());
        let said = |decision| match decision {
            Decision::Success => Ok(()),
            Decision::Refused(code) => Err(code),
        };
        match self.ledger.decide_named(&mut named, &mut parts) {
            NamedStep::Append => {
                let entry = Entry::Named(Box::new(named.clone()));
                let mut payload = [0; PAYLOAD_BYTES_MAX];
                let length = entry.encode(&mut payload);
                let (kind, bytes) = (entry.kind() as u8, payload[..length].to_vec());
                assert_eq!(Entry::decode(kind, &bytes), Ok(entry));
                self.log.push((kind, bytes));
                let answer = self.ledger.apply_named(&named, &parts, before.1 + 1, 7);
                let again = self.ledger.decide_named(&mut Named::new(op, posting), &mut parts);
                assert_eq!(again, NamedStep::Known(answer), "a repeat has the same answer");
                self.recount_named();
                Said::Now(said(answer.decision).map_err(|code| (code, answer.leg)))
            }
            other => {
                assert_eq!((self.ledger.digest(), self.ledger.sequence()), before);
                match other {
                    NamedStep::Known(answer) => {
                        Said::Before(said(answer.decision).map_err(|code| (code, answer.leg)))
                    }
                    NamedStep::Violation(_) => Said::Violation,
                    NamedStep::Full(key) => Said::Full(key),
                    NamedStep::Forgotten => Said::Forgotten,
                    NamedStep::Append => unreachable!("above"),
                }
            }
        }
    }

    /// A recount, also of the places that RESERVEs keep, and both ways back.
    fn recount_named(&self) {
        self.recount();
        let mut kept = Kept::default();
        for fact in self.ledger.facts() {
            if let Fact::Named(named) = fact {
                kept.accounts += named.kept.accounts;
                kept.balances += named.kept.balances;
                kept.freezes += named.kept.freezes;
            }
        }
        let outcomes = &self.ledger.outcomes;
        assert_eq!(
            [kept.accounts, kept.balances, kept.freezes].map(usize::from),
            [outcomes.kept_accounts(), outcomes.kept_balances(), outcomes.kept_freezes()]
        );
        let restored = self.restored().expect("facts");
        assert_eq!(restored.digest(), self.ledger.digest());
        assert_eq!(restored.outcomes.kept_accounts(), outcomes.kept_accounts());
        assert_eq!(restored.outcomes.kept_balances(), outcomes.kept_balances());
        assert_eq!(restored.outcomes.kept_freezes(), outcomes.kept_freezes());
    }

    /// User and amount of each hold of a transaction.
    fn set_apart(&self, transaction: u128) -> Vec<(u64, u128)> {
        let mut found: Vec<_> =
            self.ledger.transaction_holds(transaction).map(|row| (row.user, row.amount)).collect();
        found.sort_unstable();
        found
    }

    fn usd(&self) -> [(u128, u128); 4] {
        [1, 2, 3, 4].map(|user| self.balance(user, USD))
    }
}

const CHAIN: [(u64, u64, u64); 3] = [(1, 2, 100), (2, 3, 50), (3, 4, 200)];

fn chain() -> [Leg; 3] {
    CHAIN.map(|(from, to, amount)| pays(from, to, amount))
}

/// MLT-002: A-B-C-D as one round and as three rounds sets apart and books the specification's
/// table.
#[test]
fn rounds_set_apart_what_is_lacking_and_are_settled_as_one() {
    let chain = chain();
    let mut one = Market::new(PLACES);
    assert_eq!(one.name(RESERVE, 1, 1, &chain), NOW);
    let mut three = Market::new(PLACES);
    for (round, want) in (1..).zip([&[(1, 100)][..], &[(1, 100)], &[(1, 100), (3, 150)]]) {
        assert_eq!(three.name(RESERVE, 1, round, &chain[..usize::from(round)]), NOW);
        assert_eq!(three.set_apart(1), want, "round {round}");
    }
    for (market, round) in [(&mut one, 1), (&mut three, 3)] {
        let begun = [(900, 100), (1_000, 0), (850, 150), (1_000, 0)];
        assert_eq!(market.usd(), begun, "nothing is booked yet");
        // The money that is coming cannot be spent.
        assert_eq!(market.name(RESERVE, 2, 1, &[pays(2, 1, 1_001)]), {
            now(Code::InsufficientBalance, 0)
        });
        assert_eq!(market.name(SETTLE, 1, round, &chain), NOW);
        assert_eq!(market.usd(), [(900, 0), (1_050, 0), (850, 0), (1_200, 0)]);
        assert_eq!((market.ledger.hold_count(), market.set_apart(1)), (0, vec![]));
        let replayed = market.replayed(PLACES).expect("a log");
        assert_eq!(replayed.digest(), market.ledger.digest());
    }
}

/// MLT-005. Goal: each refusal is recorded and changes nothing, and later rounds may still come.
#[test]
fn a_refused_round_changes_nothing_and_a_later_one_may_come() {
    let mut market = Market::new(PLACES);
    let good = pays(1, 2, 100);
    assert_eq!(market.name(RESERVE, 1, 1, &[good]), NOW);
    market.status(3, AccountStatus::Frozen);
    market.status(4, AccountStatus::Disabled);
    let frozen = |user| Place::Frozen { user, purpose: 1 };
    let bad = |from, to| leg(from, to, USD, 1);
    let table = [
        (vec![], now(Code::InvalidPosting, 0)),
        (vec![good, pays(1, 1, 1)], now(Code::InvalidPosting, 1)),
        (vec![pays(1, 2, 0)], now(Code::InvalidPosting, 0)),
        (vec![pays(1, 2, ALL)], now(Code::InvalidPosting, 0)),
        (vec![bad(Place::Outside, Place::Outside)], now(Code::InvalidPosting, 0)),
        (vec![bad(frozen(1), Place::Outside)], now(Code::InvalidPosting, 0)),
        (vec![bad(Place::Outside, frozen(1))], now(Code::InvalidPosting, 0)),
        (vec![bad(frozen(1), available(1))], now(Code::InsufficientFrozen, 0)),
        (vec![bad(frozen(1), frozen(2))], now(Code::InvalidPosting, 0)),
        (vec![bad(Place::Hold(1), available(1))], now(Code::InvalidPosting, 0)),
        (vec![bad(available(1), Place::Hold(0))], now(Code::InvalidPosting, 0)),
        (vec![pays(0, 1, 1)], now(Code::InvalidRequest, 0)),
        (vec![pays(1, 1 << 63, 1)], now(Code::InvalidRequest, 0)),
        (vec![leg(available(1), available(2), 9, 1)], now(Code::InvalidAsset, 0)),
        (vec![pays(9, 1, 1)], now(Code::SourceAccountNotFound, 0)),
        (vec![good, pays(3, 1, 1)], now(Code::AccountFrozen, 1)),
        (vec![pays(4, 1, 1)], now(Code::AccountDisabled, 0)),
        (vec![good, pays(2, 4, 1)], now(Code::AccountDisabled, 1)),
        // 900 are left, and 100 the transaction has already.
        (vec![good, pays(1, 2, 901)], now(Code::InsufficientBalance, 1)),
    ];
    let balances = market.ledger.facts().filter(|fact| matches!(fact, Fact::Balance { .. }));
    let balances: Vec<_> = balances.collect();
    // Each as the first round of another transaction, and most as a later round of this one.
    for (index, (legs, want)) in (0..).zip(&table) {
        assert_eq!(market.name(POST, 100 + index, 1, legs), *want, "{legs:?}");
        if *want != now(Code::InsufficientBalance, 1) {
            assert_eq!(market.name(RESERVE, 100 + index, 1, legs), *want, "{legs:?}");
        }
        if index < 6 {
            let round = 2 + u8::try_from(index).expect("small");
            assert_eq!(market.name(RESERVE, 1, round, legs), *want, "{legs:?}");
        }
        assert_eq!(market.set_apart(1), [(1, 100)]);
        assert!(balances.iter().all(|fact| market.ledger.facts().any(|other| other == *fact)));
    }
    assert_eq!(market.name(RESERVE, 1, 8, &[good, pays(1, 2, 901)]), {
        now(Code::InsufficientBalance, 1)
    });
    let mut market = Market::new(PLACES);
    assert_eq!(market.name(RESERVE, 1, 1, &[good]), NOW);
    assert_eq!(market.name(RESERVE, 1, 2, &[good, pays(1, 2, 901)]), {
        now(Code::InsufficientBalance, 1)
    });
    assert_eq!(market.name(RESERVE, 1, 3, &[good, pays(1, 2, 900)]), NOW);
    assert_eq!(market.set_apart(1), [(1, 1_000)]);
    // More than a hold takes.
    for _ in 0..2 {
        market.order(Op::Deposit, 2, BTC, u64::MAX - 1);
    }
    let half = leg(available(2), available(1), BTC, 1 << 63);
    assert_eq!(market.name(RESERVE, 2, 1, &[half, half]), now(Code::Overflow, 1));
    let replayed = market.replayed(PLACES).expect("a log");
    assert_eq!(replayed.digest(), market.ledger.digest());
}

/// MLT-005, HLD-008, of services. Goal: a repeat is told its decision, and a contradiction is a
/// violation that records nothing.
#[test]
fn a_name_is_decided_once_and_ends_exclude_each_other() {
    let mut market = Market::new(PLACES);
    let legs = [pays(1, 2, 100)];
    let other = [pays(1, 2, 101)];
    assert_eq!(market.name(SETTLE, 1, 1, &legs), Said::Violation, "without a RESERVE");
    assert_eq!(market.name(RESERVE, 1, 1, &legs), NOW);
    assert_eq!(market.name(RESERVE, 1, 1, &legs), Said::Before(SUCCESS));
    assert_eq!(market.name(RESERVE, 1, 1, &other), Said::Violation);
    let another_number = NamedPosting { order_number: 9_000, ..body(1, 1, &legs) };
    for op in [RESERVE, SETTLE] {
        assert_eq!(market.name_posting(op, &another_number), Said::Violation);
    }
    let another_number = NamedPosting { legs: Posting::new(), ..another_number };
    assert_eq!(market.name_posting(RELEASE, &another_number), Said::Violation);
    for legs in [&other[..], &[], &[legs[0], legs[0]]] {
        assert_eq!(market.name(SETTLE, 1, 1, legs), Said::Violation, "{legs:?}");
    }
    assert_eq!(market.name(RELEASE, 1, 1, &legs), Said::Violation, "a release has no legs");
    assert_eq!(market.name(SETTLE, 1, 1, &legs), NOW);
    assert_eq!(market.name(SETTLE, 1, 5, &legs), Said::Before(SUCCESS), "all rounds have one");
    assert_eq!(market.name(SETTLE, 1, 1, &other), Said::Violation);
    assert_eq!(market.name(RELEASE, 1, 1, &[]), Said::Violation, "behind a SETTLE");
    assert_eq!(market.name(RESERVE, 1, 2, &legs), now(Code::TransactionDecided, 0));
    assert_eq!(market.usd()[..2], [(900, 0), (1_100, 0)]);

    assert_eq!(market.name(RESERVE, 2, 2, &legs), NOW);
    // A round that comes behind a later one.
    assert_eq!(market.name(RESERVE, 2, 1, &legs), now(Code::TransactionDecided, 0));
    assert_eq!(market.name(RELEASE, 2, 2, &[]), NOW);
    assert_eq!(market.name(RELEASE, 2, 1, &[]), Said::Before(SUCCESS));
    assert_eq!(market.name(SETTLE, 2, 2, &legs), Said::Violation, "behind a RELEASE");
    assert_eq!(market.usd()[..2], [(900, 0), (1_100, 0)]);

    // An empty RELEASE shuts the door.
    assert_eq!(market.name(RELEASE, 3, 1, &[]), NOW);
    for op in [RESERVE, POST] {
        assert_eq!(market.name(op, 3, 1, &legs), now(Code::TransactionAborted, 0));
    }
    assert_eq!(market.name(SETTLE, 3, 1, &legs), Said::Violation);
    assert_eq!(market.name(POST, 4, 1, &legs), NOW);
    assert_eq!(market.name(POST, 4, 1, &legs), Said::Before(SUCCESS));
    assert_eq!(market.name(POST, 4, 1, &other), Said::Violation);
    assert_eq!(market.name(RELEASE, 4, 1, &[]), Said::Violation, "behind a POST");
    assert_eq!(market.usd()[..2], [(800, 0), (1_200, 0)]);
    assert_eq!(market.name(POST, 5, 1, &[pays(1, 2, 801)]), now(Code::InsufficientBalance, 0));
    assert_eq!(market.name(RELEASE, 5, 1, &[]), NOW);
    // Bodies that only a bug sends.
    let good = body(6, 1, &legs);
    let tx_id = |text| TxId::new(text).expect("short");
    for bad in [
        NamedPosting { round: 0, ..good.clone() },
        NamedPosting { round: 9, ..good.clone() },
        NamedPosting { tx_id: tx_id(""), ..good.clone() },
        NamedPosting { tx_id: tx_id("a b"), ..good.clone() },
        NamedPosting { order_number: u64::MAX, ..good.clone() },
        NamedPosting { transaction: ReqId::new(1 << 127).expect("not 0"), ..good.clone() },
    ] {
        assert_eq!(market.name_posting(RESERVE, &bad), Said::Violation, "{bad:?}");
    }
    assert_eq!(market.name_posting(Op::Deposit, &good), Said::Violation);
    let query = |op, round| Asked::QueryNamed { transaction: 1, op, round };
    for (op, round) in [(RESERVE, 1), (SETTLE, 7), (RESERVE, 2)] {
        let answer = market.ask(query(op, round));
        assert!(matches!(answer, Answer::QueryNamed(Some(_))), "{op} {round}: {answer:?}");
    }
    assert_eq!(market.ask(query(RELEASE, 1)), Answer::QueryNamed(None));
    assert_eq!(market.ask(Asked::Query { req_id: 1, op: SETTLE }), Answer::Query(None));
    let replayed = market.replayed(PLACES).expect("a log");
    assert_eq!(replayed.digest(), market.ledger.digest());
}

/// HLD-007, of services: statuses are decided at RESERVE, and not again.
#[test]
fn statuses_stop_no_end_of_a_transaction() {
    let legs = [pays(1, 2, 100), pays(2, 9, 30)];
    for status in [AccountStatus::Frozen, AccountStatus::Disabled] {
        for end in [SETTLE, RELEASE] {
            let mut market = Market::new(PLACES);
            assert_eq!(market.name(RESERVE, 1, 1, &legs), NOW);
            for user in [1, 2, 9] {
                market.status(user, status);
            }
            let legs = if end == SETTLE { &legs[..] } else { &[] };
            assert_eq!(market.name(end, 1, 1, legs), NOW);
            let settled = [(900, 0), (1_070, 0)];
            let want = if end == SETTLE { settled } else { [(1_000, 0); 2] };
            assert_eq!(market.usd()[..2], want);
            let paid = if end == SETTLE { 30 } else { 0 };
            assert_eq!(market.balance(9, USD), (paid, 0));
        }
    }
}

/// Money of an asset that crossed to Spot, as the facts have it.
fn crossed(ledger: &Ledger) -> Vec<(u32, i128)> {
    let crossed = |fact| match fact {
        Fact::Crossed { asset, brought } => Some((asset, brought)),
        _ => None,
    };
    ledger.facts().filter_map(crossed).collect()
}

/// GTX-013, of Spot. Goal: legs from outside set nothing apart, legs to the outside all that has
/// not arrived, and the postings inside Spot still add up to the money that crossed.
#[test]
fn legs_from_and_to_the_outside_cross() {
    let outside = Place::Outside;
    let legs = [
        leg(outside, available(1), USD, 100),
        pays(1, 2, 1_050),
        leg(available(2), outside, USD, 30),
        leg(outside, available(9), USD, 7),
        leg(available(3), outside, USD, 20),
    ];
    let mut market = Market::new(PLACES);
    let total = market.ledger.total(USD);
    let digest = |market: &Market| {
        let replayed = market.replayed(PLACES).expect("a log");
        assert_eq!(replayed.digest(), market.ledger.digest());
    };
    assert_eq!(market.name(RESERVE, 1, 1, &legs), NOW);
    assert_eq!(market.set_apart(1), [(1, 950), (3, 20)]);
    assert_eq!((crossed(&market.ledger), market.ledger.total(USD)), (vec![], total));
    assert_eq!(market.name(RESERVE, 2, 1, &[leg(available(1), outside, USD, 51)]), {
        now(Code::InsufficientBalance, 0)
    });
    assert_eq!(market.name(RELEASE, 1, 1, &[]), NOW);
    assert_eq!((crossed(&market.ledger), market.ledger.total(USD)), (vec![], total));
    assert_eq!(market.name(RESERVE, 3, 1, &legs), NOW);
    assert_eq!(market.name(SETTLE, 3, 1, &legs), NOW);
    assert_eq!(market.usd(), [(50, 0), (2_020, 0), (980, 0), (1_000, 0)]);
    assert_eq!(market.balance(9, USD), (7, 0));
    assert_eq!((crossed(&market.ledger), market.ledger.total(USD)), (vec![(USD, 57)], total + 57));
    digest(&market);
    // Only from outside: no hold, and its places are kept all the same.
    let brings = [leg(outside, available(8), USD, 3)];
    assert_eq!(market.name(RESERVE, 4, 1, &brings), NOW);
    assert_eq!((market.set_apart(4), market.ledger.hold_count()), (vec![], 0));
    assert_eq!(market.name(SETTLE, 4, 1, &brings), NOW);
    assert_eq!(market.name(POST, 5, 1, &[leg(available(8), outside, USD, 60)]), {
        now(Code::InsufficientBalance, 0)
    });
    assert_eq!(market.name(POST, 5, 2, &[leg(available(1), outside, USD, 50)]), NOW);
    assert_eq!(market.name(POST, 6, 1, &[leg(available(2), outside, USD, 10)]), NOW);
    assert_eq!((crossed(&market.ledger), market.ledger.total(USD)), (vec![], total));
    digest(&market);
    // A frozen user pays nothing out, and a disabled one is paid nothing.
    market.status(3, AccountStatus::Frozen);
    market.status(4, AccountStatus::Disabled);
    let pays_out = [leg(available(3), outside, USD, 1)];
    assert_eq!(market.name(RESERVE, 7, 1, &pays_out), now(Code::AccountFrozen, 0));
    let brings = [leg(outside, available(4), USD, 1)];
    assert_eq!(market.name(RESERVE, 8, 1, &brings), now(Code::AccountDisabled, 0));
}

/// Goal: a log of an older version, which refused legs from and to the outside, still replays.
#[test]
fn a_refusal_of_an_older_version_stands() {
    let mut market = Market::new(PLACES);
    let brings = [leg(Place::Outside, available(1), USD, 3)];
    let mut named = Named::new(RESERVE, &body(1, 1, &brings));
    named.outside = false;
    let mut parts = Breakdown::default();
    assert_eq!(market.ledger.decide_named(&mut named, &mut parts), NamedStep::Append);
    assert_eq!(named.decision, Decision::Refused(Code::InvalidPosting));
    let entry = Entry::Named(Box::new(named.clone()));
    let mut payload = [0; PAYLOAD_BYTES_MAX];
    let length = entry.encode(&mut payload);
    market.log.push((entry.kind() as u8, payload[..length].to_vec()));
    market.ledger.apply_named(&named, &parts, market.ledger.sequence() + 1, 7);
    assert_eq!(market.replayed(PLACES).expect("a log").digest(), market.ledger.digest());
    assert_eq!(market.name(RESERVE, 1, 1, &brings), Said::Before(refused(Code::InvalidPosting, 0)));
    assert_eq!(market.name(RESERVE, 1, 2, &brings), NOW, "a later round is judged by this version");
}

/// A set-back: a later round may carry fewer legs. It gives back all that they do not need.
#[test]
fn a_later_round_may_need_less() {
    let mut market = Market::new(PLACES);
    let chain = chain();
    assert_eq!(market.name(RESERVE, 1, 1, &chain), NOW);
    assert_eq!(market.name(RESERVE, 1, 2, &chain[1..2]), NOW);
    assert_eq!(market.set_apart(1), [(2, 50)]);
    assert_eq!(market.usd(), [(1_000, 0), (950, 50), (1_000, 0), (1_000, 0)]);
    assert_eq!(market.name(SETTLE, 1, 2, &chain), Said::Violation);
    assert_eq!(market.name(RESERVE, 1, 3, &[pays(3, 1, 7), pays(2, 3, 20)]), NOW);
    assert_eq!(market.set_apart(1), [(2, 20), (3, 7)]);
    assert_eq!(market.name(SETTLE, 1, 3, &[pays(3, 1, 7), pays(2, 3, 20)]), NOW);
    assert_eq!(market.usd(), [(1_007, 0), (980, 0), (1_013, 0), (1_000, 0)]);
    let replayed = market.replayed(PLACES).expect("a log");
    assert_eq!(replayed.digest(), market.ledger.digest());
}

/// Holds of venues and of transactions are apart, and both are of one balance.
#[test]
fn a_venue_and_a_transaction_cannot_use_the_same_money() {
    let mut market = Market::new(PLACES);
    assert_eq!(market.send(1, &reserve(1, USD, 700)), SUCCESS);
    assert_eq!(market.name(RESERVE, 1, 1, &[pays(1, 2, 301)]), {
        now(Code::InsufficientBalance, 0)
    });
    assert_eq!(market.name(RESERVE, 2, 1, &[pays(1, 2, 300)]), NOW);
    assert_eq!(market.balance(1, USD), (0, 1_000));
    let short = Decision::Refused(Code::InsufficientBalance);
    assert_eq!(market.order(Op::Withdraw, 1, USD, 1), short);
    // A venue's command names no hold of a transaction.
    for hold in 2..20 {
        assert_eq!(market.send(1, &release(hold, ALL)), refused(Code::HoldNotFound, 0));
    }
    assert_eq!(market.ledger.held_of(1, USD, 9).len(), 2);
    assert_eq!(market.name(SETTLE, 2, 1, &[pays(1, 2, 300)]), NOW);
    assert_eq!(market.send(1, &release(1, ALL)), SUCCESS);
    assert_eq!(market.usd()[..2], [(700, 0), (1_300, 0)]);
}

/// L13. Goal: a RESERVE keeps the place of its end, and of what its legs will make; what would take
/// them is refused. Without a place nothing is recorded.
#[test]
fn a_reserve_keeps_every_place_of_its_end() {
    let venues = VenuePlaces { holds_max: 2, ..PLACES.venues };
    // Users 1 to 4 with both assets take four accounts and eight balances. Fifteen outcomes leave
    // places for four more beside the open RESERVE, its end and the deposits.
    let places = Places { accounts_max: 6, outcomes_max: 15, venues };
    let mut market = Market::new(places);
    let legs = [pays(1, 7, 10), pays(2, 8, 10), pays(7, 8, 5)];
    assert_eq!(market.ledger.places_left(), 7);
    assert_eq!(market.name(RESERVE, 1, 1, &legs), NOW);
    let ledger = &market.ledger;
    assert_eq!((ledger.accounts_left(), ledger.balances_left(), ledger.places_left()), (0, 2, 5));
    // Neither a payee nor a deposit nor an ACTIVE status takes a kept account.
    assert_eq!(market.name(RESERVE, 2, 1, &[pays(1, 9, 1)]), Said::Full(ACCOUNTS_MAX));
    assert_eq!(market.name(POST, 2, 1, &[pays(1, 9, 1)]), Said::Full(ACCOUNTS_MAX));
    assert_eq!(market.order(Op::Deposit, 9, USD, 1), Decision::Refused(Code::Overloaded));
    let active = |user| Asked::SetStatus { user, status: AccountStatus::Active };
    assert_eq!(market.ask(active(9)), Answer::Overloaded);
    // Other statuses have places of their own, and leave the kept ones.
    for user in 100.. {
        let frozen = Asked::SetStatus { user, status: AccountStatus::Frozen };
        if market.ask(frozen) == Answer::Overloaded {
            break;
        }
    }
    assert_eq!(market.ledger.accounts.places_left(), 2);
    // The table of holds is full.
    let no_payee = [pays(3, 1, 1), pays(1, 3, 5)];
    assert_eq!(market.name(RESERVE, 3, 1, &no_payee), Said::Full(HOLDS_MAX));
    // A later round takes over the kept places, and the holds.
    let fewer = [pays(1, 7, 10), pays(2, 8, 10)];
    assert_eq!(market.name(RESERVE, 1, 2, &fewer), NOW);
    while market.ledger.places_left() > 0 {
        let user = 1;
        market.order(Op::Deposit, user, USD, 1);
    }
    assert_eq!(market.name(RESERVE, 1, 3, &legs), Said::Full(OUTCOMES_MAX));
    assert_eq!(market.name(RELEASE, 4, 1, &[]), Said::Full(OUTCOMES_MAX));
    assert_eq!(market.name(POST, 4, 1, &[pays(1, 2, 1)]), Said::Full(OUTCOMES_MAX));
    assert_eq!(market.name(SETTLE, 1, 2, &fewer), NOW);
    assert_eq!([7, 8].map(|user| market.balance(user, USD)), [(10, 0), (10, 0)]);
    assert_eq!(market.ledger.places_left(), 0);
    let replayed = market.replayed(PLACES).expect("a log");
    assert_eq!(replayed.digest(), market.ledger.digest());
    let least = VenuePlaces { holds_max: 1, ..PLACES.venues };
    let full = market.replayed(Places { venues: least, ..places });
    assert!(matches!(full, Err(replay::Error::Full { key, .. }) if key == HOLDS_MAX));
    let full = market.replayed(Places { accounts_max: 5, ..places });
    assert!(matches!(full, Err(replay::Error::Full { key, .. }) if key == ACCOUNTS_MAX));
    // Without places for holds and their sums there is no posting by name.
    let mut market = Market::new(PLACES);
    market.ledger = {
        let mut ledger = Ledger::new(Places::of_transfers(20, 1_000));
        let of_transfers = market.log.iter().filter(|(kind, _)| ![12, 13].contains(kind));
        let log: Vec<_> = of_transfers.cloned().collect();
        catch_up(&mut ledger, &log).expect("a log");
        ledger
    };
    for op in [RESERVE, POST] {
        assert_eq!(market.name(op, 1, 1, &[pays(1, 2, 1)]), Said::Full(HOLDS_MAX));
    }
}

/// L13. Goal: new work leaves places for ends without a RESERVE, and evictions make room again.
/// Method: a full map with two kept places; every kind of new work, ends with and without a
/// RESERVE; the watermark; a replay that knows of no kept place.
#[test]
fn new_work_leaves_the_places_of_ends_without_a_reserve() {
    let places = Places { outcomes_max: 20, ..PLACES };
    let mut market = Market::new(places);
    market.ledger.keep_for_ends(2);
    let legs = [pays(1, 2, 10)];
    assert_eq!(market.name(RESERVE, 1, 1, &legs), NOW);
    while market.ledger.places_left() > 0 {
        market.order(Op::Deposit, 1, USD, 1);
    }
    let full = Said::Full(OUTCOMES_MAX);
    for (op, round, legs) in [(RESERVE, 1, &legs[..]), (RESERVE, 1, &[]), (POST, 1, &legs)] {
        assert_eq!(market.name(op, 2, round, legs), full, "{op}: nothing happens");
    }
    assert_eq!(market.name(RESERVE, 1, 2, &legs), full);
    for transaction in [2, 3] {
        assert_eq!(market.name(RELEASE, transaction, 1, &[]), NOW, "{transaction}");
        assert_eq!(market.ledger.places_left(), 0);
    }
    assert_eq!(market.name(RELEASE, 4, 1, &[]), full, "none is left");
    assert_eq!(market.name(RELEASE, 1, 1, &[]), NOW, "its RESERVE has kept a place");
    assert_eq!(market.set_apart(1), []);
    // A replay knows of no kept place.
    let replayed = market.replayed(places).expect("a log");
    assert_eq!(replayed.digest(), market.ledger.digest());
    // The kept places come first, then those of new work.
    market.ask(Asked::RaiseWatermark { order_number: order_number(4) });
    market.ledger.forget_all();
    assert_eq!(market.ledger.places_left(), 18);
    assert_eq!(market.name(RESERVE, 5, 1, &legs), NOW);
}

/// Below the watermark nothing is decided but the end of a RESERVE with open holds.
#[test]
fn below_the_watermark_only_an_open_transaction_ends() {
    let legs = [pays(1, 2, 100)];
    for end in [SETTLE, RELEASE] {
        let mut market = Market::new(PLACES);
        assert_eq!(market.name(RESERVE, 1, 1, &legs), NOW);
        assert_eq!(market.name(RESERVE, 1, 2, &legs), NOW);
        assert_eq!(market.name(RESERVE, 2, 1, &legs), NOW);
        assert_eq!(market.name(SETTLE, 2, 1, &legs), NOW);
        let raise = Asked::RaiseWatermark { order_number: order_number(10) };
        market.ask(raise);
        let digest = market.ledger.digest();
        market.ledger.forget_all();
        assert_eq!(market.ledger.digest(), digest);
        let named = market.ledger.facts().filter(|fact| matches!(fact, Fact::Named(_)));
        assert_eq!(named.count(), 1, "the open RESERVE stays");
        for (op, transaction, round, legs) in [
            (RESERVE, 1, 3, &legs[..]),
            (RESERVE, 1, 1, &legs),
            (RESERVE, 3, 1, &legs),
            (POST, 1, 1, &legs),
            (POST, 3, 1, &legs),
            (SETTLE, 3, 1, &legs),
            (SETTLE, 2, 1, &legs),
            (RELEASE, 2, 1, &[]),
            (RELEASE, 3, 1, &[]),
        ] {
            let said = market.name(op, transaction, round, legs);
            assert_eq!(said, Said::Forgotten, "{op} {transaction} {round}");
        }
        assert_eq!(market.set_apart(1), [(1, 100)]);
        assert_eq!(market.name(end, 1, 2, if end == SETTLE { &legs } else { &[] }), NOW);
        assert_eq!(market.set_apart(1), []);
        market.ledger.forget_all();
        let named = market.ledger.facts().filter(|fact| matches!(fact, Fact::Named(_)));
        assert_eq!(named.count(), 0, "all is evicted");
        assert_eq!(market.name(RELEASE, 1, 2, &[]), Said::Forgotten);
        let replayed = market.replayed(PLACES).expect("a log");
        assert_eq!(replayed.digest(), market.ledger.digest());
        assert_eq!(market.restored().expect("facts").digest(), market.ledger.digest());
    }
}

/// Sixteen legs have sixteen holds, and each number is free again.
#[test]
fn a_transaction_of_sixteen_legs_has_sixteen_holds() {
    let mut market = Market::new(PLACES);
    for user in 1..=16 {
        market.order(Op::Deposit, user, USD, 1_000);
    }
    let legs: Vec<_> = (1..=16).map(|user| pays(user, user + 1, user)).collect();
    let backwards: Vec<_> = legs.iter().rev().copied().collect();
    assert_eq!(backwards.len(), LEGS_MAX);
    assert_eq!(market.name(RESERVE, 1, 1, &backwards), NOW);
    let total: u128 = market.set_apart(1).iter().map(|(_, amount)| amount).sum();
    assert_eq!((market.set_apart(1).len(), total), (16, 136));
    assert_eq!(market.name(RESERVE, 1, 2, &legs[..3]), NOW);
    assert_eq!(market.name(RESERVE, 1, 3, &backwards), NOW);
    assert_eq!(market.set_apart(1).len(), 16);
    assert_eq!(market.name(SETTLE, 1, 3, &backwards), NOW);
    assert_eq!(market.ledger.hold_count(), 0);
    assert_eq!(market.replayed(PLACES).expect("a log").digest(), market.ledger.digest());
}

/// HLD-015, of services: an edited fact of a transaction is found and named.
#[test]
fn an_edited_transaction_is_found_and_named() {
    let mut market = Market::new(PLACES);
    assert_eq!(market.name(RESERVE, 1, 1, &chain()), NOW);
    let edit = |edit: &dyn Fn(Fact) -> Fact| restored(&market.ledger, edit).err();
    let of_hold = |change: &dyn Fn(HoldFact) -> HoldFact| {
        edit(&|fact| match fact {
            Fact::Hold(hold) => Fact::Hold(change(hold)),
            other => other,
        })
    };
    let of_outcome = |change: &dyn Fn(NamedFact) -> NamedFact| {
        edit(&|fact| match fact {
            Fact::Named(named) => Fact::Named(change(named)),
            other => other,
        })
    };
    let why = "its holds are not those of an open RESERVE";
    let apart = |transaction| Some(builder::Error::Transaction { transaction, why });
    assert_eq!(of_hold(&|hold| HoldFact { transaction: 2, ..hold }), apart(2));
    assert_eq!(of_outcome(&|named| NamedFact { kept: Kept::default(), ..named }), apart(1));
    let held = builder::Error::Held { user: 1, asset: USD, held: 100, found: 101 };
    assert_eq!(of_hold(&|hold| HoldFact { amount: hold.amount + 1, ..hold }), Some(held));
    let impossible = |found| match found {
        Some(builder::Error::Impossible { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    for (found, want) in [
        (of_hold(&|hold| HoldFact { number: 17, ..hold }), "neither a hold nor a freeze"),
        (of_outcome(&|named| NamedFact { round: 0, ..named }), "round out of range"),
        (of_outcome(&|named| NamedFact { op: POST, ..named }), "places are kept for no end"),
        (of_outcome(&|named| NamedFact { transaction: 0, ..named }), "no name of a transaction"),
    ] {
        assert_eq!(impossible(found), want);
    }
    let digest = of_outcome(&|named| NamedFact { hash: named.hash + 1, ..named });
    assert!(matches!(digest, Some(builder::Error::Digest { .. })), "{digest:?}");
    let brings = [leg(Place::Outside, available(1), USD, 3)];
    assert_eq!(market.name(POST, 2, 1, &brings), NOW);
    let crossed = restored(&market.ledger, |fact| match fact {
        Fact::Crossed { asset, brought } => Fact::Crossed { asset, brought: brought - 1 },
        other => other,
    });
    assert_eq!(crossed.err(), Some(builder::Error::Traded { asset: USD, brought: 1 }));
}
