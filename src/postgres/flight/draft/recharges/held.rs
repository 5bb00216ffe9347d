//! The end of a HELD payment, by an operator.

use super::super::{Draft, Objected};
use super::{Matter, decided};
use crate::recharge::act::{HeldEnd, PaymentName, RechargeCall, RechargeReply};
use crate::recharge::decide::{PaymentDecision, RestoredCredit};
use crate::recharge::movement::{self, LedgerAccount, MovementKind};
use crate::recharge::order::Recharge;
use crate::recharge::payment::{HeldCause, PaymentEvent, RechargePayment};
use crate::recharge::returned::{RechargeReturn, ReturnKind, taken};
use domain::code::Code;

/// Why an operator does not end a payment otherwise that was credited before a restore.
const CREDITED: &str = "UBSCore's log has a credit of this payment. Credit it to the same user, which books nothing \
                        again, or compare the amounts.";
/// Why an operator does not end a payment without an order, if a restore has lost the order.
const LOST: &str = "UBSCore's log has a credit of the order that this payment names, and the order is not here: \
                    run `ubscore recharge recover`, or rematch the payment once the order is back.";

impl Draft<'_> {
    /// An operator ends a HELD payment: a compare-and-set of its disposition.
    pub(super) fn end_held(
        &mut self,
        call: &RechargeCall,
        name: &PaymentName,
        how: HeldEnd,
        order: Option<Recharge>,
    ) -> Result<RechargeReply, Objected> {
        let key = (name.channel.clone(), name.trade_no.clone());
        // A caller has read it, so it is committed.
        let committed = self.known.recharges.payments.contains_key(&key);
        let Some(payment) = self.payment(&key).filter(|_| committed) else {
            return Ok(RechargeReply::refused(Code::RechargeNotFound, None));
        };
        // It was matched meanwhile: the caller looks again.
        if payment.recharge != name.recharge {
            return Ok(decided(PaymentDecision::Repeat, Some(payment)));
        }
        let event = match how {
            HeldEnd::Credit => PaymentEvent::Credit,
            HeldEnd::Return(_) => PaymentEvent::Return,
            HeldEnd::Dismiss => PaymentEvent::Dismiss,
        };
        let Some(to) = payment.disposition.next(event) else {
            let mut reply = decided(PaymentDecision::Repeat, Some(payment));
            reply.credit = self.credited_before(call);
            return Ok(reply);
        };
        let mut pays = order.as_ref().is_some_and(|order| !order.state.is_terminal());
        let owner = order.as_ref().map(|order| order.user).or(call.user);
        let arrived = (payment.asset, payment.amount);
        let mut restored = None;
        let is_others = self.has_lost_order(&payment)?;
        match self.restored_credit(payment.id, order.as_ref(), owner, arrived)? {
            RestoredCredit::Ours { key, pays: paid } if how == HeldEnd::Credit => {
                (restored, pays) = (Some(key), paid);
            }
            RestoredCredit::Nothing if is_others => {
                return Ok(RechargeReply::refused(Code::NotReturnable, Some(LOST.to_owned())));
            }
            RestoredCredit::Nothing => {}
            RestoredCredit::Ours { .. } | RestoredCredit::Other => {
                return Ok(RechargeReply::refused(Code::NotReturnable, Some(CREDITED.to_owned())));
            }
        }
        if restored.is_none()
            && how == HeldEnd::Credit
            && let Some(why) = self.no_credit(&payment, order.as_ref())?
        {
            return Ok(RechargeReply::refused(Code::InvalidRequest, Some(why.to_owned())));
        }
        let returns = self.returns_of(payment.id);
        let in_suspense = payment.in_suspense(&returns);
        if matches!(how, HeldEnd::Return(_))
            && let Some(why) = no_return(&payment, &returns)
        {
            return Ok(RechargeReply::refused(Code::NotReturnable, Some(why.to_owned())));
        }
        let mut matter = Matter { restored, ..Matter::recorded(payment, order) };
        let mut credit = None;
        let decision = match how {
            HeldEnd::Credit => match self.credit(call, &mut matter, pays)? {
                Ok(done) => {
                    credit = Some(done);
                    // No operator gives a bonus; one that was given before a restore is adopted.
                    if self.adopts_bonus(&matter)? {
                        self.give_bonus(call, &mut matter)?;
                    }
                    PaymentDecision::Credit { pays }
                }
                Err(code) => return Ok(RechargeReply::refused(code, None)),
            },
            HeldEnd::Return(id) => {
                self.returning(&mut matter, id);
                PaymentDecision::Return
            }
            HeldEnd::Dismiss => {
                let suspense = LedgerAccount::Suspense(matter.payment.channel.clone());
                let (key, kind) =
                    (movement::payment_dismiss(matter.payment.id), MovementKind::Dismiss);
                let amount = matter.payment.amount_of(in_suspense);
                let sides = (suspense, LedgerAccount::Outside);
                self.movement_of(&matter.payment, key, kind, sides, amount);
                PaymentDecision::Repeat
            }
        };
        if how == HeldEnd::Dismiss {
            matter.goes(to);
        }
        if how != HeldEnd::Credit {
            self.ended_unpaid(call, &mut matter);
        }
        let bonus = matter.bonus.take();
        let payment = self.write_payment(matter);
        Ok(RechargeReply { credit, bonus, ..decided(decision, Some(payment)) })
    }

    /// Why an operator cannot credit a HELD payment; `None`: it can be.
    fn no_credit(
        &self,
        payment: &RechargePayment,
        order: Option<&Recharge>,
    ) -> Result<Option<&'static str>, Objected> {
        if payment.amount.is_none() || payment.cause == Some(HeldCause::Currency) {
            return Ok(Some("No asset stands for this payment."));
        }
        if payment.cause == Some(HeldCause::PartReturned) || taken(&self.returns_of(payment.id)) > 0
        {
            return Ok(Some("The channel has given a part of this payment back."));
        }
        let Some(order) = order else { return Ok(None) };
        if order.asset != payment.asset {
            return Ok(Some("The order of this payment is of another asset."));
        }
        let is_over = order.state.is_terminal();
        if is_over && self.credited_otherwise(order)? == Some(HeldCause::Duplicate) {
            return Ok(Some("The order of this payment was credited before."));
        }
        Ok(None)
    }
}

/// Why a HELD payment cannot be sent back; `None`: it can be. `returns`: all of its own.
fn no_return(payment: &RechargePayment, returns: &[RechargeReturn]) -> Option<&'static str> {
    if payment.in_suspense(returns) == 0 {
        return Some("The channel has taken all of this payment back.");
    }
    // The channel would be asked for the whole.
    let is_booked = returns.iter().any(|row| row.kind == ReturnKind::Taken);
    let in_part = payment.cause == Some(HeldCause::PartReturned);
    (in_part && !is_booked).then_some(
        "A part of this payment went back at its channel, and no record says how much: book that \
         part first, by `ubscore recharge taken`, or dismiss the payment.",
    )
}
