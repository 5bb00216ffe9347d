//! Orders: the operations of a transfer on Spot, postings of one leg by name.
//!
//! A transfer is most of the work, so its one leg is judged here: it names no hold, and its parts
//! are its amount. A test compares this judge with that of all postings.

use domain::code::Code;
use domain::form::{Form, check_form};
use domain::transfer::Decision;

use super::posting;
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
    decide(ledger, order, false, |funds| judge(ledger, order, funds))
}

/// The balance of an order before it, smallest units.
#[derive(Clone, Copy)]
pub(super) struct Funds {
    /// With holds and freezes.
    owned: u128,
    /// Without them.
    available: u128,
    /// There is a balance.
    exists: bool,
}

impl Funds {
    /// With one search for the row.
    #[inline]
    fn of(ledger: &Ledger, order: &Order) -> Funds {
        match ledger.balances.get(order.user, order.asset) {
            None => Funds { owned: 0, available: 0, exists: false },
            Some(balance) => {
                let (owned, held) = ledger.balances.owned_and_held(balance);
                Funds { owned, available: owned - held, exists: true }
            }
        }
    }
}

/// Decides an order that may be recorded already. `judge` decides a new one by the state. `imposed`
/// marks a refusal that `judge` does not take from the state.
pub(super) fn decide(
    ledger: &Ledger,
    order: &Order,
    imposed: bool,
    judge: impl Fn(Funds) -> Result<Decision, Violation>,
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
    let funds = Funds::of(ledger, order);
    let mut decision = match judge(funds) {
        Ok(decision) => decision,
        Err(Violation(why)) => return Step::Violation(why),
    };
    let mut imposed = imposed;
    if decision == Decision::Success && lacks_place(ledger, order, funds) {
        // Its source has paid: a recorded refusal sends the money back, and without an answer it
        // would stay in flight. Only a deposit comes here: every other amount had a balance before.
        assert!(order.op.pays() && order.op.row().undoes.is_none(), "{order:?}");
        (decision, imposed) = (Decision::Refused(Code::Overloaded), true);
    }
    if !ledger.outcomes.has_place(order.op, decision) {
        return Step::Full(OUTCOMES_MAX);
    }
    let balance_after = balance_after(order, decision, funds.owned);
    Step::Append(Entry::Order { order: *order, decision, balance_after, imposed })
}

/// The decision that an order would get now, without a look at its recorded outcome.
pub(super) fn foresee(ledger: &Ledger, order: &Order) -> Result<(), Code> {
    let funds = Funds::of(ledger, order);
    match judge(ledger, order, funds) {
        Ok(Decision::Success) if lacks_place(ledger, order, funds) => Err(Code::Overloaded),
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
fn judge(ledger: &Ledger, order: &Order, funds: Funds) -> Result<Decision, Violation> {
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
    match admit(ledger, order, funds.available) {
        Ok(()) => Ok(Decision::Success),
        Err(code) => Ok(Decision::Refused(code)),
    }
}

/// The verdict of the account's status and balance.
fn admit(ledger: &Ledger, order: &Order, available: u128) -> Result<(), Code> {
    let Order { op, user, amount, .. } = *order;
    let status = ledger.status(user);
    match op.takes() {
        true => op.admits_payer(status)?,
        false => op.admits_payee(status)?,
    }
    match op.takes() && available < u128::from(amount) {
        true => Err(Code::InsufficientBalance),
        false => Ok(()),
    }
}

/// Whether the account or the balance that an admitted order needs cannot be made.
fn lacks_place(ledger: &Ledger, order: &Order, funds: Funds) -> bool {
    ledger.lacks_account(order.user) || !funds.exists && ledger.balances_left() == 0
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

#[cfg(test)]
mod tests {
    use domain::account::AccountStatus;
    use domain::posting::{Breakdown, Leg, Place};
    use domain::transfer::{Direction, Op};

    use super::super::posting::{self, Ask};
    use super::*;
    use crate::command::Command;
    use crate::places::Places;
    use crate::text::Text;

    const USDT: u32 = 3;

    fn order(op: Op, number: u64, user: u64, amount: u64) -> Order {
        let (cid, direction) = (Text::EMPTY, Direction::FundingToSpot);
        let req_id = number.into();
        Order { op, req_id, cid, user, asset: USDT, amount, direction, order_number: number }
    }

    fn run(ledger: &mut Ledger, command: &Command) {
        match ledger.step(command) {
            Step::Append(entry) => ledger.apply(&entry, ledger.sequence() + 1, 7),
            Step::Known(answer) => answer,
            other => panic!("{command:?}: {other:?}"),
        };
    }

    /// A ledger with two accounts' places: user 1 has 10, user 2 an account without a balance.
    fn ledger(status: AccountStatus) -> Ledger {
        let mut ledger = Ledger::new(Places::of_transfers(2, 100));
        let symbol = Text::new("USDT").expect("short");
        run(&mut ledger, &Command::RegisterAsset { asset: USDT, precision: 8, symbol });
        run(&mut ledger, &Command::Order(order(Op::Deposit, 1, 1, 10)));
        for user in [1, 2] {
            run(&mut ledger, &Command::SetStatus { user, status });
        }
        ledger
    }

    /// Goal: an order has the verdict that its one leg has as a posting. Method: each operation of
    /// a transfer, of a user with a balance, without one, and without an account, around its
    /// balance, in each status, with the tables full.
    #[test]
    fn an_order_is_judged_as_its_leg_is() {
        let mut seen = std::collections::BTreeSet::new();
        use AccountStatus::{Active, Disabled, Frozen};
        for status in [Active, Frozen, Disabled] {
            let ledger = ledger(status);
            for (op, user, amount) in Op::OF_TRANSFER
                .iter()
                .flat_map(|op| [1, 2, 3].map(|user| (*op, user)))
                .flat_map(|(op, user)| [1, 10, 11, u64::MAX].map(|amount| (op, user, amount)))
            {
                let order = order(op, 2, user, amount);
                let funds = Funds::of(&ledger, &order);
                let mine = admit(&ledger, &order, funds.available);
                let account = Place::Available(user);
                let (from, to) = match op.takes() {
                    true => (account, Place::Outside),
                    false => (Place::Outside, account),
                };
                let mut leg = [Leg { from, to, asset: USDT, amount }];
                let (mut took_all, mut parts) = (0, Breakdown::default());
                let ask = Ask::of_transfer(op);
                let general = posting::judge(&ledger, ask, &mut leg, &mut took_all, &mut parts);
                assert_eq!(mine, general.map_err(|refusal| refusal.code), "{status:?} {order:?}");
                if mine.is_ok() {
                    let full = posting::lacks_place(&ledger, ask, &parts).is_some();
                    assert_eq!(lacks_place(&ledger, &order, funds), full, "{status:?} {order:?}");
                }
                seen.insert(format!("{mine:?}"));
            }
        }
        assert!(seen.len() > 3, "{seen:?}");
    }
}
