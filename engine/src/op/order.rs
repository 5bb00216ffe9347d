//! Orders: the operations of a transfer on Spot, postings of one leg by name.

use domain::code::Code;
use domain::form::{Form, check_form};
use domain::posting::{Breakdown, Leg, Place};
use domain::transfer::Decision;

use super::posting::{self, Ask, Refusal, lacks_place};
use crate::entry::Entry;
use crate::fact::Fact;
use crate::ledger::{Answer, Ledger, ORDER_NUMBER_MAX, Step};
use crate::order::Order;
use crate::places::OUTCOMES_MAX;
use crate::recorded::Recorded;

/// UBSCore does not decide an external operation: PostgreSQL does, and UBSCore records it. It
/// decides a posting by number only.
pub(super) const NO_EXTERNAL: &str = "UBSCore decides no such operation by name";

/// The reason for which an order is never decided: its caller has a bug.
pub(super) struct Violation(pub(super) &'static str);

/// Decides an order by its account and balance.
pub(super) fn step(ledger: &Ledger, order: &Order) -> Step {
    decide(ledger, order, false, |parts| judge(ledger, order, parts))
}

/// Decides an order that may be recorded already. `judge` decides a new one by the state, and
/// leaves its parts. `imposed` marks a refusal that `judge` does not take from the state.
pub(super) fn decide(
    ledger: &Ledger,
    order: &Order,
    imposed: bool,
    judge: impl Fn(&mut Breakdown) -> Result<Decision, Violation>,
) -> Step {
    if let Some(recorded) = ledger.outcomes.get(order.req_id, order.op) {
        return match recorded.matches(order) {
            true => Step::Known(Answer::Decided(recorded)),
            false => Step::Violation("a repeat with another user, asset, amount or order number"),
        };
    }
    if order.order_number < ledger.watermark {
        return Step::Forgotten;
    }
    if order.order_number > ORDER_NUMBER_MAX {
        return Step::Violation("order number out of range");
    }
    let mut parts = Breakdown::default();
    let mut decision = match judge(&mut parts) {
        Ok(decision) => decision,
        Err(Violation(why)) => return Step::Violation(why),
    };
    let mut imposed = imposed;
    if decision == Decision::Success && lacks_place(ledger, ask(order), &parts).is_some() {
        // Its source has paid: a recorded refusal sends the money back, and without an answer it
        // would stay in flight. Only a deposit comes here: every other amount had a balance before.
        assert!(order.op.pays() && order.op.row().undoes.is_none(), "{order:?}");
        (decision, imposed) = (Decision::Refused(Code::Overloaded), true);
    }
    if !ledger.outcomes.has_place(order.op, decision) {
        return Step::Full(OUTCOMES_MAX);
    }
    let balance_after = balance_after(order, decision, ledger.balance(order.user, order.asset));
    Step::Append(Entry::Order { order: *order, decision, balance_after, imposed })
}

/// The decision that an order would get now, without a look at its recorded outcome.
pub(super) fn foresee(ledger: &Ledger, order: &Order) -> Result<(), Code> {
    let mut parts = Breakdown::default();
    match judge(ledger, order, &mut parts) {
        Ok(Decision::Success) if lacks_place(ledger, ask(order), &parts).is_some() => {
            Err(Code::Overloaded)
        }
        Ok(Decision::Success) => Ok(()),
        Ok(Decision::Refused(code)) => Err(code),
        Err(_) => Err(Code::InvalidRequest),
    }
}

/// Records a decision, and moves the money of a success.
pub(super) fn apply(
    ledger: &mut Ledger,
    order: &Order,
    decision: Decision,
    balance_after: u128,
    time_ns: u64,
) -> Answer {
    if decision == Decision::Success {
        posting::book_transfer(ledger, order.op, order.user, order.asset, order.amount);
    }
    let recorded = Recorded::new(order, decision, balance_after, ledger.sequence, time_ns);
    let (req_id, op) = (order.req_id, order.op);
    ledger.outcomes.insert(req_id, op, recorded);
    ledger.exchange(None, Fact::Outcome { req_id, op, recorded });
    debug_assert_eq!(ledger.balance(order.user, order.asset), balance_after, "{order:?}");
    Answer::Decided(recorded)
}

/// The decision of a new order by the state alone.
///
/// # Errors
/// [`Violation`]: only a bug asks for it.
fn judge(ledger: &Ledger, order: &Order, parts: &mut Breakdown) -> Result<Decision, Violation> {
    if order.op.place_in_transfer().is_none() {
        return Err(Violation(NO_EXTERNAL));
    }
    if let Some(undone) = order.op.row().undoes {
        match ledger.outcomes.get(order.req_id, undone) {
            Some(paid) if paid.decision == Decision::Success && paid.matches(order) => {}
            Some(_) | None => return Err(Violation("a refund without a matching withdraw")),
        }
    } else if let Err(code) = check(ledger, order) {
        return Ok(Decision::Refused(code));
    }
    let mut took_all = 0;
    match posting::judge(ledger, ask(order), &mut [leg(order)], &mut took_all, parts) {
        Ok(()) => Ok(Decision::Success),
        Err(Refusal { code, .. }) => Ok(Decision::Refused(code)),
    }
}

fn ask(order: &Order) -> Ask {
    Ask::of_transfer(order.op)
}

/// The one leg of an order.
fn leg(order: &Order) -> Leg {
    let account = Place::Available(order.user);
    let (from, to) = match order.op.takes() {
        true => (account, Place::Outside),
        false => (Place::Outside, account),
    };
    Leg { from, to, asset: order.asset, amount: order.amount }
}

/// The form of the order.
fn check(ledger: &Ledger, order: &Order) -> Result<(), Code> {
    let asset_known = ledger.assets.contains_key(&order.asset);
    let (req_id, user, amount) = (order.req_id, order.user, order.amount);
    check_form(Form { req_id, user, amount, asset_known }).map(|_| ())
}

/// The balance after the decision, holds included, smallest units.
fn balance_after(order: &Order, decision: Decision, balance: u128) -> u128 {
    let after = match decision {
        Decision::Refused(_) => Some(balance),
        // A u128 holds 2^64 of the largest amounts, so no legal sequence of them overflows.
        Decision::Success => order.op.row().available.of(balance, u128::from(order.amount)),
    };
    after.unwrap_or_else(|| panic!("balance {balance} and {order:?}"))
}
