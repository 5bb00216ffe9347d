//! Bonuses of promotions in a flight: given with the credit of their order, and taken back with the
//! money of its payment. The money of a promotion itself is in no flight.

use std::cmp::min;

use super::super::Key;
use super::recharges::{Matter, operation};
use super::{Draft, Objected, violation};
use crate::postgres::store::External;
use crate::recharge::act::{RechargeAct, RechargeCall};
use crate::recharge::movement::{self, LedgerAccount, MovementKind};
use crate::recharge::order::BonusState;
use crate::recharge::payment::RechargePayment;
use crate::recharge::promotion::bonus_share;
use crate::recharge::returned::RechargeReturn;
use domain::account::UserId;
use domain::amount::Amount;
use domain::transfer::{ExternalOperation, Op};

/// The key of the credit of a payment that did not pay its order: no bonus goes back with it.
pub(super) fn own_credit_of(call: &RechargeCall) -> Option<String> {
    let payment = match &call.act {
        RechargeAct::Refund(refund) => &refund.payment,
        RechargeAct::Take(take) => &take.payment,
        _ => return None,
    };
    payment.recharge.map(|_| movement::payment_credit(payment.id))
}

impl Draft<'_> {
    /// The bonus that an earlier try of this call has committed, so that it gets its record.
    pub(super) fn bonus_before(&self, call: &RechargeCall) -> Option<ExternalOperation> {
        let row = self.known.externals.get(&call.bonus_key()?)?;
        let ours = row.external.order_number == call.bonus_number;
        ours.then(|| operation(row)).flatten()
    }

    /// Gives the reserved bonus of an order that was paid to the unit, in the flight of its credit.
    /// Without a reserve there is none: an order that was remade from its proof reserves its bonus
    /// when it is inserted, if it was given before.
    pub(super) fn give_bonus(
        &mut self,
        call: &RechargeCall,
        matter: &mut Matter,
    ) -> Result<(), Objected> {
        let payment = &matter.payment;
        let Some(order) = &mut matter.order else { return Ok(()) };
        let exact = payment.amount == Some(order.amount);
        if order.bonus_state != Some(BonusState::Reserved) || !exact {
            return Ok(());
        }
        let (Some(amount), Some(name)) = (Amount::new(order.bonus), order.promotion.clone()) else {
            return Err(violation(format!("{} has no bonus", order.id)));
        };
        let external = External {
            idem_key: movement::recharge_bonus(order.id),
            op: Op::ExtDeposit,
            user: order.user,
            asset: order.asset,
            amount,
            actor: call.actor.clone(),
            order_number: call.bonus_number,
        };
        order.bonus_state = Some(BonusState::Given);
        let done = match self.booked(&external)? {
            Ok(done) => done,
            // The account has taken the credit before it.
            Err(code) => return Err(violation(format!("a bonus is refused: {}", code.name()))),
        };
        let sides = (LedgerAccount::Promotion(name), LedgerAccount::User(external.user));
        let (key, kind) = (external.idem_key, MovementKind::Bonus);
        self.movement_of(&matter.payment, key, kind, sides, Some(amount));
        matter.bonus = Some(done);
        Ok(())
    }

    /// The part of the bonus of its order that goes with so many further minor units of a payment,
    /// smallest units: in proportion to all that has gone, rounded up. 0: the payment brought none.
    pub(super) fn bonus_back(
        &self,
        payment: &RechargePayment,
        minor_units: i64,
    ) -> Result<u64, Objected> {
        let order = payment.recharge.and_then(|id| self.order(id));
        let given = order.filter(|order| order.bonus_state == Some(BonusState::Given));
        let (Some(order), Some(amount)) = (given, payment.amount) else { return Ok(0) };
        let own = movement::payment_credit(payment.id);
        self.readable(&Key::External(own.clone()))?;
        if self.known.externals.contains_key(&own) {
            return Ok(0);
        }
        let units = |minor| payment.amount_of(minor).map_or(0, Amount::units);
        let returns = self.returns_of(payment.id);
        let gone = payment.minor_units - payment.left(&returns);
        let share = |gone| bonus_share(order.bonus, units(gone), amount);
        let mut back = 0_u64;
        for row in &returns {
            back = back.saturating_add(self.bonus_gone(row)?);
        }
        // A part that a taking did not find is not claimed later.
        let due = share(gone.saturating_add(minor_units)).saturating_sub(share(gone));
        Ok(min(due, order.bonus.saturating_sub(back)))
    }

    /// Debits the part of a bonus that goes with a return: out of our books, since a promotion is
    /// filled by funding alone. The caller knows that the account has it.
    pub(super) fn take_bonus(
        &mut self,
        call: &RechargeCall,
        payment: &RechargePayment,
        row: &RechargeReturn,
        (user, units): (UserId, u64),
    ) -> Result<Option<ExternalOperation>, Objected> {
        let Some(amount) = Amount::new(units) else { return Ok(None) };
        let key = movement::return_bonus(row.id);
        let external = External {
            idem_key: key.clone(),
            op: Op::ExtWithdraw,
            user,
            asset: payment.asset,
            amount,
            actor: call.actor.clone(),
            order_number: call.bonus_number,
        };
        // Behind the release of its hold the balance may be below zero still.
        let done = self.booked_anyway(&external, false)?;
        let sides = (LedgerAccount::User(user), LedgerAccount::Outside);
        self.movement_of(payment, key, MovementKind::BonusBack, sides, Some(amount));
        Ok(Some(done))
    }
}
