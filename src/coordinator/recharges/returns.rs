//! Refunds of credited payments, facts of channels that take money and give it back, and
//! receivables.
//!
//! A refund is set apart here. The till asks the channel, and ends it by [`Recharges::returned`].

use std::sync::Arc;

use tracing::{error, warn};

use super::{CHANNEL, Recharges, Rejection, name_of};
use crate::adapters::Adapter;
use crate::alert::{Alert, alert_about};
use crate::crash;
use crate::postgres::Error;
use crate::recharge::act::{
    ReceivableCall, RechargeAct, RechargeOutcome, RefundCall, TakeCall, TakingCondition,
};
use crate::recharge::decide::PaymentTold;
use crate::recharge::facts::Taking;
use crate::recharge::payment::{Disposition, RechargePayment};
use crate::recharge::returned::{
    Receivable, ReceivableEnd, RechargeReturn, ReturnKind, ReturnState, taken,
};
use crate::recharge::terms::ChannelTerms;
use crate::recharge::{RechargeId, ReturnId};
use domain::account::UserId;
use domain::amount::Amount;
use domain::code::Code;

/// A return that was made now, or before.
#[derive(Clone, Debug)]
pub struct ReturnMade {
    /// The return.
    pub row: RechargeReturn,
    /// The key was used before, with this body.
    pub replayed: bool,
}

/// The answer to a fact of a channel.
#[derive(Clone, Debug)]
pub struct TakingAnswer {
    /// The answer for the channel.
    pub told: PaymentTold,
    /// The return as it stands; `None`: it is not recorded.
    pub row: Option<RechargeReturn>,
    /// The receivable that it has opened.
    pub receivable: Option<Receivable>,
}

impl TakingAnswer {
    fn told(told: PaymentTold) -> TakingAnswer {
        TakingAnswer { told, row: None, receivable: None }
    }

    pub(super) fn success(row: RechargeReturn, receivable: Option<Receivable>) -> TakingAnswer {
        TakingAnswer { told: PaymentTold::Success, row: Some(row), receivable }
    }
}

impl<T: Adapter, F: Adapter> Recharges<T, F> {
    /// Sets money of a CREDITED payment apart, to go back through its channel, once for the
    /// idempotency key. `amount`: `None` for all that is left.
    ///
    /// # Errors
    /// [`Code::PrecisionOverflow`]: no multiple of the channel's minor unit.
    /// [`Code::NotReturnable`], naming the part that is left. [`Code::IdemKeyConflict`]. The codes
    /// of an EXT_WITHDRAW, which stand for the key. A [`Rejection`].
    pub async fn refund(
        &self,
        payment: &RechargePayment,
        amount: Option<Amount>,
        idem_key: &str,
        actor: &str,
    ) -> Result<ReturnMade, Rejection> {
        self.refuse_unrecovered()?;
        let minor_units = match amount {
            None => None,
            Some(_) if payment.amount.is_none() => return Err(Code::NotReturnable.into()),
            Some(amount) => {
                let units = payment.minor_units_of(amount);
                Some(units.ok_or(Code::PrecisionOverflow)?)
            }
        };
        let act = RechargeAct::Refund(Box::new(RefundCall {
            payment: name_of(payment),
            asset: payment.asset,
            // A repeat behind a restore is asked for under the same number.
            id: ReturnId::of(payment.id, ReturnKind::Refund, idem_key),
            minor_units,
            idem_key: idem_key.to_owned(),
        }));
        let user = self.holder(payment).await?;
        let outcome = self.act(user, actor, act).await?;
        crash::point("return_after_hold");
        let (row, _, replayed) = returned(outcome);
        Ok(ReturnMade { row, replayed })
    }

    /// The channel has taken money of a payment. It is booked once for the channel's own number.
    ///
    /// # Errors
    /// A [`Rejection`]: not known yet, and the channel must come again (503).
    pub async fn taken(
        &self,
        terms: &Arc<ChannelTerms>,
        taking: &Taking,
    ) -> Result<TakingAnswer, Rejection> {
        self.fact(terms, taking, (ReturnKind::Taken, TakingCondition::Always)).await
    }

    /// As [`Recharges::taken`], of a taking that a bill alone has told. It waits for a refund of
    /// the payment that is under way: the channel may refuse that one, and its user has the money
    /// again.
    ///
    /// # Errors
    /// As [`Recharges::taken`]. [`Code::NotReturnable`]: a refund is under way.
    pub async fn taken_by_bill(
        &self,
        terms: &Arc<ChannelTerms>,
        taking: &Taking,
    ) -> Result<TakingAnswer, Rejection> {
        self.fact(terms, taking, (ReturnKind::Taken, TakingCondition::NoRefundUnderWay)).await
    }

    /// The channel has given taken money back. It waits for its taking, and behind a restore for
    /// what its user has paid of it.
    ///
    /// # Errors
    /// As [`Recharges::taken`].
    pub async fn given_back(
        &self,
        terms: &Arc<ChannelTerms>,
        taking: &Taking,
    ) -> Result<TakingAnswer, Rejection> {
        if self.needs_recover() && self.has_lost_debit(terms, taking).await? {
            return Err(Rejection::of(Code::SystemError));
        }
        self.given_back_last(terms, taking).await
    }

    /// The same by the recovery, behind the receivables that it has ended.
    ///
    /// # Errors
    /// As [`Recharges::taken`].
    pub async fn given_back_last(
        &self,
        terms: &Arc<ChannelTerms>,
        taking: &Taking,
    ) -> Result<TakingAnswer, Rejection> {
        self.fact(terms, taking, (ReturnKind::GivenBack, TakingCondition::Always)).await
    }

    async fn fact(
        &self,
        terms: &Arc<ChannelTerms>,
        taking: &Taking,
        (kind, condition): (ReturnKind, TakingCondition),
    ) -> Result<TakingAnswer, Rejection> {
        let recorded = self.reads.channel_payment(&terms.name, &taking.trade_no).await;
        let Some(payment) = recorded.map_err(away)? else {
            return self.of_unknown(terms, taking).await.map(TakingAnswer::told);
        };
        // Its amount would be of another measure.
        if taking.currency != payment.currency {
            return Ok(contradicted(terms, taking));
        }
        if let Some(answer) = self.own(terms, &payment, taking, kind).await? {
            return Ok(answer);
        }
        let id = ReturnId::of(payment.id, kind, &taking.number);
        // A repeat writes nothing, also while halted.
        if let Some(row) = self.reads.recharge_return(id).await.map_err(away)? {
            return Ok(match row.minor_units == taking.minor_units {
                true => TakingAnswer::success(row, None),
                false => contradicted(terms, taking),
            });
        }
        let part = (taking.number.as_str(), taking.minor_units);
        match self.take(&payment, (kind, condition), part, CHANNEL).await {
            Ok((row, receivable, _)) => Ok(TakingAnswer::success(row, receivable)),
            Err(rejection) if rejection.code == Code::IdemKeyConflict => {
                Ok(contradicted(terms, taking))
            }
            // Its taking is not here yet.
            Err(rejection) if rejection.code == Code::RechargeNotFound => {
                Ok(TakingAnswer::told(PaymentTold::NotFound))
            }
            Err(rejection) => Err(rejection),
        }
    }

    /// Books money of a payment that went back at its channel without us, in the name of an
    /// operator, once for the channel's own number. `part`: that number, and how much in the
    /// channel's minor units.
    ///
    /// # Errors
    /// [`Code::IdemKeyConflict`]: the number is recorded with another amount.
    /// [`Code::NotReturnable`]: it is one of our own returns, which its channel ends; it is more
    /// than is left of the payment; or the database was restored, and it may be one that is lost
    /// here. A [`Rejection`].
    pub async fn taken_by_operator(
        &self,
        payment: &RechargePayment,
        part: (&str, i64),
        actor: &str,
    ) -> Result<ReturnMade, Rejection> {
        self.refuse_unrecovered()?;
        // One that has FAILED here is a taking all the same.
        if let Some(id) = ReturnId::parse(part.0)
            && let Some(own) = self.reads.recharge_return(id).await.map_err(away)?
            && own.state != ReturnState::Failed
        {
            return Err(Code::NotReturnable.into());
        }
        let taken = (ReturnKind::Taken, TakingCondition::WithinLeft);
        let (row, _, replayed) = self.take(payment, taken, part, actor).await?;
        Ok(ReturnMade { row, replayed })
    }

    /// Books a fact. Returns the return, the receivable that it has opened, and whether it is a
    /// repeat. `within`: no more than is left of the payment.
    async fn take(
        &self,
        payment: &RechargePayment,
        (kind, condition): (ReturnKind, TakingCondition),
        (number, minor_units): (&str, i64),
        actor: &str,
    ) -> Result<(RechargeReturn, Option<Receivable>, bool), Rejection> {
        let act = RechargeAct::Take(Box::new(TakeCall {
            payment: name_of(payment),
            asset: payment.asset,
            id: ReturnId::of(payment.id, kind, number),
            kind,
            number: number.to_owned(),
            minor_units,
            freezes: self.rules.freeze_on_short,
            condition,
        }));
        let user = self.holder(payment).await?;
        let (row, receivable, replayed) = returned(self.act(user, actor, act).await?);
        if !replayed {
            self.report_taking(payment, &row, receivable.as_ref()).await;
        }
        Ok((row, receivable, replayed))
    }

    /// The answer to a fact of a payment that is not recorded: one that bears our mark comes again.
    async fn of_unknown(
        &self,
        terms: &ChannelTerms,
        taking: &Taking,
    ) -> Result<PaymentTold, Rejection> {
        let marked = taking.merchant_no.as_deref().and_then(RechargeId::parse).is_some();
        let is_ours = match &taking.merchant_no {
            Some(_) => marked,
            // A dispute of a card names the payment alone: its order may have the number.
            None => self.reads.has_reference(&terms.name, &taking.trade_no).await.map_err(away)?,
        };
        if !is_ours {
            return Ok(PaymentTold::Success);
        }
        let (channel, trade_no) = (&terms.name, &taking.trade_no);
        error!(channel, trade_no, "money of a payment that is not here was taken or given back");
        Ok(PaymentTold::NotFound)
    }

    /// A taking that carries our own number is that return, and ends it. One that has FAILED here
    /// is a taking all the same.
    async fn own(
        &self,
        terms: &ChannelTerms,
        payment: &RechargePayment,
        taking: &Taking,
        kind: ReturnKind,
    ) -> Result<Option<TakingAnswer>, Rejection> {
        let Some(id) = ReturnId::parse(&taking.number).filter(|_| kind == ReturnKind::Taken) else {
            return Ok(None);
        };
        let row = self.reads.recharge_return(id).await.map_err(away)?;
        let is_own =
            |row: &RechargeReturn| (row.payment, row.kind) == (payment.id, ReturnKind::Refund);
        let Some(row) = row.filter(is_own) else {
            return self.lost_return(terms, payment, taking, id).await;
        };
        match row.state {
            ReturnState::Failed => {
                error!(%id, "the channel has carried out a return that has failed here");
                return Ok(None);
            }
            ReturnState::Done => {}
            ReturnState::Requested | ReturnState::Ready | ReturnState::Sent => {
                self.returned(payment, id, true).await?;
            }
        }
        Ok(Some(TakingAnswer::success(row, None)))
    }

    /// Logs a fact that a person must see.
    async fn report_taking(
        &self,
        payment: &RechargePayment,
        row: &RechargeReturn,
        receivable: Option<&Receivable>,
    ) {
        let (id, payment_id) = (row.id, payment.id);
        if let Some(receivable) = receivable {
            let user = receivable.user.number();
            let what = format_args!(
                "return {id} of payment {payment_id}: user {user} owes money that a channel has \
                 taken"
            );
            alert_about(Alert::ReceivableOpened, &id, what);
        }
        if payment.disposition != Disposition::Credited {
            let disposition = payment.disposition.name();
            error!(%id, %payment_id, disposition, "a channel moved money of a payment without a user");
        }
        if let Ok(returns) = self.reads.recharge_returns(payment.id).await {
            // As the worker counts: also one that is under way.
            let refunds = returns
                .iter()
                .filter(|row| row.kind == ReturnKind::Refund && row.state != ReturnState::Failed);
            let refunded: i64 = refunds.map(|row| row.minor_units).sum();
            if refunded.saturating_add(taken(&returns)) > payment.minor_units {
                error!(%id, %payment_id, "more of a payment has gone back than has come: a loss");
            }
        }
    }

    /// Debits the user of a receivable with all that is available now, at most the open part, once
    /// for the idempotency key.
    ///
    /// # Errors
    /// [`Code::RechargeNotFound`]; [`Code::InsufficientBalance`]: nothing is available;
    /// [`Code::InvalidRequest`]: nothing is open; [`Code::IdemKeyConflict`]; a [`Rejection`].
    pub async fn recover(
        &self,
        id: ReturnId,
        idem_key: &str,
        actor: &str,
    ) -> Result<Receivable, Rejection> {
        self.end_receivable(id, ReceivableEnd::Recovered, idem_key, actor).await
    }

    /// Gives the open part of a receivable up, once for the idempotency key.
    ///
    /// # Errors
    /// As [`Recharges::recover`]. [`Code::NotReturnable`]: the database was restored, and its user
    /// may have paid.
    pub async fn write_off(
        &self,
        id: ReturnId,
        idem_key: &str,
        actor: &str,
    ) -> Result<Receivable, Rejection> {
        self.refuse_unrecovered()?;
        self.end_receivable(id, ReceivableEnd::WrittenOff, idem_key, actor).await
    }

    pub(super) async fn end_receivable(
        &self,
        id: ReturnId,
        end: ReceivableEnd,
        idem_key: &str,
        actor: &str,
    ) -> Result<Receivable, Rejection> {
        let receivable = self.reads.receivable(id).await.map_err(away)?;
        let receivable = receivable.ok_or(Code::RechargeNotFound)?;
        if let Some(act) = receivable.acts.iter().find(|act| act.idem_key == idem_key) {
            return match act.end == end {
                true => Ok(receivable),
                false => Err(Code::IdemKeyConflict.into()),
            };
        }
        let payment = self.reads.payment(receivable.payment).await.map_err(away)?;
        let payment = payment.ok_or(Code::RechargeNotFound)?;
        let act = RechargeAct::EndReceivable(Box::new(ReceivableCall {
            payment: name_of(&payment),
            asset: receivable.asset,
            id,
            end,
            number: receivable.acts.len() + 1,
            idem_key: idem_key.to_owned(),
        }));
        let outcome = self.act(Some(receivable.user), actor, act).await?;
        let (_, receivable, _) = returned(outcome);
        Ok(receivable.expect("the act is about it"))
    }

    /// The user of a payment: the one that was credited, or the owner of its order.
    pub(super) async fn holder(
        &self,
        payment: &RechargePayment,
    ) -> Result<Option<UserId>, Rejection> {
        match payment.user {
            Some(user) => Ok(Some(user)),
            None => self.owner(payment).await,
        }
    }
}

pub(super) fn away(error: Error) -> Rejection {
    warn!(%error, "a return waits for PostgreSQL");
    Rejection::of(Code::SystemError)
}

pub(super) fn contradicted(terms: &ChannelTerms, taking: &Taking) -> TakingAnswer {
    let (channel, number) = (&terms.name, &taking.number);
    error!(channel, number, "a taking contradicts its record");
    TakingAnswer::told(PaymentTold::Conflict)
}

/// The return of an outcome.
pub(super) fn returned(outcome: RechargeOutcome) -> (RechargeReturn, Option<Receivable>, bool) {
    match outcome {
        RechargeOutcome::Return { row, receivable, replayed } => {
            (*row, receivable.map(|row| *row), replayed)
        }
        outcome => unreachable!("{outcome:?} answers another act"),
    }
}
