//! The part of a payment that its user bears of the money that the channel has taken: paid, or owed
//! by a receivable.
//!
//! The law: the user bears the taken money, at most the part that refunds leave of the payment,
//! less the part that was written off. Each act that changes one side moves the money of the other
//! side: a taking, money that is given back, and a refund that is refused behind a taking, which
//! counted it as gone.

use std::cmp::min;

use super::super::Key;
use super::super::recharged::RechargeChange;
use super::{Draft, Known, Objected, Rows, violation};
use crate::postgres::store::External;
use crate::recharge::act::{RechargeAct, RechargeCall};
use crate::recharge::movement::{self, LedgerAccount, MovementKind};
use crate::recharge::payment::RechargePayment;
use crate::recharge::promotion::bonus_share;
use crate::recharge::returned::{
    Receivable, ReceivableEnd, RechargeReturn, ReturnKind, ReturnState,
};
use crate::recharge::{PaymentId, ReturnId};
use domain::account::UserId;
use domain::amount::Amount;
use domain::transfer::{Decision, ExternalOperation, Op};

/// The external operations that show the money that the user of a payment has paid.
pub(super) fn wanted(call: &RechargeCall, known: &Known, rows: &mut Rows) {
    let payment = match &call.act {
        RechargeAct::Take(take) => take.payment.id,
        RechargeAct::Refund(refund) => refund.payment.id,
        RechargeAct::EndReturn { payment, .. } => payment.id,
        _ => return,
    };
    let returns = known.recharges.returns.values().filter(|row| row.payment == payment);
    for row in returns {
        match row.kind {
            ReturnKind::Taken | ReturnKind::GivenBack => {
                rows.externals.insert(movement::return_key(row.id));
            }
            ReturnKind::Refund if row.state == ReturnState::Failed => {
                rows.externals.insert(movement::return_taken(row.id));
                rows.externals.insert(movement::return_bonus(row.id));
            }
            ReturnKind::Refund => {}
        }
    }
}

impl Draft<'_> {
    /// The amount of an external operation, smallest units; 0: there is none.
    pub(super) fn booked_units(&self, key: &str) -> Result<u64, Objected> {
        self.readable(&Key::External(key.to_owned()))?;
        let here = self.externals.get(key).map(|place| &self.flight.externals[*place]);
        let row = here.or_else(|| self.known.externals.get(key));
        let row = row.filter(|row| row.decision == Decision::Success);
        Ok(row.map_or(0, |row| row.external.amount.units()))
    }

    /// The bonus that has gone with a return, or is apart for it, smallest units. Of a refused
    /// refund, a part may have gone.
    pub(super) fn bonus_gone(&self, row: &RechargeReturn) -> Result<u64, Objected> {
        match row.state {
            ReturnState::Failed => self.booked_units(&movement::return_bonus(row.id)),
            _ => Ok(row.bonus),
        }
    }

    /// The money that the user of a payment has paid and owes beside its refunds, smallest units.
    /// `but`: a return that does not count.
    pub(super) fn borne(&self, payment: PaymentId, but: ReturnId) -> Result<u64, Objected> {
        let (mut paid, mut given_back) = (0_u64, 0_u64);
        for row in self.returns_of(payment).into_iter().filter(|row| row.id != but) {
            let (sum, key) = match row.kind {
                ReturnKind::GivenBack => (&mut given_back, movement::return_key(row.id)),
                ReturnKind::Taken => (&mut paid, movement::return_key(row.id)),
                ReturnKind::Refund if row.state == ReturnState::Failed => {
                    (&mut paid, movement::return_taken(row.id))
                }
                ReturnKind::Refund => continue,
            };
            *sum = sum.saturating_add(self.booked_units(&key)?);
        }
        for receivable in self.receivables_of(payment) {
            let acts = receivable.acts.iter().filter(|act| act.end == ReceivableEnd::Recovered);
            let recovered = acts.fold(0_u64, |sum, act| sum.saturating_add(act.amount.units()));
            paid = paid.saturating_add(recovered).saturating_add(receivable.open());
        }
        Ok(paid.saturating_sub(given_back))
    }

    /// The part of a taking that its user bears, smallest units. `left`: of the payment, in minor
    /// units. Its row is written.
    pub(super) fn borne_of_taking(
        &self,
        payment: &RechargePayment,
        row: &RechargeReturn,
        left: i64,
    ) -> Result<u64, Objected> {
        let part = payment.amount_of(min(left, row.minor_units)).map_or(0, Amount::units);
        // A refund that was refused behind this taking may be adopted before it.
        let bears = bears(payment, &self.returns_of(payment.id));
        Ok(min(part, bears.saturating_sub(self.borne(payment.id, row.id)?)))
    }

    /// The part of money that is given back that is its user's, smallest units: the rest makes
    /// losses good. `own`: the receivable of the same dispute. The row of the return is written.
    pub(super) fn users_part(
        &self,
        payment: &RechargePayment,
        row: &RechargeReturn,
        own: Option<&Receivable>,
    ) -> Result<u64, Objected> {
        let returns = self.returns_of(payment.id);
        let before: Vec<RechargeReturn> =
            returns.iter().filter(|one| one.id != row.id).cloned().collect();
        let borne = self.borne(payment.id, row.id)?;
        // A part that was written off stays so. That of this dispute ends with it.
        let forgiven = bears(payment, &before).saturating_sub(borne);
        let forgiven = forgiven.saturating_sub(own.map_or(0, |own| own.written_off));
        let due = bears(payment, &returns).saturating_sub(forgiven);
        let whole = payment.amount_of(row.minor_units).map_or(0, Amount::units);
        Ok(min(borne.saturating_sub(due), whole))
    }

    /// A refund is refused, and its hold is released. The part of it that the channel has taken
    /// meanwhile is the user's to pay, with its bonus: that taking left it to the refund, as a
    /// loss. Returns the operations that take both.
    pub(super) fn take_refused(
        &mut self,
        call: &RechargeCall,
        payment: &RechargePayment,
        row: &RechargeReturn,
        user: UserId,
    ) -> Result<(Option<ExternalOperation>, Option<ExternalOperation>), Objected> {
        let before = self.returns_of(payment.id);
        let mut after = before.clone();
        for one in after.iter_mut().filter(|one| one.id == row.id) {
            one.state = ReturnState::Failed;
        }
        let bears_now = bears(payment, &after);
        let over = min(
            bears_now.saturating_sub(bears(payment, &before)),
            bears_now.saturating_sub(self.borne(payment.id, row.id)?),
        );
        let key = movement::return_taken(row.id);
        // A debit that a repair has restored stands.
        let over = match self.booked_units(&key)? {
            0 => over,
            restored => restored,
        };
        let Some(amount) = Amount::new(over) else { return Ok((None, None)) };
        let whole = payment.amount_of(row.minor_units);
        let Some(whole) = whole.filter(|whole| over <= whole.units()) else {
            return Err(violation(format!("return {} has taken more than it is", row.id)));
        };
        let external = External {
            idem_key: key.clone(),
            op: Op::ExtWithdraw,
            user,
            asset: payment.asset,
            amount,
            actor: call.actor.clone(),
            order_number: call.order_number,
        };
        // The money is that of the hold. Behind its release the balance may be below zero still.
        let done = self.booked_anyway(&external, false)?;
        let sides = (LedgerAccount::User(user), LedgerAccount::Loss(payment.channel.clone()));
        self.movement_of(payment, key, MovementKind::Taken, sides, Some(amount));
        let bonus = bonus_share(row.bonus, over, whole);
        let bonus = self.take_bonus(call, payment, row, (user, bonus))?;
        self.notice_beside(RechargeChange::Taken, user, payment, done.order_number);
        Ok((Some(done), bonus))
    }
}

/// The part of a payment that its user has to bear, smallest units.
fn bears(payment: &RechargePayment, returns: &[RechargeReturn]) -> u64 {
    payment.amount_of(payment.bears(returns)).map_or(0, Amount::units)
}
