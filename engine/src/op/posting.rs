//! One judge and one booking for every operation: a transfer's operation is a posting of one leg.
//! The table of operations, `domain::transfer::op`, is all that tells them apart.

use arrayvec::ArrayVec;
use domain::account::{AccountStatus, UserId};
use domain::code::Code;
use domain::posting::{ALL, Breakdown, Leg, PLACES_MAX, Place, PlaceKind};
use domain::transfer::Op;
use domain::transfer::op::Effect;

use crate::crossed::crossing;
use crate::fact::HoldFact;
use crate::holds::{Hold, HoldKey, freeze_key, hold_key};
use crate::ledger::Ledger;
use crate::places::{ACCOUNTS_MAX, HOLDS_MAX};

/// A posting to be judged and booked.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub(super) op: Op,
    /// The venue that owns its holds; 0 for an operation by name.
    pub(super) venue: u32,
    /// The number of the command: the name of a new hold.
    pub(super) number: u64,
    /// Frozen places may be named.
    pub(super) freezes: bool,
    /// The outside may be named, beside the places of the operation.
    pub(super) outside: bool,
}

impl Ask {
    /// An operation of a transfer.
    #[inline]
    pub(super) fn of_transfer(op: Op) -> Ask {
        Ask { op, venue: 0, number: 0, freezes: false, outside: false }
    }

    /// An operation of a service.
    #[inline]
    pub(super) fn of_service(op: Op) -> Ask {
        Ask { freezes: true, ..Ask::of_transfer(op) }
    }

    /// The key of a hold or a freeze; `None` for other places.
    fn key(&self, place: Place, asset: u32) -> Option<HoldKey> {
        match place {
            Place::Hold(0) => Some(hold_key(self.venue, self.number)),
            Place::Hold(number) => Some(hold_key(self.venue, number)),
            Place::Frozen { user, purpose } => Some(freeze_key(user, asset, purpose)),
            Place::Available(_) | Place::Outside => None,
        }
    }
}

/// The refusal of a posting: the first leg that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) leg: u8,
    pub(super) code: Code,
}

/// Decides a posting by the state alone. Within a leg, form comes first, then asset, hold, account,
/// status and balance.
///
/// `parts` is empty before, and has the parts of a posting that is admitted. In `legs` the amounts
/// [`ALL`] and the owner of a release are replaced, each with a bit in `took_all`.
///
/// # Errors
/// [`Refusal`]: `parts` are of no use. `legs` and `took_all` give the body as it was sent.
#[inline]
pub(super) fn judge(
    ledger: &Ledger,
    ask: Ask,
    legs: &mut [Leg],
    took_all: &mut u16,
    parts: &mut Breakdown,
) -> Result<(), Refusal> {
    if legs.is_empty() || legs.len() > ask.op.row().legs_max {
        return Err(Refusal { leg: 0, code: Code::InvalidPosting });
    }
    for (index, leg) in (0..).zip(legs) {
        let mut all = false;
        let judged = judge_leg(ledger, ask, leg, &mut all, parts);
        // Also of a leg that fails behind it: its amount is replaced already.
        *took_all |= u16::from(all) << index;
        judged.map_err(|code| Refusal { leg: index, code })?;
    }
    Ok(())
}

/// `all` is set once the leg's amount is replaced by all that was left.
#[inline]
fn judge_leg(
    ledger: &Ledger,
    ask: Ask,
    leg: &mut Leg,
    all: &mut bool,
    parts: &mut Breakdown,
) -> Result<(), Code> {
    let row = ask.op.row();
    check_form(ask, leg)?;
    let source = hold_of(ledger, ask, leg.from, leg.asset);
    if row.pays_owner {
        let hold = source.ok_or(Code::HoldNotFound)?;
        (leg.to, leg.asset) = (Place::Available(hold.user), hold.asset);
    }
    if !ledger.assets.contains_key(&leg.asset) {
        return Err(Code::InvalidAsset);
    }
    let target = hold_of(ledger, ask, leg.to, leg.asset);
    check_holds(ask.op, leg, source, target)?;
    check_accounts(ledger, ask.op, leg, parts)?;
    let (held, part) = (source.map_or(0, Hold::amount), parts.at(leg.from, leg.asset));
    *all = leg.amount == ALL && leg.from.kind() == PlaceKind::Hold;
    if *all {
        // Earlier legs have checked that it is not below 0.
        let left = held + part.arriving - part.apart;
        leg.amount = u64::try_from(left).expect("a hold is bounded by its legs");
    }
    let apart = parts.take(leg.from, leg.asset, leg.amount.into(), |_| true);
    let (has, short) = match leg.from {
        Place::Outside => (apart, Code::InsufficientBalance),
        Place::Available(_) if row.spends_arrived => (0, Code::InvalidPosting),
        Place::Available(user) => (ledger.available(user, leg.asset), Code::InsufficientBalance),
        Place::Frozen { .. } => (held, Code::InsufficientFrozen),
        Place::Hold(_) => (held, Code::HoldExceeded),
    };
    if apart > has {
        return Err(short);
    }
    parts.bring(leg.to, leg.asset, leg.amount.into(), |_| true);
    if let Place::Hold(_) = leg.to {
        let part = parts.at(leg.to, leg.asset);
        let grown = target.map_or(0, Hold::amount) + part.arriving - part.apart;
        if grown > u128::from(u64::MAX) {
            return Err(Code::Overflow);
        }
    }
    Ok(())
}

/// The checks that need no state.
#[inline]
pub(super) fn check_form(ask: Ask, leg: &Leg) -> Result<(), Code> {
    let row = ask.op.row();
    let (from, to) = (leg.from.kind(), leg.to.kind());
    let user = |place: Place| place.user().is_none_or(|user| UserId::new(user).is_some());
    let frozen = |place: Place| match place {
        Place::Frozen { purpose, .. } => ask.freezes && purpose != 0,
        _ => true,
    };
    // ALL is an amount of a hold; as an amount of a transfer it is a number like others.
    let amount =
        leg.amount != 0 && (leg.amount != ALL || from == PlaceKind::Hold || !ask.op.is_posting());
    let outside = |kind| ask.outside && kind == PlaceKind::Outside;
    let places = (row.from.has(from) || outside(from))
        && (row.to.has(to) || outside(to))
        && leg.from != leg.to
        && frozen(leg.from)
        && frozen(leg.to)
        && (from, to) != (PlaceKind::Frozen, PlaceKind::Frozen)
        // Money that has just arrived cannot be set apart again.
        && !(row.spends_arrived && (from, to) == (PlaceKind::Available, PlaceKind::Hold));
    match () {
        () if !amount || !places => Err(Code::InvalidPosting),
        // The payee of a release follows from its hold.
        () if !user(leg.from) || !row.pays_owner && !user(leg.to) => Err(Code::InvalidRequest),
        () => Ok(()),
    }
}

/// The row of a hold or a freeze.
#[inline]
fn hold_of(ledger: &Ledger, ask: Ask, place: Place, asset: u32) -> Option<&Hold> {
    ledger.holds.get(ask.key(place, asset)?)
}

/// The holds of a leg are there, and both ends have the owner and the asset of the hold.
#[inline]
fn check_holds(
    op: Op,
    leg: &Leg,
    source: Option<&Hold>,
    target: Option<&Hold>,
) -> Result<(), Code> {
    if let Place::Hold(_) = leg.from {
        let hold = source.ok_or(Code::HoldNotFound)?;
        if hold.asset != leg.asset {
            return Err(Code::InvalidPosting);
        }
    }
    if let Place::Hold(number) = leg.to {
        let owner = match source {
            Some(hold) => Some(hold.user),
            None => leg.from.user(),
        };
        match target {
            // Only a RESERVE makes the hold of its own number.
            None if number != 0 || op.row().held != Effect::More => {
                return Err(Code::HoldNotFound);
            }
            Some(hold) if hold.asset != leg.asset || Some(hold.user) != owner => {
                return Err(Code::InvalidPosting);
            }
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// The accounts are there, and their statuses admit the leg.
#[inline]
pub(super) fn check_accounts(
    ledger: &Ledger,
    op: Op,
    leg: &Leg,
    parts: &Breakdown,
) -> Result<(), Code> {
    // An earlier leg makes the account of its payee.
    let made = |user| parts.iter().any(|part| part.place.user() == Some(user));
    let status = |user| {
        let made = || made(user).then_some(AccountStatus::Active);
        ledger.status(user).or_else(made)
    };
    // An operator unfreezes money of any account.
    if let (Place::Frozen { user, .. }, Place::Available(payee)) = (leg.from, leg.to)
        && user == payee
    {
        return Ok(());
    }
    if let Some(user) = leg.from.user() {
        op.admits_payer(status(user))?;
    }
    match leg.to.user() {
        Some(user) if leg.from.user() != Some(user) => op.admits_payee(status(user)),
        Some(_) | None => Ok(()),
    }
}

/// The key that bounds an account, a balance, a hold or a freeze of an admitted posting which
/// cannot be made; `None` if all can.
///
/// A hold keeps one balance for its life: the SETTLE that needs it always finds it.
#[inline]
pub(super) fn lacks_place(ledger: &Ledger, ask: Ask, parts: &Breakdown) -> Option<&'static str> {
    let free = ledger.balances_left();
    // Nearly always: no posting makes more.
    if [ledger.accounts_left(), free].into_iter().all(|left| left >= PLACES_MAX)
        && (ledger.holds_left() >= PLACES_MAX || !ask.op.is_posting())
    {
        return None;
    }
    let made = made(ledger, ask, parts);
    let accounts = made.accounts > ledger.accounts_left()
        || made.balances.saturating_sub(made.keepers) + made.holds > free;
    let holds = made.holds + made.freezes > ledger.holds_left();
    accounts.then_some(ACCOUNTS_MAX).or(holds.then_some(HOLDS_MAX))
}

/// The rows that a posting makes.
#[derive(Default)]
struct Made {
    accounts: usize,
    balances: usize,
    holds: usize,
    freezes: usize,
    /// Holds of the posting that keep a balance.
    keepers: usize,
}

#[inline]
fn made(ledger: &Ledger, ask: Ask, parts: &Breakdown) -> Made {
    let mut made = Made::default();
    for (index, part) in parts.iter().enumerate() {
        let before = || parts.iter().take(index);
        if let Some(user) = part.place.user() {
            let named = |other: Place| other.user() == Some(user);
            if ledger.accounts.get(user).is_none() && !before().any(|part| named(part.place)) {
                made.accounts += 1;
            }
            let again = || before().any(|other| named(other.place) && other.asset == part.asset);
            if ledger.balances.get(user, part.asset).is_none() && !again() {
                made.balances += 1;
            }
        }
        let key = ask.key(part.place, part.asset);
        let row = key.and_then(|key| ledger.holds.get(key));
        match part.place {
            Place::Hold(_) if row.is_none() => made.holds += 1,
            Place::Frozen { .. } if row.is_none() => made.freezes += 1,
            Place::Hold(_) => made.keepers += usize::from(row.is_some_and(|hold| hold.keeps)),
            _ => {}
        }
    }
    made
}

/// Where and when a posting is booked.
#[derive(Clone, Copy)]
pub(super) struct Booking {
    pub(super) ask: Ask,
    pub(super) reference: u64,
    pub(super) record: wal::Sequence,
    pub(super) time_ns: u64,
}

/// The change of one balance.
pub(super) struct Change {
    pub(super) user: u64,
    pub(super) asset: u32,
    pub(super) held: i128,
    pub(super) traded: i128,
}

/// Books an admitted posting: each place loses its amount apart and gains its arriving amount.
pub(super) fn book(ledger: &mut Ledger, booking: Booking, parts: &Breakdown) {
    let mut changes = ArrayVec::<Change, PLACES_MAX>::new();
    for part in parts.iter() {
        let moved = signed(part.arriving) - signed(part.apart);
        let key = booking.ask.key(part.place, part.asset);
        let (owner, held) = match part.place {
            Place::Available(user) => (user, 0),
            Place::Frozen { user, .. } => (user, moved),
            Place::Hold(_) => (owner_of(ledger, key, parts), moved),
            Place::Outside => unreachable!("the outside has no part"),
        };
        let known =
            changes.iter_mut().find(|change| (change.user, change.asset) == (owner, part.asset));
        match known {
            Some(change) => {
                change.held += held;
                change.traded += moved;
            }
            None => {
                changes.push(Change { user: owner, asset: part.asset, held, traded: moved });
            }
        }
    }
    let mut to_use = changes.iter().filter(|change| book_change(ledger, change)).count();
    for part in parts.iter() {
        let Some(key) = booking.ask.key(part.place, part.asset) else { continue };
        let moved = signed(part.arriving) - signed(part.apart);
        if let Some(row) = ledger.holds.get(key) {
            let amount = row.amount().checked_add_signed(moved).expect("the judge has checked it");
            let mut keeps = row.keeps;
            if keeps && to_use > 0 {
                // Its place is taken by a balance that this posting has made.
                (keeps, to_use) = (false, to_use - 1);
            }
            let (before, after) = ledger.set_hold(key, amount, keeps);
            ledger.replace(Some(before), after);
        } else if moved > 0 {
            let owner = part.place.user().unwrap_or_else(|| owner_of(ledger, Some(key), parts));
            insert_hold(ledger, booking, part.place, owner, part.asset, moved.unsigned_abs());
        }
    }
}

/// The owner of a hold: of a new one the user that pays it.
fn owner_of(ledger: &Ledger, key: Option<HoldKey>, parts: &Breakdown) -> u64 {
    let row = key.and_then(|key| ledger.holds.get(key));
    let payer = || parts.iter().find_map(|part| part.place.user());
    row.map(|row| row.user).or_else(payer).expect("a new hold is paid by a user")
}

/// Books the one leg of a transfer: it adds to the sum of its operation, and not to the sum
/// of the postings.
#[inline]
pub(super) fn book_transfer(ledger: &mut Ledger, op: Op, user: u64, asset: u32, amount: u64) {
    let (before, after) = ledger.balances.set_totals(user, asset, |totals| totals.with(op, amount));
    // Nobody has a balance without an account.
    if before.is_none() && ledger.status(user).is_none() {
        ledger.set_status(user, AccountStatus::Active);
    }
    ledger.exchange(before, after);
    let entry = ledger.assets.get_mut(&asset).expect("an order of an unknown asset is refused");
    // The balance is part of it, and a u128 holds 2^64 of the largest amounts.
    let total = op.row().available.of(entry.total, u128::from(amount));
    entry.total = total.unwrap_or_else(|| panic!("{} and {op} of {amount}", entry.total));
}

/// Books the money of booked legs that came from outside of Spot, or went there.
pub(super) fn book_crossings(ledger: &mut Ledger, legs: &[Leg]) {
    for leg in legs {
        let brought = crossing(leg);
        if brought != 0 {
            ledger.cross(leg.asset, brought);
        }
    }
}

/// Returns whether the balance was made.
pub(super) fn book_change(ledger: &mut Ledger, change: &Change) -> bool {
    let Change { user, asset, held, traded } = *change;
    if ledger.status(user).is_none() {
        ledger.set_status(user, AccountStatus::Active);
    }
    let (position, before) = ledger.balances.sums_of(user, asset);
    let sums = ledger.balances.sums_mut(position);
    sums.held = sums.held.checked_add_signed(held).expect("a hold is part of what is held");
    sums.traded = sums.traded.checked_add(traded).expect("a balance is bounded");
    let entry = ledger.assets.get_mut(&asset).expect("the judge has found it");
    entry.held = entry.held.checked_add_signed(held).expect("a hold is part of what is held");
    let balance = ledger.balances.get(user, asset).expect("it has sums");
    let after = ledger.balances.fact(balance);
    ledger.exchange(before, after);
    before.is_none()
}

fn insert_hold(
    ledger: &mut Ledger,
    booking: Booking,
    place: Place,
    user: u64,
    asset: u32,
    amount: u128,
) {
    let Booking { ask, reference, record, time_ns } = booking;
    let (venue, number, purpose, reference) = match place {
        Place::Frozen { purpose, .. } => (0, 0, purpose, 0),
        _ => (ask.venue, ask.number, 0, reference),
    };
    let keeps = venue != 0 && ledger.holds.keeps_places();
    let fact = HoldFact {
        venue,
        transaction: 0,
        number,
        purpose,
        user,
        asset,
        amount,
        reference,
        record,
        time_ns,
        keeps,
    };
    let sums = ledger.balances.get(user, asset).expect("its balance is booked before").sums;
    let row = Hold::new(fact, sums);
    ledger.add_hold(row);
    ledger.exchange(None, row.fact());
}

pub(super) fn signed(amount: u128) -> i128 {
    i128::try_from(amount).expect("a balance is bounded")
}

#[cfg(test)]
mod tests {
    use domain::transfer::{Direction, Op};

    use super::*;
    use crate::command::Command;
    use crate::fact::Fact;
    use crate::ledger::Step;
    use crate::order::Order;
    use crate::places::{Places, VenuePlaces};
    use crate::text::Text;

    const USD: u32 = 2;

    fn ask(ledger: &mut Ledger, command: &Command) {
        let Step::Append(entry) = ledger.step(command) else { panic!("{command:?}") };
        ledger.apply(&entry, ledger.sequence() + 1, 7);
    }

    /// Users 1 and 2 with 100 each.
    fn ledger() -> Ledger {
        let venues = VenuePlaces { holds_max: 3, venues_max: 1, window: 8 };
        let places = Places { accounts_max: 50, outcomes_max: 10, venues };
        let mut ledger = Ledger::new(places);
        let symbol = Text::new("USD").expect("short");
        ask(&mut ledger, &Command::RegisterAsset { asset: USD, precision: 2, symbol });
        for user in [1, 2] {
            ask(
                &mut ledger,
                &Command::Order(Order {
                    op: Op::Deposit,
                    req_id: user.into(),
                    cid: Text::EMPTY,
                    user,
                    asset: USD,
                    amount: 100,
                    direction: Direction::FundingToSpot,
                    order_number: user,
                }),
            );
        }
        ledger
    }

    /// A POST of a service, judged and booked.
    fn post(ledger: &mut Ledger, legs: &[(Place, Place, u64)]) -> Result<(), Refusal> {
        let ask = Ask { freezes: true, ..Ask::of_transfer(Op::Post) };
        let leg = |&(from, to, amount): &(Place, Place, u64)| Leg { from, to, asset: USD, amount };
        let mut legs: Vec<Leg> = legs.iter().map(leg).collect();
        let (mut took_all, mut parts) = (0, Breakdown::default());
        judge(ledger, ask, &mut legs, &mut took_all, &mut parts)?;
        if lacks_place(ledger, ask, &parts).is_some() {
            return Err(Refusal { leg: 0, code: Code::Overloaded });
        }
        book(ledger, Booking { ask, reference: 0, record: 9, time_ns: 7 }, &parts);
        let sum = ledger.facts().map(|fact| fact.digest()).fold(0, u128::wrapping_add);
        assert_eq!(sum, ledger.digest());
        Ok(())
    }

    fn frozen(ledger: &Ledger, user: u64) -> Vec<(u16, u128)> {
        let rows = ledger.held_of(user, USD, 256);
        rows.iter().map(|row| (row.purpose, row.amount)).collect()
    }

    /// HLD-009: freezes of one purpose are one amount, unfrozen no further than it. Other
    /// purposes and the account's status do not count.
    #[test]
    fn freezes_of_a_purpose_are_one_amount() {
        let mut ledger = ledger();
        let (one, two) = (Place::Available(1), Place::Available(2));
        let dispute = |user| Place::Frozen { user, purpose: 1 };
        let other = Place::Frozen { user: 1, purpose: 2 };
        let refused = |code, leg| Err(Refusal { leg, code });
        assert_eq!(post(&mut ledger, &[(one, dispute(1), 30), (one, dispute(1), 10)]), Ok(()));
        assert_eq!(post(&mut ledger, &[(one, dispute(1), 5), (one, other, 50)]), Ok(()));
        assert_eq!(frozen(&ledger, 1), [(1, 45), (2, 50)]);
        assert_eq!((ledger.available(1, USD), ledger.held(1, USD)), (5, 95));
        let short = refused(Code::InsufficientFrozen, 0);
        assert_eq!(post(&mut ledger, &[(dispute(1), one, 46)]), short);
        let poor = refused(Code::InsufficientBalance, 0);
        assert_eq!(post(&mut ledger, &[(one, dispute(1), 6)]), poor);
        // What arrives frozen can be taken on, and to another user.
        let through = [(two, dispute(2), 20), (dispute(2), one, 15)];
        assert_eq!(post(&mut ledger, &through), Ok(()));
        assert_eq!((frozen(&ledger, 2), ledger.available(1, USD)), (vec![(1, 5)], 20));
        // A fourth row has no place; the ends have.
        let full = refused(Code::Overloaded, 0);
        assert_eq!(post(&mut ledger, &[(two, Place::Frozen { user: 2, purpose: 9 }, 1)]), full);
        let status = AccountStatus::Disabled;
        ask(&mut ledger, &Command::SetStatus { user: 1, status });
        let disabled = refused(Code::AccountDisabled, 0);
        assert_eq!(post(&mut ledger, &[(dispute(1), two, 1)]), disabled);
        assert_eq!(post(&mut ledger, &[(one, dispute(1), 1)]), disabled);
        assert_eq!(post(&mut ledger, &[(dispute(1), one, 45), (other, one, 50)]), Ok(()));
        assert_eq!((frozen(&ledger, 1), ledger.available(1, USD)), (vec![], 115));
        let between = refused(Code::InvalidPosting, 0);
        assert_eq!(
            post(&mut ledger, &[(dispute(2), Place::Frozen { user: 2, purpose: 2 }, 1)]),
            between
        );
        let held = ledger.facts().filter(|fact| matches!(fact, Fact::Hold(_))).count();
        assert_eq!((held, ledger.hold_count()), (1, 1));
        assert_eq!(ledger.total(USD), 200);
    }
}
