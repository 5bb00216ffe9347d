//! The notes of the till before it asks a channel, and behind that.

use jiff::Timestamp;
use tracing::warn;

use super::{CHANNEL, PaymentAnswer, Recharges, made, name_of};
use crate::adapters::Adapter;
use crate::alert::{Alert, alert_about};
use crate::coordinator::Rejection;
use crate::postgres::reads::recharges::DueOrder;
use crate::postgres::recover::RECOVER_NEXT;
use crate::recharge::act::{RechargeAct, RechargeOutcome};
use crate::recharge::facts::{Facts, Returned};
use crate::recharge::order::{Follow, Recharge, RechargeState};
use crate::recharge::payment::{Disposition, HeldCause, RechargePayment};
use crate::recharge::returned::{RechargeReturn, ReturnKind, ReturnState};
use crate::recharge::{RechargeId, ReturnId};
use domain::code::Code;

impl<T: Adapter, F: Adapter> Recharges<T, F> {
    /// Writes down a try before its call. `next_at`: when the till looks at the order next, if the
    /// call has no end. `None`: the order is not as `order` any more, and nothing may be asked.
    ///
    /// # Errors
    /// [`Code::RechargeNotFound`]; a [`Rejection`]: nothing may be asked.
    pub async fn tried(
        &self,
        order: &Recharge,
        next_at: Timestamp,
    ) -> Result<Option<Recharge>, Rejection> {
        let (id, version) = (order.id, order.version);
        let act = RechargeAct::Try { id, version, next_at };
        let tried = made(self.act(Some(order.user), CHANNEL, act).await?)?;
        Ok((!tried.replayed).then_some(tried.order))
    }

    /// Makes the next question about an order due, at most every 3 s: its channel, or its owner,
    /// expects something new. An order that nothing is asked about stays as it is.
    ///
    /// # Errors
    /// A [`Rejection`]: the order has its time all the same.
    pub async fn hinted(&self, id: RechargeId) -> Result<(), Rejection> {
        let order = self.reads.recharge(id).await.map_err(|error| {
            warn!(%error, "a hint waits for PostgreSQL");
            Rejection::of(Code::SystemError)
        })?;
        // The act decides; this saves its flight.
        let asked = |order: &Recharge| {
            order.is_open() && (order.state != RechargeState::Init || order.is_closing())
        };
        let Some(order) = order.filter(asked) else { return Ok(()) };
        made(self.act(Some(order.user), CHANNEL, RechargeAct::Hint { id }).await?)?;
        Ok(())
    }

    /// An order that is over, with the channel's numbers of its payments, if one of them was
    /// credited: its channel may give that back behind our back.
    ///
    /// # Errors
    /// A [`Rejection`]: PostgreSQL is away.
    pub async fn over(&self, id: RechargeId) -> Result<Option<DueOrder>, Rejection> {
        let away = |error| {
            warn!(%error, "a hint waits for PostgreSQL");
            Rejection::of(Code::SystemError)
        };
        let order = self.reads.recharge(id).await.map_err(away)?;
        let Some(order) = order.filter(|order| order.state.is_terminal()) else { return Ok(None) };
        let payments = self.reads.payments_of(&[id]).await.map_err(away)?;
        if !payments.iter().any(|payment| payment.disposition == Disposition::Credited) {
            return Ok(None);
        }
        let mut references: Vec<String> = order.reference.iter().cloned().collect();
        references.extend(payments.into_iter().map(|payment| payment.trade_no));
        references.sort_unstable();
        references.dedup();
        Ok(Some(DueOrder { order, references }))
    }

    /// Raises an alert where the channel has given money of a CREDITED payment back, and nothing
    /// here explains it: all of it, and returns and takings are less; or a part, and there is none.
    /// Nothing changes.
    pub(super) async fn report_gone(&self, facts: &Facts, answer: &PaymentAnswer) {
        let Some(payment) = &answer.payment else { return };
        if answer.decision.writes() || !is_unexplained(payment, facts, &[]) {
            return;
        }
        let returns = match self.reads.recharge_returns(payment.id).await {
            Ok(returns) => returns,
            Err(error) => {
                warn!(%error, "the returns of a payment cannot be read");
                return;
            }
        };
        if !is_unexplained(payment, facts, &returns) {
            return;
        }
        let how_much = if facts.returned == Returned::Whole { "all" } else { "a part" };
        let (id, trade_no, channel) = (payment.id, &payment.trade_no, &payment.channel);
        // Behind a restore it may be a refund that is lost here, and its user has paid it.
        let next = match self.needs_recover() {
            true => format!("the database was restored, and a refund may be lost: {RECOVER_NEXT}"),
            false => "its user still has the money: book it by `ubscore recharge taken`".to_owned(),
        };
        let what = format_args!(
            "payment {id}, {trade_no} of channel {channel}: the channel has given {how_much} of it \
             back, and the returns here do not explain it; {next}"
        );
        alert_about(Alert::RechargeContradiction, &id, what);
    }

    /// The sum of a payment's returns that its channel may know, beside this one: those that were
    /// SENT, and those that it has made by itself. Minor units.
    ///
    /// # Errors
    /// A [`Rejection`]: PostgreSQL is away.
    pub async fn returned_here(
        &self,
        payment: &RechargePayment,
        beside: ReturnId,
    ) -> Result<i64, Rejection> {
        let returns = self.reads.recharge_returns(payment.id).await.map_err(|error| {
            warn!(%error, "a return waits for PostgreSQL");
            Rejection::of(Code::SystemError)
        })?;
        let known = returns.iter().filter(|row| {
            row.id != beside
                && row.kind != ReturnKind::GivenBack
                && matches!(row.state, ReturnState::Sent | ReturnState::Done)
        });
        Ok(known.map(|row| row.minor_units).sum())
    }

    /// Writes down how far the money of a PAID order has gone on. An end stands.
    ///
    /// # Errors
    /// [`Code::RechargeNotFound`]; a [`Rejection`].
    pub async fn followed(&self, order: &Recharge, follow: Follow) -> Result<Recharge, Rejection> {
        let act = RechargeAct::Follow { id: order.id, follow };
        Ok(made(self.act(Some(order.user), CHANNEL, act).await?)?.order)
    }

    /// Writes down a try of a return before its call: READY becomes SENT. `None`: the return is not
    /// as `back` any more, and nothing may be asked.
    ///
    /// # Errors
    /// As [`Recharges::tried`].
    pub async fn sent(
        &self,
        payment: &RechargePayment,
        back: &RechargeReturn,
        next_at: Timestamp,
    ) -> Result<Option<RechargeReturn>, Rejection> {
        let user = self.holder(payment).await?;
        let (payment, id, version) = (name_of(payment), back.id, back.version);
        let act = RechargeAct::Send { payment, id, version, next_at };
        match self.act(user, CHANNEL, act).await? {
            RechargeOutcome::Return { row, replayed, .. } => Ok((!replayed).then_some(*row)),
            outcome => unreachable!("{outcome:?} answers another act"),
        }
    }
}

/// Whether a channel has given money of a credited payment back, and none of its returns explains
/// that.
fn is_unexplained(payment: &RechargePayment, facts: &Facts, returns: &[RechargeReturn]) -> bool {
    let credited = payment.disposition == Disposition::Credited
        // A part was gone before it was credited.
        && payment.cause != Some(HeldCause::PartReturned);
    let explained = match facts.returned {
        Returned::None => true,
        Returned::Part => returns.iter().any(|row| row.state != ReturnState::Failed),
        Returned::Whole => payment.left(returns) == 0,
    };
    credited && !explained
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recharge::PaymentId;
    use crate::recharge::decide::tests::{facts, recorded};

    /// Goal: only what nothing explains calls an operator.
    #[test]
    fn a_return_of_ours_explains_what_has_gone_back() {
        let back = |kind, state| RechargeReturn {
            id: ReturnId::new(6).expect("not zero"),
            payment: PaymentId::new(5).expect("not zero"),
            kind,
            minor_units: 4_000,
            state,
            next_at: None,
            created_at: facts().paid_at,
            updated_at: facts().paid_at,
            version: 1,
            idem_key: None,
            number: None,
            code: None,
            attempts: 0,
            bonus: 0,
        };
        let credited = recorded(&facts(), Disposition::Credited, None);
        let part = Facts { returned: Returned::Part, ..facts() };
        let whole = Facts { returned: Returned::Whole, ..facts() };
        assert!(is_unexplained(&credited, &part, &[]));
        assert!(is_unexplained(
            &credited,
            &whole,
            &[back(ReturnKind::Refund, ReturnState::Failed)]
        ));
        assert!(!is_unexplained(&credited, &facts(), &[]), "nothing has gone back");
        for state in [ReturnState::Requested, ReturnState::Sent, ReturnState::Done] {
            assert!(!is_unexplained(&credited, &part, &[back(ReturnKind::Refund, state)]));
        }
        let taken = back(ReturnKind::Taken, ReturnState::Done);
        assert!(!is_unexplained(&credited, &part, std::slice::from_ref(&taken)));
        assert!(is_unexplained(&credited, &whole, std::slice::from_ref(&taken)), "all but a part");
        let rest = RechargeReturn {
            minor_units: credited.minor_units - taken.minor_units,
            ..back(ReturnKind::Refund, ReturnState::Sent)
        };
        assert!(!is_unexplained(&credited, &whole, &[taken, rest]));
        let cause = Some(HeldCause::PartReturned);
        let late = recorded(&facts(), Disposition::Credited, cause);
        assert!(!is_unexplained(&late, &part, &[]), "it was credited with that known");
        let returned = recorded(&facts(), Disposition::Returned, None);
        assert!(!is_unexplained(&returned, &whole, &[]), "no user has it");
    }
}
