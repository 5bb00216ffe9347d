//! Postings by name: the door of the services.
//!
//! A name is the transaction, the operation and the round; a SETTLE and a RELEASE end all rounds.
//! Each is decided once. A transaction has at most one open RESERVE: the last successful one. It
//! keeps the place of the outcome of its end, and those of the rows that its legs will make. So
//! neither a SETTLE nor a RELEASE behind it is ever refused.
//!
//! No record depends on an outcome that may be evicted: below the watermark only open RESERVEs
//! count.

use arrayvec::ArrayVec;
use domain::code::Code;
use domain::posting::{Breakdown, LEGS_MAX, Leg, Part, Place, PlaceKind};
use domain::transfer::op::HoldStep;
use domain::transfer::{Decision, Op};

use super::posting::{self, Ask, Booking, Change, Refusal, signed};
use crate::fact::{Fact, HoldFact, Kept, NamedFact};
use crate::holds::{Hold, freeze_key, transaction_key};
use crate::ledger::{Ledger, ORDER_NUMBER_MAX};
use crate::named::{Named, NamedAnswer, NamedBug, NamedStep, ROUND_MAX, ends};
use crate::places::{ACCOUNTS_MAX, HOLDS_MAX, OUTCOMES_MAX};

/// The holds of a transaction.
type Rows = ArrayVec<HoldFact, LEGS_MAX>;

/// The recorded outcome of a posting by name.
pub(super) fn query(ledger: &Ledger, transaction: u128, op: Op, round: u8) -> Option<NamedAnswer> {
    let round = if ends(op) { 0 } else { round };
    let found = ledger.outcomes.get_named(transaction, op, round);
    found.filter(|_| op.is_posting()).map(|named| answer(&named))
}

/// Whether it is a RESERVE.
fn sets_apart(named: &Named) -> bool {
    named.op.step() == Some(HoldStep::SetApart)
}

fn answer(named: &NamedFact) -> NamedAnswer {
    NamedAnswer { decision: named.decision, leg: named.leg, record: named.record }
}

impl Ledger {
    /// Decides a command by name: the lower fields of `named` are set, and `parts` are those of a
    /// success. Nothing changes.
    pub fn decide_named(&self, named: &mut Named, parts: &mut Breakdown) -> NamedStep {
        *parts = Breakdown::default();
        (named.state, named.decision, named.leg) = (self.state(), Decision::Success, 0);
        if let Some(why) = named.objection() {
            return NamedStep::Violation(why);
        }
        let known = self.outcomes.get_named(named.transaction, named.op, named.key_round());
        if let Some(known) = known {
            let same = (known.hash, known.order_number) == (named.hash(), named.order_number);
            return match same {
                true => NamedStep::Known(answer(&known)),
                false => NamedStep::Violation("a repeat with other legs or another order number"),
            };
        }
        if named.order_number > ORDER_NUMBER_MAX {
            return NamedStep::Violation("order number out of range");
        }
        let open = self.open_reserve(named.transaction);
        if open.is_some_and(|open| open.order_number != named.order_number) {
            return NamedStep::Violation("another order number than that of the RESERVE");
        }
        match named.op.step() {
            Some(HoldStep::Book) => self.step_settle(named, open, parts),
            Some(HoldStep::GiveBack) => self.step_empty_release(named, open),
            _ if named.order_number < self.watermark => NamedStep::Forgotten,
            _ => self.step_new(named, open, parts),
        }
    }

    /// Decides a RESERVE or a POST.
    fn step_new(
        &self,
        named: &mut Named,
        open: Option<NamedFact>,
        parts: &mut Breakdown,
    ) -> NamedStep {
        let refused = |code| Err(Refusal { leg: 0, code });
        let decided = match self.closed_for(named) {
            Some(code) => refused(code),
            None => self.judge_named(named, open, parts),
        };
        let lacking = match decided {
            Ok(()) => self.lacks_named(named, open, parts),
            Err(Refusal { leg, code }) => {
                (named.decision, named.leg) = (Decision::Refused(code), leg);
                (self.outcomes.places_left() == 0).then_some(OUTCOMES_MAX)
            }
        };
        lacking.map_or(NamedStep::Append, NamedStep::Full)
    }

    /// The refusal of new work behind an end, or behind a later round.
    fn closed_for(&self, named: &Named) -> Option<Code> {
        let found = |op, round| self.counted(named.transaction, op, round).is_some();
        let (released, settled) = (found(Op::Release, 0), found(Op::Settle, 0));
        let mut later = (named.round + 1..=ROUND_MAX).map(|round| found(Op::Reserve, round));
        match () {
            () if self.has_bug(NamedBug::ReserveBehindRelease) => None,
            () if released => Some(Code::TransactionAborted),
            () if settled => Some(Code::TransactionDecided),
            () if sets_apart(named) && later.any(|found| found) => Some(Code::TransactionDecided),
            () => None,
        }
    }

    /// The legs of a RESERVE or a POST, judged as those of a POST. The holds of the transaction
    /// count as available at their places.
    fn judge_named(
        &self,
        named: &Named,
        open: Option<NamedFact>,
        parts: &mut Breakdown,
    ) -> Result<(), Refusal> {
        if named.legs.is_empty() {
            return Err(Refusal { leg: 0, code: Code::InvalidPosting });
        }
        let rows = match open {
            Some(_) if sets_apart(named) => self.rows_of(named.transaction),
            _ => Rows::new(),
        };
        for (index, leg) in (0..).zip(&named.legs) {
            let judged = self.judge_named_leg(named, leg, &rows, parts);
            judged.map_err(|code| Refusal { leg: index, code })?;
        }
        Ok(())
    }

    fn judge_named_leg(
        &self,
        named: &Named,
        leg: &Leg,
        rows: &Rows,
        parts: &mut Breakdown,
    ) -> Result<(), Code> {
        let admitted = |place: Place| match place.kind() {
            PlaceKind::Available | PlaceKind::Frozen => true,
            PlaceKind::Outside => named.outside,
            PlaceKind::Hold => false,
        };
        let kinds = [leg.from.kind(), leg.to.kind()];
        // A freeze stands opposite an available amount.
        let crosses = kinds.contains(&PlaceKind::Outside) && kinds.contains(&PlaceKind::Frozen);
        if !admitted(leg.from) || !admitted(leg.to) || crosses {
            return Err(Code::InvalidPosting);
        }
        posting::check_form(Ask { outside: true, ..Ask::of_service(Op::Post) }, leg)?;
        if !self.assets.contains_key(&leg.asset) {
            return Err(Code::InvalidAsset);
        }
        posting::check_accounts(self, Op::Post, leg, parts)?;
        // The outside has no balance, and nothing of it is set apart.
        let (free, short) = match leg.from {
            Place::Frozen { .. } => {
                (Some(self.frozen(leg.from, leg.asset)), Code::InsufficientFrozen)
            }
            place => {
                let free = place.user().map(|user| self.available(user, leg.asset));
                (free, Code::InsufficientBalance)
            }
        };
        let has = free.map(|free| free + held_by(rows, leg.from, leg.asset));
        let apart = parts.take(leg.from, leg.asset, leg.amount.into(), |_| true);
        parts.bring(leg.to, leg.asset, leg.amount.into(), |_| true);
        match () {
            () if has.is_some_and(|has| apart > has) => Err(short),
            // A hold is a u64.
            () if apart > u128::from(u64::MAX) => Err(Code::Overflow),
            () => Ok(()),
        }
    }

    /// The key that bounds a place which an admitted RESERVE or POST lacks.
    fn lacks_named(
        &self,
        named: &Named,
        open: Option<NamedFact>,
        parts: &Breakdown,
    ) -> Option<&'static str> {
        let places_left = self.outcomes.places_left();
        // Without places for holds there are none for the sums of postings either.
        if !self.balances.has_sums() {
            return Some(HOLDS_MAX);
        }
        if !sets_apart(named) {
            let full = (places_left == 0).then_some(OUTCOMES_MAX);
            return full.or_else(|| posting::lacks_place(self, Ask::of_transfer(Op::Post), parts));
        }
        // A later round takes over the places that the RESERVE before it keeps.
        let (kept, had) = (self.keep_for(parts), open.map(|open| open.kept).unwrap_or_default());
        let outcomes = 1 + usize::from(kept.outcomes) > places_left + usize::from(had.outcomes);
        let accounts =
            usize::from(kept.accounts) > self.accounts_left() + usize::from(had.accounts);
        let balances =
            usize::from(kept.balances) > self.balances_left() + usize::from(had.balances);
        let rows = self.rows_of(named.transaction);
        let apart = parts.iter().filter(|part| part.apart > 0).count();
        // A freeze that is gone comes back beside a hold of it that shrinks.
        let shrinks = |row: &&HoldFact| {
            row.purpose != 0 && parts.at(place_of(row), row.asset).apart < row.amount
        };
        let back = rows.iter().filter(shrinks).count();
        // A freeze of which nothing is left leaves its place to its hold.
        let empties = |part: &&Part| {
            let (has, frozen) =
                (held_by(&rows, part.place, part.asset), self.frozen(part.place, part.asset));
            part.apart > 0 && frozen > 0 && part.apart == frozen + has
        };
        let gone = if back == 0 { parts.iter().filter(empties).count() } else { 0 };
        let more = apart + back + usize::from(kept.freezes);
        let holds = more > self.holds_left() + rows.len() + usize::from(had.freezes) + gone;
        match () {
            () if outcomes => Some(OUTCOMES_MAX),
            () if accounts || balances => Some(ACCOUNTS_MAX),
            () if holds => Some(HOLDS_MAX),
            () => None,
        }
    }

    /// The places that a RESERVE of these parts keeps for its end. A place that sets something
    /// apart has its account and its balance, and its hold leaves a place for its freeze; every
    /// other one is counted as if it had none.
    fn keep_for(&self, parts: &Breakdown) -> Kept {
        if self.has_bug(NamedBug::PlaceNotKept) {
            return Kept { outcomes: 1, ..Kept::default() };
        }
        let mut kept = Kept { accounts: 0, balances: 0, freezes: 0, outcomes: 1 };
        for (index, part) in parts.iter().enumerate() {
            let of_user = |other: &&Part| other.place.user() == part.place.user();
            let freeze = part.place.kind() == PlaceKind::Frozen;
            kept.balances += u8::from(part.apart == 0);
            kept.freezes += u8::from(part.apart == 0 && freeze);
            let pays = parts.iter().filter(of_user).any(|other| other.apart > 0);
            let again = parts.iter().take(index).any(|other| of_user(&other));
            kept.accounts += u8::from(!pays && !again);
        }
        kept
    }

    /// Decides a SETTLE.
    fn step_settle(
        &self,
        named: &Named,
        open: Option<NamedFact>,
        parts: &mut Breakdown,
    ) -> NamedStep {
        let released = self.counted(named.transaction, Op::Release, 0).is_some();
        match open {
            _ if released => NamedStep::Violation("a SETTLE behind a RELEASE"),
            None if named.order_number < self.watermark => NamedStep::Forgotten,
            None => NamedStep::Violation("a SETTLE without a RESERVE"),
            Some(open) if open.hash != named.hash() => {
                NamedStep::Violation("a SETTLE of other legs than its RESERVE's")
            }
            Some(_) => {
                *parts = Breakdown::of(&named.legs, |_| true);
                NamedStep::Append
            }
        }
    }

    /// Decides a RELEASE. Without a RESERVE it is an empty one, which shuts the door.
    fn step_empty_release(&self, named: &Named, open: Option<NamedFact>) -> NamedStep {
        let done = |op, round| {
            let found = self.counted(named.transaction, op, round);
            found.is_some_and(|found| found.decision == Decision::Success)
        };
        let settled = done(Op::Settle, 0) && !self.has_bug(NamedBug::ReleaseBehindSettle);
        let mut posted = (1..=ROUND_MAX).map(|round| done(Op::Post, round));
        match open {
            _ if settled => NamedStep::Violation("a RELEASE behind a SETTLE"),
            Some(_) => NamedStep::Append,
            None if named.order_number < self.watermark => NamedStep::Forgotten,
            None if posted.any(|posted| posted) => NamedStep::Violation("a RELEASE behind a POST"),
            // It may take the places that are kept for ends.
            None if self.outcomes.ends_left() == 0 => NamedStep::Full(OUTCOMES_MAX),
            None => NamedStep::Append,
        }
    }

    /// Carries out a decided command. `sequence` and `time_ns` are the record's own.
    ///
    /// Panics if [`Ledger::decide_named`] could not have decided it in this state.
    pub fn apply_named(
        &mut self,
        named: &Named,
        parts: &Breakdown,
        sequence: wal::Sequence,
        time_ns: u64,
    ) -> NamedAnswer {
        assert_eq!(sequence, self.sequence + 1, "records are applied in order");
        self.sequence = sequence;
        let mut kept = Kept::default();
        match (named.decision, named.op.step()) {
            (Decision::Refused(_), _) => {}
            (Decision::Success, Some(HoldStep::SetApart)) => {
                kept = self.keep_for(parts);
                self.close_reserve(named.transaction);
                self.hold_parts(named.transaction, parts, sequence, time_ns);
                if self.has_bug(NamedBug::ArrivingIsAvailable) {
                    self.bring_early(parts);
                }
            }
            (Decision::Success, Some(HoldStep::Book)) => {
                self.close_reserve(named.transaction);
                self.settle_parts(named.transaction, parts, (sequence, time_ns));
                self.settle_crossings(&named.legs);
            }
            (Decision::Success, Some(HoldStep::GiveBack)) => {
                self.close_reserve(named.transaction);
                self.hold_parts(named.transaction, &Breakdown::default(), sequence, time_ns);
            }
            (Decision::Success, _) => {
                let (ask, record) = (Ask::of_transfer(Op::Post), sequence);
                posting::book(self, Booking { ask, reference: 0, record, time_ns }, parts);
                posting::book_crossings(self, &named.legs);
            }
        }
        let fact = NamedFact {
            transaction: named.transaction,
            op: named.op,
            round: named.key_round(),
            hash: named.hash(),
            reference: named.reference,
            record: sequence,
            time_ns,
            order_number: named.order_number,
            decision: named.decision,
            leg: named.leg,
            kept,
        };
        self.outcomes.insert_named(&fact);
        self.exchange(None, Fact::Named(fact));
        answer(&fact)
    }

    /// The open RESERVE of a transaction keeps nothing any more.
    fn close_reserve(&mut self, transaction: u128) {
        if let Some(open) = self.open_reserve(transaction) {
            let (before, after) = self.outcomes.close(transaction, open.round, self.watermark);
            self.exchange(Some(Fact::Named(before)), Fact::Named(after));
        }
    }

    /// Makes the holds of a transaction what `parts` set apart: rows grow, shrink, end and begin.
    fn hold_parts(
        &mut self,
        transaction: u128,
        parts: &Breakdown,
        record: wal::Sequence,
        time_ns: u64,
    ) {
        let rows = self.rows_of(transaction);
        for row in &rows {
            let want = parts.at(place_of(row), row.asset).apart;
            self.change_hold(transaction, row, want, (record, time_ns));
        }
        let is_new = |part: &&Part| part.apart > 0 && held_by(&rows, part.place, part.asset) == 0;
        // All of them first: a freeze of which nothing is left leaves its place to a hold.
        for part in parts.iter().filter(is_new) {
            self.set_apart(part.place, part.asset, signed(part.apart), (record, time_ns));
        }
        let mut number = 1;
        for part in parts.iter().filter(is_new) {
            let user = part.place.user().expect("available or frozen");
            while self.holds.get(transaction_key(transaction, number)).is_some() {
                number += 1;
            }
            let (asset, amount, number) = (part.asset, part.apart, u64::from(number));
            let fact = HoldFact {
                venue: 0,
                transaction,
                number,
                purpose: purpose_of(part.place),
                user,
                asset,
                amount,
                reference: 0,
                record,
                time_ns,
                keeps: false,
            };
            let sums = self.balances.get(user, asset).expect("booked above").sums;
            self.add_hold(Hold::new(fact, sums));
            self.exchange(None, Fact::Hold(fact));
        }
    }

    /// The planted bug.
    fn bring_early(&mut self, parts: &Breakdown) {
        for &Part { place, asset, arriving, .. } in parts.iter() {
            let (user, traded) = (place.user().expect("of a user"), signed(arriving));
            posting::book_change(self, &Change { user, asset, held: 0, traded });
        }
    }

    /// Sets one hold to an amount. The rest goes back to its place, or more is taken from there.
    fn change_hold(
        &mut self,
        transaction: u128,
        row: &HoldFact,
        want: u128,
        at: (wal::Sequence, u64),
    ) {
        if want == row.amount {
            return;
        }
        let (place, by) = (place_of(row), signed(want) - signed(row.amount));
        // A freeze that comes back may need the row of the hold that ends.
        self.set_transaction_hold(transaction, row, want);
        self.set_apart(place, row.asset, by, at);
    }

    /// Sets `by` more apart from a place; below 0 it goes back there. A freeze that is set apart
    /// stays held.
    fn set_apart(&mut self, place: Place, asset: u32, by: i128, at: (wal::Sequence, u64)) {
        match place {
            Place::Frozen { .. } => self.change_freeze(place, asset, -by, at),
            place => {
                let user = place.user().expect("available");
                posting::book_change(self, &Change { user, asset, held: by, traded: 0 });
            }
        }
    }

    /// Changes a freeze: with nothing left it is gone. `at`: record and time of a new one.
    fn change_freeze(
        &mut self,
        place: Place,
        asset: u32,
        by: i128,
        (record, time_ns): (wal::Sequence, u64),
    ) {
        let Place::Frozen { user, purpose } = place else { unreachable!("{place:?} is no freeze") };
        if by == 0 {
            return;
        }
        let key = freeze_key(user, asset, purpose);
        if let Some(row) = self.holds.get(key) {
            let amount = row.amount().checked_add_signed(by).expect("the judge has checked it");
            let (before, after) = self.set_hold(key, amount, false);
            return self.replace(Some(before), after);
        }
        let fact = HoldFact {
            venue: 0,
            transaction: 0,
            number: 0,
            purpose,
            user,
            asset,
            amount: u128::try_from(by).expect("the judge has checked it"),
            reference: 0,
            record,
            time_ns,
            keeps: false,
        };
        let sums = self.balances.get(user, asset).expect("its balance is booked before").sums;
        self.add_hold(Hold::new(fact, sums));
        self.exchange(None, Fact::Hold(fact));
    }

    /// The freeze at a place, smallest units; 0 if there is none.
    fn frozen(&self, place: Place, asset: u32) -> u128 {
        match place {
            Place::Frozen { user, purpose } => {
                self.holds.get(freeze_key(user, asset, purpose)).map_or(0, Hold::amount)
            }
            _ => 0,
        }
    }

    fn set_transaction_hold(&mut self, transaction: u128, row: &HoldFact, want: u128) {
        let number = u8::try_from(row.number).expect("at most 16");
        let (before, after) = self.set_hold(transaction_key(transaction, number), want, false);
        self.replace(Some(before), after);
    }

    /// Books the legs of a transaction: each place loses its amount apart, which its hold has, and
    /// gains its arriving amount.
    fn settle_parts(&mut self, transaction: u128, parts: &Breakdown, at: (wal::Sequence, u64)) {
        let rows = self.rows_of(transaction);
        let places = parts.iter().count();
        let half = self.has_bug(NamedBug::HalfAPosting);
        let places = if half { places - 1 } else { places };
        for part in parts.iter().take(places) {
            let (user, asset) = (part.place.user().expect("available or frozen"), part.asset);
            let (apart, arriving) = (signed(part.apart), signed(part.arriving));
            let frozen = if purpose_of(part.place) == 0 { 0 } else { arriving };
            let change = Change { user, asset, held: frozen - apart, traded: arriving - apart };
            posting::book_change(self, &change);
        }
        for row in &rows {
            let apart = parts.at(place_of(row), row.asset).apart;
            assert_eq!(apart, row.amount, "its RESERVE has set it apart: {row:?}");
            self.set_transaction_hold(transaction, row, 0);
        }
        // Only now: the holds that have ended leave their places to the freezes.
        let frozen = |part: &&Part| purpose_of(part.place) != 0;
        for part in parts.iter().take(places).filter(frozen) {
            self.change_freeze(part.place, part.asset, signed(part.arriving), at);
        }
    }

    /// Books the money of the legs of a SETTLE that came from outside, or went there.
    fn settle_crossings(&mut self, legs: &[Leg]) {
        if self.has_bug(NamedBug::OutsideForgotten) {
            let brings = |leg: &&Leg| leg.to != Place::Outside;
            let legs: ArrayVec<Leg, LEGS_MAX> = legs.iter().filter(brings).copied().collect();
            return posting::book_crossings(self, &legs);
        }
        posting::book_crossings(self, legs);
    }

    /// The last successful RESERVE of a transaction, while its places are kept.
    fn open_reserve(&self, transaction: u128) -> Option<NamedFact> {
        let reserve = |round| self.outcomes.get_named(transaction, Op::Reserve, round);
        (1..=ROUND_MAX).rev().filter_map(reserve).find(NamedFact::is_open)
    }

    /// A recorded outcome that no eviction takes.
    fn counted(&self, transaction: u128, op: Op, round: u8) -> Option<NamedFact> {
        let found = self.outcomes.get_named(transaction, op, round);
        found.filter(|found| found.order_number >= self.watermark || found.is_open())
    }

    fn rows_of(&self, transaction: u128) -> Rows {
        self.transaction_holds(transaction).collect()
    }

    /// Whether a test has planted this bug.
    fn has_bug(&self, bug: NamedBug) -> bool {
        #[cfg(test)]
        if self.named_bug.is_some() {
            return self.named_bug == Some(bug);
        }
        let _ = bug;
        false
    }
}

/// The amount that a transaction holds of a place and an asset, smallest units.
fn held_by(rows: &Rows, place: Place, asset: u32) -> u128 {
    let found = rows.iter().find(|row| (place_of(row), row.asset) == (place, asset));
    found.map_or(0, |row| row.amount)
}

/// The place that a hold takes from.
fn place_of(row: &HoldFact) -> Place {
    let HoldFact { user, purpose, .. } = *row;
    if purpose == 0 { Place::Available(user) } else { Place::Frozen { user, purpose } }
}

/// The purpose of a frozen place, 0 for another one.
fn purpose_of(place: Place) -> u16 {
    if let Place::Frozen { purpose, .. } = place { purpose } else { 0 }
}
