//! Venues, holds and postings, judged by a second, naive model.

mod lives;
mod model;
mod names;
mod purposes;
mod transactions;
mod world;

use std::collections::BTreeMap;

use domain::account::AccountStatus;
use domain::code::Code;
use domain::posting::{ALL, Breakdown, Leg, Place};
use domain::transfer::{Decision, Direction, Op};
use wal::Record;

use crate::builder::{self, Builder};
use crate::command::Command as Asked;
use crate::entry::Entry;
use crate::fact::{Fact, HoldFact};
use crate::ledger::{Answer, Ledger, Step};
use crate::op::number::{Door, NumberedAnswer};
use crate::order::Order;
use crate::places::{ACCOUNTS_MAX, HOLDS_MAX, Places, VenuePlaces};
use crate::posted::Posted;
use crate::record::PAYLOAD_BYTES_MAX;
use crate::replay::{self, replay};
use crate::text::Text;
use crate::venue::{Command, OpenError, legs};

const PLACES: Places = Places {
    accounts_max: 200,
    outcomes_max: 1_000,
    venues: VenuePlaces { holds_max: 200, venues_max: 3, window: 1_000 },
};
const BTC: u32 = 1;
const USD: u32 = 2;

/// A ledger and its log.
struct Market {
    ledger: Ledger,
    log: Vec<(u8, Vec<u8>)>,
    next_order: u64,
}

fn available(user: u64) -> Place {
    Place::Available(user)
}

fn leg(from: Place, to: Place, asset: u32, amount: u64) -> Leg {
    Leg { from, to, asset, amount }
}

fn reserve(user: u64, asset: u32, amount: u64) -> Command {
    Command::Reserve { reference: 0, user, asset, amount, onto: 0 }
}

fn release(hold: u64, amount: u64) -> Command {
    Command::Release { reference: 0, hold, amount }
}

fn settle(all: impl IntoIterator<Item = Leg>) -> Command {
    Command::Settle { reference: 0, legs: legs(all) }
}

fn post(all: impl IntoIterator<Item = Leg>) -> Command {
    Command::Post { reference: 0, legs: legs(all) }
}

const SUCCESS: Result<(), (Code, u8)> = Ok(());

fn refused(code: Code, leg: u8) -> Result<(), (Code, u8)> {
    Err((code, leg))
}

impl Market {
    /// Venues 1 (may POST) and 2; users 1 to 4 with 1,000 of both assets.
    fn new(places: Places) -> Market {
        let mut market = Market { ledger: Ledger::new(places), log: Vec::new(), next_order: 1 };
        for (asset, symbol) in [(BTC, "BTC"), (USD, "USD")] {
            let symbol = Text::new(symbol).expect("short");
            market.ask(Asked::RegisterAsset { asset, precision: 8, symbol });
        }
        for (id, posts) in [(1, true), (2, false)] {
            let name = Text::new("venue").expect("short");
            assert_eq!(market.ask(Asked::AddVenue { id, name, posts }), Answer::Done);
            market.ask(Asked::OpenVenue { id, epoch: 1, told: 0 });
        }
        for user in 1..=4 {
            for asset in [BTC, USD] {
                market.order(Op::Deposit, user, asset, 1_000);
            }
        }
        market
    }

    fn ask(&mut self, command: Asked) -> Answer {
        match self.ledger.step(&command) {
            Step::Append(entry) => {
                let mut payload = [0; PAYLOAD_BYTES_MAX];
                let length = entry.encode(&mut payload);
                self.log.push((entry.kind() as u8, payload[..length].to_vec()));
                self.ledger.apply(&entry, self.ledger.sequence() + 1, 7)
            }
            Step::Known(answer) => answer,
            Step::Full(_) => Answer::Overloaded,
            other => panic!("{command:?}: {other:?}"),
        }
    }

    fn order(&mut self, op: Op, user: u64, asset: u32, amount: u64) -> Decision {
        self.next_order += 1;
        let order = Order {
            op,
            req_id: self.next_order.into(),
            cid: Text::EMPTY,
            user,
            asset,
            amount,
            direction: Direction::FundingToSpot,
            order_number: self.next_order,
        };
        match self.ask(Asked::Order(order)) {
            Answer::Decided(recorded) => recorded.decision,
            other => panic!("{other:?}"),
        }
    }

    fn status(&mut self, user: u64, status: AccountStatus) {
        self.ask(Asked::SetStatus { user, status });
    }

    fn posted(venue: u32, number: u64, command: &Command) -> Posted {
        let mut posted = Posted::empty();
        posted.fill(venue, number, command);
        posted
    }

    /// The next command of a venue.
    fn send(&mut self, venue: u32, command: &Command) -> Result<(), (Code, u8)> {
        let acknowledged = self.ledger.venue_state(venue).expect("registered").acknowledged;
        let answer = self.send_with(venue, command, acknowledged);
        match answer.decision {
            Decision::Success => Ok(()),
            Decision::Refused(code) => Err((code, answer.leg)),
        }
    }

    fn send_with(&mut self, venue: u32, command: &Command, acknowledged: u64) -> NumberedAnswer {
        let number = self.last(venue) + 1;
        let mut posted = Market::posted(venue, number, command);
        assert_eq!(self.ledger.door(&posted), Door::Next);
        let mut parts = Breakdown::default();
        posted.acknowledged = acknowledged;
        self.ledger.decide_posted(&mut posted, &mut parts);
        let entry = Entry::Posting(Box::new(posted.clone()));
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let length = entry.encode(&mut payload);
        let (kind, bytes) = (entry.kind() as u8, payload[..length].to_vec());
        assert_eq!(Entry::decode(kind, &bytes), Ok(entry));
        self.log.push((kind, bytes));
        let answer = self.ledger.apply_posted(&posted, &parts, self.ledger.sequence() + 1, 7);
        let again = Market::posted(venue, number, command);
        assert_eq!(self.ledger.door(&again), Door::Known(answer), "a repeat has the same answer");
        answer
    }

    /// The way of a command of venue 1.
    fn door_of(&self, number: u64, command: &Command) -> Door {
        self.ledger.door(&Market::posted(1, number, command))
    }

    fn last(&self, venue: u32) -> u64 {
        self.ledger.venue_state(venue).expect("registered").last
    }

    /// Available and held.
    fn balance(&self, user: u64, asset: u32) -> (u128, u128) {
        (self.ledger.available(user, asset), self.ledger.held(user, asset))
    }

    /// The hold of a venue's number.
    fn hold(&self, venue: u32, number: u64) -> Option<u64> {
        let mut found = Vec::new();
        assert_eq!(self.ledger.holds_of(venue, 0, 256, &mut found), None, "few holds");
        let row = found.into_iter().find(|row| row.number == number);
        row.map(|row| row.remaining)
    }

    fn facts(&self) -> Vec<String> {
        let mut facts: Vec<_> = self.ledger.facts().map(|fact| format!("{fact:?}")).collect();
        facts.sort();
        facts
    }

    /// Replays the whole log with other places.
    fn replayed(&self, places: Places) -> Result<Ledger, replay::Error> {
        let mut ledger = Ledger::new(places);
        catch_up(&mut ledger, &self.log)?;
        Ok(ledger)
    }

    fn restored(&self) -> Result<Ledger, builder::Error> {
        restored(&self.ledger, |fact| fact)
    }

    /// A recount gives every sum that is carried along.
    fn recount(&self) {
        let digest = self.ledger.facts().map(|fact| fact.digest()).fold(0, u128::wrapping_add);
        assert_eq!(self.ledger.digest(), digest);
        let mut held = BTreeMap::<(u64, u32), u128>::new();
        let mut traded = BTreeMap::<u32, i128>::new();
        let mut owned = BTreeMap::<u32, u128>::new();
        let (mut kept, mut holds) = (0, 0);
        for fact in self.ledger.facts() {
            if let Fact::Hold(HoldFact { user, asset, amount, keeps, .. }) = fact {
                *held.entry((user, asset)).or_default() += amount;
                kept += usize::from(keeps);
                holds += 1;
            }
        }
        for fact in self.ledger.facts() {
            if let Fact::Balance { user, asset, available, held: stated, traded: moved, .. } = fact
            {
                assert_eq!(held.remove(&(user, asset)).unwrap_or(0), stated, "{user} {asset}");
                *traded.entry(asset).or_default() += moved;
                *owned.entry(asset).or_default() += available + stated;
            }
        }
        assert_eq!(held, BTreeMap::new(), "holds without a balance");
        for fact in self.ledger.facts() {
            if let Fact::Crossed { asset, brought } = fact {
                *traded.entry(asset).or_default() -= brought;
            }
        }
        assert!(traded.values().all(|traded| *traded == 0), "{traded:?}");
        assert!(owned.iter().all(|(asset, owned)| self.ledger.total(*asset) == *owned));
        assert_eq!((self.ledger.holds.kept(), self.ledger.hold_count()), (kept, holds));
    }
}

fn restored(ledger: &Ledger, edit: impl Fn(Fact) -> Fact) -> Result<Ledger, builder::Error> {
    let mut builder = Builder::new(Ledger::new(PLACES));
    ledger.facts().try_for_each(|fact| builder.add(edit(fact)))?;
    builder.finish(ledger.sequence(), ledger.digest())
}

fn catch_up(ledger: &mut Ledger, log: &[(u8, Vec<u8>)]) -> Result<(), replay::Error> {
    let behind = usize::try_from(ledger.sequence()).expect("small");
    for (kind, payload) in &log[behind..] {
        let sequence = ledger.sequence() + 1;
        let (segment, offset, bytes) = (0, 0, 0);
        let (kind, time_ns, durable) = (*kind, 7, 0);
        let record = Record { sequence, durable, time_ns, kind, payload, segment, offset, bytes };
        replay(ledger, &record)?;
    }
    Ok(())
}

/// HLD-001, HLD-002: exactly the amount moves, one unit more is refused, and the refusal stands
/// after money has come.
#[test]
fn a_reserve_moves_its_amount_and_no_other_balance() {
    let mut market = Market::new(PLACES);
    let others = |market: &Market| {
        let facts = market.facts().into_iter();
        let other =
            |fact: &String| fact.contains("Balance {") && !fact.contains("user: 1, asset: 2");
        facts.filter(other).collect::<Vec<_>>()
    };
    let before = others(&market);
    assert_eq!(market.send(1, &reserve(1, USD, 400)), SUCCESS);
    assert_eq!(market.balance(1, USD), (600, 400));
    assert_eq!(others(&market), before);
    let more = reserve(1, USD, 601);
    assert_eq!(market.send(1, &more), refused(Code::InsufficientBalance, 0));
    market.order(Op::Deposit, 1, USD, 100);
    let again = market.ledger.door(&Market::posted(1, 2, &more));
    let Door::Known(NumberedAnswer { decision, .. }) = again else { panic!("{again:?}") };
    assert_eq!(decision, Decision::Refused(Code::InsufficientBalance));
    assert_eq!(market.balance(1, USD), (700, 400));
    // A hold grows, if it is the user's, of the asset and the venue's own.
    let onto = |user, asset, onto| Command::Reserve { reference: 0, user, asset, amount: 50, onto };
    assert_eq!(market.send(1, &onto(1, USD, 1)), SUCCESS);
    assert_eq!((market.hold(1, 1), market.balance(1, USD)), (Some(450), (650, 450)));
    assert_eq!(market.send(1, &onto(2, USD, 1)), refused(Code::InvalidPosting, 0));
    assert_eq!(market.send(1, &onto(1, BTC, 1)), refused(Code::InvalidPosting, 0));
    assert_eq!(market.send(1, &onto(1, USD, 2)), refused(Code::HoldNotFound, 0));
    assert_eq!(market.send(2, &onto(1, USD, 1)), refused(Code::HoldNotFound, 0));
    market.recount();
}

/// HLD-003: one of two venues gets the money, and no transfer takes held money.
#[test]
fn two_venues_and_a_transfer_cannot_use_the_same_money() {
    let mut market = Market::new(PLACES);
    assert_eq!(market.send(2, &reserve(1, USD, 700)), SUCCESS);
    assert_eq!(market.send(1, &reserve(1, USD, 700)), refused(Code::InsufficientBalance, 0));
    let short = Decision::Refused(Code::InsufficientBalance);
    assert_eq!(market.order(Op::Withdraw, 1, USD, 301), short);
    assert_eq!(market.order(Op::Withdraw, 1, USD, 300), Decision::Success);
    assert_eq!(market.balance(1, USD), (0, 700));
    assert_eq!(
        market.ledger.balances().iter().find(|row| row.0 == 1 && row.1 == USD),
        Some(&(1, USD, 700))
    );
    market.recount();
}

/// HLD-004, HLD-005, HLD-006: parts, the rest to its owner, and then it is gone.
#[test]
fn a_hold_is_settled_in_parts_and_its_rest_goes_back() {
    let mut market = Market::new(PLACES);
    let hold = Place::Hold(1);
    assert_eq!(market.send(1, &reserve(1, USD, 100)), SUCCESS);
    for _ in 0..3 {
        assert_eq!(market.send(1, &settle([leg(hold, available(2), USD, 30)])), SUCCESS);
    }
    assert_eq!((market.hold(1, 1), market.balance(2, USD)), (Some(10), (1_090, 0)));
    let before = market.balance(3, USD);
    let over = settle([leg(hold, available(3), USD, 5), leg(hold, available(3), USD, 6)]);
    assert_eq!(market.send(1, &over), refused(Code::HoldExceeded, 1));
    assert_eq!((market.balance(3, USD), market.hold(1, 1)), (before, Some(10)));
    assert_eq!(market.send(1, &release(1, 4)), SUCCESS);
    assert_eq!((market.hold(1, 1), market.balance(1, USD)), (Some(6), (904, 6)));
    assert_eq!(market.send(1, &release(1, 7)), refused(Code::HoldExceeded, 0));
    // All of nothing left books 0.
    let rest = [leg(hold, available(1), USD, ALL), leg(hold, available(2), USD, ALL)];
    assert_eq!(market.send(1, &settle(rest)), SUCCESS);
    assert_eq!((market.hold(1, 1), market.balance(1, USD)), (None, (910, 0)));
    let facts = market.ledger.hold_count();
    assert_eq!(market.send(1, &release(1, ALL)), refused(Code::HoldNotFound, 0));
    assert_eq!((market.ledger.hold_count(), market.balance(1, USD)), (facts, (910, 0)));
    market.recount();
}

/// Goal: a refused body is recorded as it was sent, also where its failing leg takes all: a repeat
/// has the same answer.
#[test]
fn all_into_a_hold_that_overflows_is_refused_as_sent() {
    let mut market = Market::new(PLACES);
    assert_eq!(market.order(Op::Deposit, 1, USD, u64::MAX - 1), Decision::Success);
    assert_eq!(market.send(1, &reserve(1, USD, u64::MAX - 1)), SUCCESS);
    for number in [2, 3] {
        assert_eq!(market.send(1, &reserve(1, USD, 9)), SUCCESS, "{number}");
    }
    let all = |from, to| leg(Place::Hold(from), Place::Hold(to), USD, ALL);
    let body = settle([all(2, 3), all(3, 1)]);
    assert_eq!(market.send(1, &body), refused(Code::Overflow, 1));
    assert_eq!(market.hold(1, 2), Some(9));
    assert_eq!(market.replayed(PLACES).expect("a log").digest(), market.ledger.digest());
    market.recount();
}

/// HLD-007: a status stops new work, and no end.
#[test]
fn a_frozen_account_begins_nothing_and_its_holds_end() {
    for (status, code) in [
        (AccountStatus::Frozen, Code::AccountFrozen),
        (AccountStatus::Disabled, Code::AccountDisabled),
    ] {
        let mut market = Market::new(PLACES);
        assert_eq!(market.send(1, &reserve(1, USD, 100)), SUCCESS);
        market.status(1, status);
        assert_eq!(market.send(1, &reserve(1, USD, 1)), refused(code, 0));
        let pay = post([leg(available(1), available(2), USD, 1)]);
        assert_eq!(market.send(1, &pay), refused(code, 0));
        let paid = post([leg(available(2), available(1), USD, 1)]);
        let want = if status == AccountStatus::Disabled { refused(code, 0) } else { SUCCESS };
        assert_eq!(market.send(1, &paid), want);
        assert_eq!(market.send(1, &settle([leg(Place::Hold(1), available(2), USD, 60)])), SUCCESS);
        assert_eq!(market.send(1, &release(1, ALL)), SUCCESS);
        assert_eq!(market.hold(1, 1), None);
        market.recount();
    }
}

/// HLD-008: a venue has no hand on another venue's hold.
#[test]
fn a_venue_ends_its_own_holds_only() {
    let mut market = Market::new(PLACES);
    assert_eq!(market.send(1, &reserve(1, USD, 100)), SUCCESS);
    let before = market.balance(1, USD);
    let take = settle([leg(Place::Hold(1), available(2), USD, 1)]);
    assert_eq!(market.send(2, &take), refused(Code::HoldNotFound, 0));
    assert_eq!(market.send(2, &release(1, ALL)), refused(Code::HoldNotFound, 0));
    assert_eq!((market.balance(1, USD), market.hold(1, 1)), (before, Some(100)));
}

/// HLD-010: a full table refuses new work and no end; the log replays with other tables.
#[test]
fn a_full_table_of_holds_refuses_reserves_and_no_end() {
    let small = Places { venues: VenuePlaces { holds_max: 2, ..PLACES.venues }, ..PLACES };
    let mut market = Market::new(small);
    for _ in 0..2 {
        assert_eq!(market.send(1, &reserve(1, USD, 10)), SUCCESS);
    }
    assert_eq!(market.send(1, &reserve(1, USD, 10)), refused(Code::Overloaded, 0));
    let onto = Command::Reserve { reference: 0, user: 1, asset: USD, amount: 5, onto: 2 };
    assert_eq!(market.send(1, &onto), SUCCESS);
    assert_eq!(market.send(1, &settle([leg(Place::Hold(1), available(2), USD, 5)])), SUCCESS);
    assert_eq!(market.send(1, &release(1, ALL)), SUCCESS);
    assert_eq!(market.send(1, &reserve(1, USD, 10)), SUCCESS);
    let larger = market.replayed(PLACES).expect("a log");
    assert_eq!(larger.digest(), market.ledger.digest());
    let least = Places { venues: VenuePlaces { holds_max: 1, ..small.venues }, ..small };
    let full = market.replayed(least);
    assert!(matches!(full, Err(replay::Error::Full { key, .. }) if key == HOLDS_MAX));
    let few = Places { accounts_max: 4, ..PLACES };
    let full = market.replayed(few);
    assert!(matches!(full, Err(replay::Error::Full { key, .. }) if key == ACCOUNTS_MAX));
}

/// L13: with full tables of balances, every hold still pays one new balance; a SETTLE that makes
/// more is refused, and so is a DEPOSIT that would take the place.
#[test]
fn a_hold_keeps_a_place_for_one_balance() {
    // Four balances: two users with both assets would fill it.
    let places = Places { accounts_max: 2, ..PLACES };
    let mut market = Market { ledger: Ledger::new(places), log: Vec::new(), next_order: 1 };
    for (asset, symbol) in [(BTC, "BTC"), (USD, "USD"), (3, "EUR")] {
        let symbol = Text::new(symbol).expect("short");
        market.ask(Asked::RegisterAsset { asset, precision: 8, symbol });
    }
    let name = Text::new("venue").expect("short");
    market.ask(Asked::AddVenue { id: 1, name, posts: true });
    market.order(Op::Deposit, 1, USD, 1_000);
    market.order(Op::Deposit, 1, BTC, 1_000);
    market.order(Op::Deposit, 2, BTC, 1_000);
    assert_eq!(market.send(1, &reserve(1, USD, 100)), SUCCESS);
    assert_eq!(market.ledger.balances_left(), 0, "the hold keeps the last place");
    let full = Decision::Refused(Code::Overloaded);
    assert_eq!(market.order(Op::Deposit, 1, 3, 5), full);
    let pay = post([leg(available(1), available(2), USD, 1)]);
    assert_eq!(market.send(1, &pay), refused(Code::Overloaded, 0));
    assert_eq!(market.send(1, &reserve(1, BTC, 1)), refused(Code::Overloaded, 0));
    let nobody = settle([leg(Place::Hold(1), available(9), USD, 5)]);
    assert_eq!(market.send(1, &nobody), refused(Code::TargetAccountNotFound, 0));
    assert_eq!(market.send(1, &settle([leg(Place::Hold(1), available(2), USD, 5)])), SUCCESS);
    assert_eq!(market.balance(2, USD), (5, 0));
    market.recount();
    // The place is used. Breakdown to balances that are there go on, and so does the end.
    assert_eq!(market.send(1, &settle([leg(Place::Hold(1), available(2), USD, 5)])), SUCCESS);
    assert_eq!(market.send(1, &release(1, ALL)), SUCCESS);
    assert_eq!(market.replayed(PLACES).expect("a log").digest(), market.ledger.digest());
    market.recount();
}

/// HLD-011, HLD-012: a repeat, another body, a gap, an acknowledgement.
#[test]
fn a_number_is_decided_once_and_kept_until_it_is_acknowledged() {
    let mut market = Market::new(PLACES);
    let first = reserve(1, USD, 10);
    for _ in 0..5 {
        assert_eq!(market.send(1, &first), SUCCESS);
    }
    assert!(matches!(market.door_of(1, &first), Door::Known(_)));
    assert_eq!(market.door_of(1, &reserve(1, USD, 11)), Door::Violation);
    assert_eq!(market.door_of(7, &first), Door::Gap(6));
    let digest = market.ledger.digest();
    market.send_with(1, &first, 3);
    assert_ne!(market.ledger.digest(), digest);
    assert_eq!(market.door_of(3, &first), Door::Forgotten);
    assert!(matches!(market.door_of(4, &first), Door::Known(_)));
    let before = market.ledger.digest();
    market.ledger.forget_all();
    assert_eq!(market.ledger.digest(), before, "what has left still counts");
    let state = market.ledger.venue_state(1).expect("registered");
    assert_eq!((state.last, state.acknowledged), (6, 3));
    for ledger in [market.replayed(PLACES).expect("a log"), market.restored().expect("facts")] {
        assert_eq!(ledger.digest(), before);
        assert_eq!(ledger.venue_state(1), Some(state));
        let again = ledger.door(&Market::posted(1, 4, &first));
        assert_eq!(again, market.door_of(4, &first));
    }
    market.recount();
}

/// Goal: a venue whose answers leave late does not hold back those of another: its window stays
/// within its memory.
#[test]
fn the_answers_of_a_venue_leave_with_its_own_commands() {
    let venues = VenuePlaces { window: 64, ..PLACES.venues };
    let mut market = Market::new(Places { venues, ..PLACES });
    let unknown = release(99, 1);
    let held = |market: &Market, id| market.ledger.venues.get(id).expect("registered").window();
    for _ in 0..64 {
        market.send_with(1, &unknown, 0);
    }
    let (_, places) = held(&market, 2);
    // Venue 1 has forgotten all, and sends no more.
    market.send_with(1, &unknown, 64);
    for number in 0..500 {
        market.send_with(2, &unknown, number / 64 * 64);
        let (answers, now) = held(&market, 2);
        assert!(answers <= 65 && now == places, "{answers} of {now}");
    }
    assert_eq!(held(&market, 1).0, 63);
    market.ledger.forget_all();
    assert_eq!(held(&market, 1).0, 1);
    market.recount();
}

/// A venue is registered once, opened with rising epochs, closed and reopened.
#[test]
fn an_open_is_decided_by_this_table() {
    let mut market = Market::new(PLACES);
    let open =
        |market: &mut Market, id, epoch, told| market.ask(Asked::OpenVenue { id, epoch, told });
    let opened = |epoch, last| Answer::Opened { epoch, last, acknowledged: 0 };
    let refused = Answer::NotOpened;
    market.send(1, &reserve(1, USD, 10)).expect("enough");
    assert_eq!(open(&mut market, 1, 5, 1), opened(5, 1));
    assert_eq!(open(&mut market, 1, 5, 1), refused(OpenError::Fenced { epoch: 5 }));
    assert_eq!(open(&mut market, 1, 4, 1), refused(OpenError::Fenced { epoch: 5 }));
    assert_eq!(open(&mut market, 1, 0, 1), opened(6, 1));
    for epoch in [7 + (1 << 32), u64::MAX] {
        let too_high = refused(OpenError::TooHigh { epoch: 6 });
        assert_eq!(open(&mut market, 1, epoch, 1), too_high);
    }
    let before = market.ledger.sequence();
    let ahead = refused(OpenError::AheadOfLog { told: 2, last: 1 });
    assert_eq!(open(&mut market, 1, 7, 2), ahead);
    assert_eq!(market.ledger.sequence(), before, "nothing is recorded");
    assert_eq!(open(&mut market, 9, 1, 0), refused(OpenError::Unknown));
    let close = |id, closed| Asked::CloseVenue { id, closed };
    assert_eq!(market.ask(close(1, true)), Answer::Done);
    assert_eq!(market.ask(close(1, true)), Answer::Done);
    assert_eq!(open(&mut market, 1, 7, 1), refused(OpenError::Closed));
    assert_eq!(market.ask(close(1, false)), Answer::Done);
    let highest = 6 + (1 << 32);
    assert_eq!(open(&mut market, 1, highest, 1), opened(highest, 1));
    assert_eq!(market.ask(close(9, true)), refused(OpenError::Unknown));
    let name = |text| Text::new(text).expect("short");
    let add = |id, text, posts| Asked::AddVenue { id, name: name(text), posts };
    assert_eq!(market.ask(add(1, "venue", true)), Answer::Done);
    assert_eq!(market.ask(add(1, "venue", false)), refused(OpenError::Conflict));
    assert_eq!(market.ask(add(1, "other", true)), refused(OpenError::Conflict));
    assert_eq!(market.ask(add(0, "venue", true)), refused(OpenError::Conflict));
    assert_eq!(market.ask(add(3, "third", true)), Answer::Done);
    assert_eq!(market.ask(add(4, "fourth", true)), Answer::Overloaded);
    assert_eq!(market.replayed(PLACES).expect("a log").digest(), market.ledger.digest());
    market.recount();
}

/// HLD-015: a hold edited in a snapshot is found and named.
#[test]
fn an_edited_hold_is_found_and_named() {
    let mut market = Market::new(PLACES);
    market.send(1, &reserve(1, USD, 10)).expect("enough");
    market.send(1, &settle([leg(Place::Hold(1), available(2), USD, 3)])).expect("its own");
    assert_eq!(market.restored().expect("facts").digest(), market.ledger.digest());
    let edited = restored(&market.ledger, |fact| match fact {
        Fact::Hold(hold) => Fact::Hold(HoldFact { amount: hold.amount + 1, ..hold }),
        other => other,
    });
    let held = builder::Error::Held { user: 1, asset: USD, held: 7, found: 8 };
    assert_eq!(edited.err(), Some(held));
    let traded = restored(&market.ledger, |fact| match fact {
        Fact::Balance { user: 2, asset: USD, available, held, traded, totals } => {
            let (user, asset) = (2, USD);
            let (available, traded) = (available + 1, traded + 1);
            Fact::Balance { user, asset, available, held, traded, totals }
        }
        other => other,
    });
    assert_eq!(traded.err(), Some(builder::Error::Traded { asset: USD, brought: 1 }));
}

/// MLT-001, MLT-006: a trade of six legs is booked, and refused at its k-th leg none is.
#[test]
fn a_trade_is_booked_as_a_whole_or_not_at_all() {
    let trade = || {
        [
            leg(Place::Hold(1), available(2), USD, 90),
            leg(Place::Hold(2), available(1), BTC, 9),
            // Fees: out of the hold, and out of the money that has just arrived.
            leg(Place::Hold(1), available(3), USD, 2),
            leg(available(2), available(3), USD, 1),
            leg(Place::Hold(1), available(1), USD, ALL),
            // A rebate out of the taker's fee.
            leg(available(3), available(2), USD, 1),
        ]
    };
    let begun = || {
        let mut market = Market::new(PLACES);
        assert_eq!(market.send(1, &reserve(1, USD, 100)), SUCCESS);
        assert_eq!(market.send(1, &reserve(2, BTC, 9)), SUCCESS);
        market
    };
    for index in 0..6_u8 {
        let mut market = begun();
        let mut legs = trade();
        let leg = &mut legs[usize::from(index)];
        (leg.from, leg.amount) = (Place::Hold(77), 1);
        let balances = market.ledger.balances();
        assert_eq!(market.send(1, &settle(legs)), refused(Code::HoldNotFound, index));
        assert_eq!(market.ledger.balances(), balances);
        assert_eq!((market.hold(1, 1), market.hold(1, 2)), (Some(100), Some(9)));
        market.recount();
    }
    let mut market = begun();
    assert_eq!(market.send(1, &settle(trade())), SUCCESS);
    assert_eq!([1, 2, 3].map(|user| market.balance(user, USD).0), [908, 1_090, 1_002]);
    assert_eq!([1, 2].map(|user| market.balance(user, BTC).0), [1_009, 991]);
    assert_eq!(market.ledger.hold_count(), 0);
    // One unit more than has arrived.
    let mut market = begun();
    let mut legs = trade();
    legs[5].amount = 4;
    assert_eq!(market.send(1, &settle(legs)), refused(Code::InvalidPosting, 5));
    // A self-trade.
    assert_eq!(market.send(1, &reserve(1, BTC, 5)), SUCCESS);
    let own =
        [leg(Place::Hold(1), available(1), USD, 50), leg(Place::Hold(4), available(1), BTC, 5)];
    assert_eq!(market.send(1, &settle(own)), SUCCESS);
    assert_eq!((market.balance(1, USD), market.balance(1, BTC)), ((950, 50), (1_000, 0)));
    // A hold pays another one of the same owner and asset, and of no other.
    assert_eq!(market.send(1, &reserve(1, USD, 10)), SUCCESS);
    let amend = |to, amount| settle([leg(Place::Hold(1), Place::Hold(to), USD, amount)]);
    assert_eq!(market.send(1, &amend(6, 20)), SUCCESS);
    assert_eq!((market.hold(1, 1), market.hold(1, 6)), (Some(30), Some(30)));
    assert_eq!(market.send(1, &amend(2, 20)), refused(Code::InvalidPosting, 0));
    assert_eq!(market.send(1, &amend(7, 20)), refused(Code::HoldNotFound, 0));
    market.recount();
}

/// MLT-002: A-B-C-D as one POST has the balances of the specification's table.
#[test]
fn a_chain_of_payments_needs_what_its_table_sets_apart() {
    let chain = || {
        post([
            leg(available(1), available(2), USD, 100),
            leg(available(2), available(3), USD, 50),
            leg(available(3), available(4), USD, 200),
        ])
    };
    for (has, want) in [(150, SUCCESS), (149, refused(Code::InsufficientBalance, 2))] {
        let mut market = Market::new(PLACES);
        for (user, amount) in [(1, 900), (2, 1_000), (3, 1_000 - has)] {
            market.order(Op::Withdraw, user, USD, amount);
        }
        assert_eq!(market.send(1, &chain()), want);
        if want == SUCCESS {
            let after = [1, 2, 3, 4].map(|user| market.balance(user, USD).0);
            assert_eq!(after, [0, 50, 0, 1_200]);
        }
        market.recount();
    }
}

/// MLT-005, the lines of UBSCore: each is answered so, recorded, and changes no balance.
#[test]
fn bad_legs_are_answered_so_and_change_nothing() {
    let mut market = Market::new(PLACES);
    market.send(1, &reserve(1, USD, 100)).expect("enough");
    let hold = Place::Hold(1);
    let frozen = |user| Place::Frozen { user, purpose: 1 };
    let invalid = refused(Code::InvalidPosting, 0);
    let table = [
        (settle([]), invalid),
        (post([]), invalid),
        (settle([leg(hold, hold, USD, 1)]), invalid),
        (settle([leg(hold, available(2), USD, 0)]), invalid),
        (release(1, 0), invalid),
        (reserve(1, USD, 0), invalid),
        (reserve(1, USD, ALL), invalid),
        (post([leg(available(1), available(2), USD, ALL)]), invalid),
        (post([leg(available(1), Place::Outside, USD, 1)]), invalid),
        (post([leg(Place::Outside, available(1), USD, 1)]), invalid),
        (post([leg(hold, available(1), USD, 1)]), invalid),
        (post([leg(available(1), hold, USD, 1)]), invalid),
        (post([leg(available(1), frozen(1), USD, 1)]), invalid),
        (settle([leg(hold, frozen(1), USD, 1)]), invalid),
        (settle([leg(available(1), available(2), USD, 1)]), invalid),
        (settle([leg(hold, available(2), BTC, 1)]), invalid),
        (settle([leg(hold, Place::Hold(0), USD, 1)]), refused(Code::HoldNotFound, 0)),
        (reserve(1, 9, 1), refused(Code::InvalidAsset, 0)),
        (reserve(0, USD, 1), refused(Code::InvalidRequest, 0)),
        (reserve(1 << 63, USD, 1), refused(Code::InvalidRequest, 0)),
        (reserve(9, USD, 1), refused(Code::SourceAccountNotFound, 0)),
        (settle([leg(hold, available(0), USD, 1)]), refused(Code::InvalidRequest, 0)),
        (
            settle([leg(available(9), available(1), USD, 1)]),
            refused(Code::SourceAccountNotFound, 0),
        ),
        (settle([leg(hold, available(9), USD, 1)]), refused(Code::TargetAccountNotFound, 0)),
    ];
    let balances = market.ledger.balances();
    for (command, want) in table {
        let last = market.last(1);
        assert_eq!(market.send(1, &command), want, "{command:?}");
        assert_eq!((market.ledger.balances(), market.last(1)), (balances.clone(), last + 1));
        assert_eq!((market.hold(1, 1), market.ledger.hold_count()), (Some(100), 1));
    }
    // Venue 2 may not POST.
    let pay = post([leg(available(1), available(2), USD, 1)]);
    assert_eq!(market.send(2, &pay), invalid);
    // A hold beyond 2^64 - 1.
    for _ in 0..2 {
        market.order(Op::Deposit, 1, BTC, u64::MAX - 1);
    }
    assert_eq!(market.send(1, &reserve(1, BTC, u64::MAX - 1)), SUCCESS);
    let onto = market.last(1);
    let grow = |amount| Command::Reserve { reference: 0, user: 1, asset: BTC, amount, onto };
    assert_eq!(market.send(1, &grow(2)), refused(Code::Overflow, 0));
    assert_eq!(market.send(1, &grow(1)), SUCCESS);
    assert_eq!(market.replayed(PLACES).expect("a log").digest(), market.ledger.digest());
    market.recount();
}
