//! The notes of the till before it asks a channel, and behind that.

use jiff::Timestamp;
use tracing::warn;

use super::{CHANNEL, Recharges, made, name_of};
use crate::adapters::Adapter;
use crate::coordinator::Rejection;
use crate::recharge::RechargeId;
use crate::recharge::act::{RechargeAct, RechargeOutcome};
use crate::recharge::order::{Follow, Recharge, RechargeState};
use crate::recharge::payment::RechargePayment;
use crate::recharge::returned::RechargeReturn;
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
