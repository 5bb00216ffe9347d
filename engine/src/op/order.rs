//! Orders: the operations of a transfer on Spot. Here a withdraw is refused.

use domain::account::AccountStatus;
use domain::code::Code;
use domain::form::{Form, check_form};
use domain::transfer::{Decision, Participant};

use crate::accounts::Balance;
use crate::entry::Entry;
use crate::fact::Fact;
use crate::ledger::{Answer, Ledger, ORDER_NUMBER_MAX, Step};
use crate::order::Order;
use crate::places::OUTCOMES_MAX;
use crate::recorded::Recorded;
use crate::totals::Totals;

/// UBSCore does not decide an external operation: PostgreSQL does, and UBSCore records it.
pub(super) const NO_EXTERNAL: &str = "UBSCore decides no external operation";

/// The reason for which an order is never decided: its caller has a bug.
pub(super) struct Violation(pub(super) &'static str);

/// Decides an order by its account and balance.
pub(super) fn step(ledger: &Ledger, order: &Order) -> Step {
    decide(ledger, order, false, |balance| judge(ledger, order, balance))
}

/// Decides an order that may be recorded already. `judge` decides a new one by its balance.
/// `imposed` marks a refusal that `judge` does not take from the state.
pub(super) fn decide(
    ledger: &Ledger,
    order: &Order,
    imposed: bool,
    judge: impl Fn(u128) -> Result<Decision, Violation>,
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
    let balance = ledger.balance(order.user, order.asset);
    let mut decision = match judge(balance) {
        Ok(decision) => decision,
        Err(Violation(why)) => return Step::Violation(why),
    };
    let mut imposed = imposed;
    if decision == Decision::Success && lacks_place(ledger, order) {
        // Its source has paid: a recorded refusal sends the money back, and without an answer it
        // would stay in flight. Only a deposit comes here: every other amount had a balance before.
        assert!(order.op.pays() && order.op.row().undoes.is_none(), "{order:?}");
        (decision, imposed) = (Decision::Refused(Code::Overloaded), true);
    }
    if !ledger.outcomes.has_place(order.op, decision) {
        return Step::Full(OUTCOMES_MAX);
    }
    let balance_after = balance_after(order, decision, balance);
    Step::Append(Entry::Order { order: *order, decision, balance_after, imposed })
}

/// The decision that an order would get now, without a look at its recorded outcome.
pub(super) fn foresee(ledger: &Ledger, order: &Order) -> Result<(), Code> {
    let balance = ledger.balance(order.user, order.asset);
    match judge(ledger, order, balance) {
        Ok(Decision::Success) if lacks_place(ledger, order) => Err(Code::Overloaded),
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
        book(ledger, order, balance_after);
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
fn judge(ledger: &Ledger, order: &Order, balance: u128) -> Result<Decision, Violation> {
    if order.op.is_external() {
        return Err(Violation(NO_EXTERNAL));
    }
    match order.op.row().undoes {
        None => match check(ledger, order).and_then(|()| admit(ledger, order, balance)) {
            Ok(()) => Ok(Decision::Success),
            Err(code) => Ok(Decision::Refused(code)),
        },
        Some(undone) => match ledger.outcomes.get(order.req_id, undone) {
            Some(paid) if paid.decision == Decision::Success && paid.matches(order) => {
                Ok(Decision::Success)
            }
            Some(_) | None => Err(Violation("a refund without a matching withdraw")),
        },
    }
}

/// The form of the order.
fn check(ledger: &Ledger, order: &Order) -> Result<(), Code> {
    let asset_known = ledger.assets.contains_key(&order.asset);
    let (req_id, user, amount) = (order.req_id, order.user, order.amount);
    check_form(Form { req_id, user, amount, asset_known }).map(|_| ())
}

/// The verdict of the account's status and balance.
fn admit(ledger: &Ledger, order: &Order, balance: u128) -> Result<(), Code> {
    let enough = balance >= u128::from(order.amount);
    order.op.verdict(Participant::Spot, ledger.status(order.user), enough)
}

/// Whether the order's account or balance cannot be made.
fn lacks_place(ledger: &Ledger, order: &Order) -> bool {
    let key = (order.user, order.asset);
    ledger.lacks_account(order.user)
        || ledger.balances.places_left() == 0 && ledger.balances.get(key).is_none()
}

/// The balance after the decision, smallest units.
fn balance_after(order: &Order, decision: Decision, balance: u128) -> u128 {
    let after = match decision {
        Decision::Refused(_) => Some(balance),
        // A u128 holds 2^64 of the largest amounts, so no legal sequence of them overflows.
        Decision::Success => order.op.row().available.of(balance, u128::from(order.amount)),
    };
    after.unwrap_or_else(|| panic!("balance {balance} and {order:?}"))
}

/// Moves the money of a success.
fn book(ledger: &mut Ledger, order: &Order, balance_after: u128) {
    let Order { op, user, asset, amount, .. } = *order;
    if ledger.status(user).is_none() {
        ledger.set_status(user, AccountStatus::Active);
    }
    // One search for the row: beside that for the outcome it is the largest cost of an order.
    let row = ledger.balances.get_mut((user, asset));
    let before = row.as_ref().map(|balance| balance.fact());
    let known = row.as_ref().map_or_else(Totals::default, |balance| balance.totals);
    let after = Balance { totals: known.with(op, amount), user, asset };
    assert_eq!(after.available(), balance_after, "{before:?} and {order:?}");
    match row {
        Some(balance) => *balance = after,
        None => ledger.balances.insert(after),
    }
    ledger.exchange(before, after.fact());
    let entry = ledger.assets.get_mut(&asset).expect("an order of an unknown asset is refused");
    // The balance is part of it, and a u128 holds 2^64 of the largest amounts.
    let total = op.row().available.of(entry.total, u128::from(amount));
    entry.total = total.unwrap_or_else(|| panic!("{} and {order:?}", entry.total));
    debug_assert!(entry.total >= balance_after, "{} and {order:?}", entry.total);
}
