//! The external operations of a Settle: money that it brings from outside of both stores, and money
//! that it takes there. Their rows stand in the flight of the hold, as that of a recharge's credit
//! stands in the flight of its order.

use super::super::{Decided, Key};
use super::recharges::operation;
use super::{Draft, Known, Objected, violation};
use crate::postgres::store::{External, Reply};
use domain::amount::Amount;
use domain::hold::HoldOrder;
use domain::transfer::{Decision, ExternalOperation, Op};

/// The actor of these operations.
const ACTOR: &str = "transaction";

/// Both operations, in the order in which they change the balance: the hold comes between them.
fn both() -> impl Iterator<Item = Op> {
    Op::ALL.into_iter().filter(|op| op.is_external())
}

/// The operation of a Settle; `None`: it moves no such money.
fn external(order: &HoldOrder, op: Op) -> Option<External> {
    let (deposited, withdrawn) = order.act.outside();
    let [for_deposit, for_withdrawal] = order.outside_numbers;
    let (idem_key, units, order_number) = match op.takes() {
        false => (order.key.deposit(), deposited, for_deposit),
        true => (order.key.withdrawal(), withdrawn, for_withdrawal),
    };
    let (user, asset, actor) = (order.user, order.asset, ACTOR.to_owned());
    let amount = Amount::new(units)?;
    Some(External { idem_key, op, user, asset, amount, actor, order_number })
}

/// The keys of the operations of an act.
pub(super) fn keys(order: &HoldOrder) -> impl Iterator<Item = String> {
    both().filter_map(|op| Some(external(order, op)?.idem_key))
}

/// Whether a row is this operation.
fn is_of(row: &Decided, external: &External) -> bool {
    let body = |one: &External| (one.op, one.user, one.asset, one.amount);
    row.decision == Decision::Success && body(&row.external) == body(external)
}

impl Known {
    /// The answer to an act that was decided before, with the operations that stand beside it.
    pub(super) fn told(&self, order: &HoldOrder, decision: Decision) -> Reply {
        let mut operations = Vec::new();
        for external in both().filter_map(|op| external(order, op)) {
            if let Some(why) = self.unreadable.get(&Key::External(external.idem_key.clone())) {
                return Reply::Unreadable(why.clone());
            }
            let row = self.externals.get(&external.idem_key);
            operations.extend(row.filter(|row| is_of(row, &external)).and_then(operation));
        }
        match operations.is_empty() {
            true => Reply::Hold(decision),
            false => Reply::Settled(operations),
        }
    }
}

impl Draft<'_> {
    /// The operations of an act, as this flight has them or as they were read.
    pub(super) fn settled(&self, order: &HoldOrder, decision: Decision) -> Reply {
        let here = keys(order)
            .filter_map(|key| operation(&self.flight.externals[*self.externals.get(&key)?]));
        let here: Vec<_> = here.collect();
        match here.is_empty() {
            true => self.known.told(order, decision),
            false => Reply::Settled(here),
        }
    }

    /// Books one operation of a Settle. If its row is there, its money is too: a repair from the
    /// log restores both before the hold is settled again.
    pub(super) fn cross(
        &mut self,
        order: &HoldOrder,
        op: Op,
    ) -> Result<Option<ExternalOperation>, Objected> {
        let Some(external) = external(order, op) else { return Ok(None) };
        let key = external.idem_key.clone();
        let bad = || violation(format!("{key} is recorded with another body"));
        self.readable(&Key::External(key.clone()))?;
        if let Some(row) = self.known.externals.get(&key) {
            return match is_of(row, &external) {
                true => operation(row).ok_or_else(bad).map(Some),
                false => Err(bad()),
            };
        }
        if external.order_number == 0 {
            return Err(violation(format!("{key} has no order number")));
        }
        let change = op.effect(Decision::Success, external.amount.units());
        let after = self.set_apart(order, change, 0)?;
        let row = Decided { external, decision: Decision::Success, balance_after: Some(after) };
        let done = operation(&row).ok_or_else(bad)?;
        self.externals.insert(key, self.flight.externals.len());
        self.flight.externals.push(row);
        Ok(Some(done))
    }
}
