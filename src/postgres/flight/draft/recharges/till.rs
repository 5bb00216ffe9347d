//! The acts of the till: a try before its call, a hint, how far money has gone on, and the end of a
//! return.

use jiff::{SignedDuration, Timestamp};

use super::super::super::recharged::RechargeChange;
use super::super::{Draft, Objected, violation};
use super::{Matter, decided};
use crate::recharge::ReturnId;
use crate::recharge::act::{PaymentName, RechargeCall, RechargeOutcome, RechargeReply};
use crate::recharge::decide::PaymentDecision;
use crate::recharge::movement::MovementKind;
use crate::recharge::order::{
    Follow, FollowState, Recharge, RechargeState, RechargeStep, RechargeTarget,
};
use crate::recharge::payment::{Disposition, HeldCause, PaymentEvent};
use crate::recharge::returned::{RechargeReturn, ReturnEvent, ReturnState};
use domain::code::Code;

/// The shortest time between a try of an order and a question that a hint has made due.
const HINT_EVERY: SignedDuration = SignedDuration::from_secs(3);

impl Draft<'_> {
    /// Writes down a try, if the order stands as the till has read it. So no create follows a wish
    /// that the till has not seen.
    pub(super) fn tried(
        &mut self,
        mut order: Recharge,
        version: u64,
        next_at: Timestamp,
    ) -> RechargeReply {
        let id = order.id;
        let granted = order.version == version && order.next_at.is_some();
        if granted {
            order.attempts = order.attempts.saturating_add(1);
            order.next_at = Some(next_at);
            self.write_order(order.clone(), Vec::new());
        }
        let order = Box::new(self.order(id).unwrap_or(order));
        RechargeReply::plain(RechargeOutcome::Order { order, replayed: !granted })
    }

    /// Makes the next question due: the channel, or the owner, expects something new.
    pub(super) fn hinted(&mut self, mut order: Recharge) -> RechargeReply {
        let soon = order.updated_at.saturating_add(HINT_EVERY).unwrap_or(Timestamp::MAX);
        let due = soon.max(self.flight.at);
        let asked = order.is_open() && (order.state != RechargeState::Init || order.is_closing());
        let changes = asked && order.next_at.is_none_or(|at| at > due);
        if changes {
            order.next_at = Some(due);
            self.write_order(order.clone(), Vec::new());
        }
        let order = Box::new(order);
        RechargeReply::plain(RechargeOutcome::Order { order, replayed: !changes })
    }

    /// Writes down how far the money of a PAID order has gone on. An end stands.
    pub(super) fn followed(
        &mut self,
        call: &RechargeCall,
        mut order: Recharge,
        follow: Follow,
    ) -> RechargeReply {
        let goes_on = order.state == RechargeState::Paid && order.target == RechargeTarget::Spot;
        let changes = goes_on
            && order.follow.state == FollowState::Waiting
            && order.follow != follow
            && order.follow.req_id.is_none_or(|req_id| follow.req_id == Some(req_id));
        if changes {
            order.follow = follow;
            let mut steps = Vec::new();
            if follow.state != FollowState::Waiting {
                order.next_at = None;
                let code = follow.code.map_or(String::new(), |code| format!(" {}", code.name()));
                let reason = Some(format!("to Spot: {}{code}", follow.state.name()));
                steps.push(RechargeStep { state: order.state, actor: call.actor.clone(), reason });
            }
            if follow.state == FollowState::Arrived {
                let (user, id) = (Some(order.user), Some(order.id));
                self.notice(RechargeChange::Forwarded, user, id, None, 0);
            }
            self.write_order(order.clone(), steps);
        }
        let order = Box::new(order);
        RechargeReply::plain(RechargeOutcome::Order { order, replayed: !changes })
    }

    /// Writes down a try of a return, if it stands as the till has read it: READY becomes SENT.
    pub(super) fn sent(
        &mut self,
        name: &PaymentName,
        id: ReturnId,
        version: u64,
        next_at: Timestamp,
    ) -> Result<RechargeReply, Objected> {
        let payment = self.payment(&(name.channel.clone(), name.trade_no.clone()));
        let known = &self.known.recharges;
        let row = self.desk.returns.get(&id).or_else(|| known.returns.get(&id)).cloned();
        let Some((payment, mut row)) = payment.zip(row) else {
            return Ok(RechargeReply::refused(Code::RechargeNotFound, None));
        };
        if row.payment != payment.id {
            return Err(violation(format!("return {id} is of another payment")));
        }
        let to = match row.state {
            ReturnState::Sent => Some(ReturnState::Sent),
            state => state.next(ReturnEvent::Asked),
        };
        let granted = to.filter(|_| row.version == version && row.next_at.is_some());
        if let Some(state) = granted {
            row.state = state;
            row.attempts = row.attempts.saturating_add(1);
            row.next_at = Some(next_at);
            self.write_return(row.clone());
            row = self.desk.returns.get(&id).cloned().unwrap_or(row);
        }
        let (row, replayed) = (Box::new(row), granted.is_none());
        let receivable = None;
        Ok(RechargeReply::plain(RechargeOutcome::Return { row, receivable, replayed }))
    }

    /// The channel has ended a return.
    pub(super) fn end_return(
        &mut self,
        call: &RechargeCall,
        name: &PaymentName,
        id: ReturnId,
        gone: Result<(), Code>,
        order: Option<Recharge>,
    ) -> Result<RechargeReply, Objected> {
        let payment = self.payment(&(name.channel.clone(), name.trade_no.clone()));
        let known = &self.known.recharges;
        let row = self.desk.returns.get(&id).or_else(|| known.returns.get(&id)).cloned();
        let Some((payment, mut row)) = payment.zip(row) else {
            return Ok(RechargeReply::refused(Code::RechargeNotFound, None));
        };
        if row.payment != payment.id {
            return Err(violation(format!("return {id} is of another payment")));
        }
        if payment.recharge != name.recharge {
            return Ok(decided(PaymentDecision::Repeat, Some(payment)));
        }
        let event = if gone.is_ok() { ReturnEvent::Gone } else { ReturnEvent::Refused };
        let asked = row.state.next(ReturnEvent::Asked).unwrap_or(row.state);
        let Some(ended) = asked.next(event) else {
            let (credit, bonus) = (self.credited_before(call), self.bonus_before(call));
            return Ok(RechargeReply {
                credit,
                bonus,
                ..decided(PaymentDecision::Repeat, Some(payment))
            });
        };
        row.code = gone.err();
        let gone = gone.is_ok();
        if payment.disposition == Disposition::Credited {
            let (credit, bonus) = self.end_refund(call, &payment, &row, gone)?;
            self.write_return(RechargeReturn { state: ended, next_at: None, ..row });
            return Ok(RechargeReply {
                credit,
                bonus,
                ..decided(PaymentDecision::Repeat, Some(payment))
            });
        }
        let event = if gone { PaymentEvent::Gone } else { PaymentEvent::Refused };
        let Some(to) = payment.disposition.next(event) else {
            return Err(violation(format!("payment {} is not on its way back", payment.id)));
        };
        (row.state, row.next_at) = (ended, None);
        self.write_return(row.clone());
        let mut matter = Matter::recorded(payment, order);
        let owner = matter.order.as_ref().map(|order| order.user);
        let recharge = matter.payment.recharge;
        if gone {
            let before = matter.payment.in_suspense(&self.returns_of(matter.payment.id));
            self.leaves(&matter.payment, &row, MovementKind::Return, (before, 0));
            matter.goes(to);
            self.notice(RechargeChange::Returned, owner, recharge, Some(&matter.payment), 0);
        } else {
            // The part that the channel gave back before is not ours to credit.
            let part = matter.payment.cause.filter(|cause| *cause == HeldCause::PartReturned);
            self.held(&mut matter, part.unwrap_or(HeldCause::ReturnRefused));
        }
        let payment = self.write_payment(matter);
        Ok(decided(PaymentDecision::Repeat, Some(payment)))
    }
}
