//! One look at one order that is due: the try is written down, then its channel is asked, then the
//! answer is written down.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tracing::{debug, info, warn};

use super::call::Shop;
use super::parts::Nudge;
use super::step::{
    Left, TillStep, TillVerdict, first_query, gives_up, is_stuck, left_by, next_try, step, verdict,
};
use super::watch;
use crate::adapters::Adapter;
use crate::channels::open::OpenChannel;
use crate::channels::{ChannelLimits, CreateAsk, OrderAsk};
use crate::coordinator::Rejection;
use crate::coordinator::recharges::PaymentAnswer;
use crate::coordinator::recharges::forward::Forwarding;
use crate::crash;
use crate::postgres::reads::recharges::DueOrder;
use crate::recharge::answers::{Closing, Created, Queried};
use crate::recharge::facts::Facts;
use crate::recharge::order::{ClosingWish, Follow, FollowState, Recharge};
use crate::recharge::payment::SeenBy;
use domain::code::Code;
use domain::transfer::State;

/// The actor of wishes that the till has by itself.
const TILL: &str = "till";
/// How long a job waits for the end of a transfer to Spot; the next look sees it.
const FORWARD_WAIT: Duration = Duration::from_secs(5);
/// The text that a payer sees.
const DESCRIPTION: &str = "Recharge";

/// The limits of a channel that is not configured any more: no step that is left has one.
const UNCONFIGURED: ChannelLimits = ChannelLimits {
    close_after: Duration::ZERO,
    expiry_max: Duration::ZERO,
    proof_bytes_max: 0,
    ends_payment: false,
};

impl<T: Adapter, F: Adapter> Shop<T, F> {
    /// Does the step that is due for an order.
    ///
    /// # Errors
    /// A [`Rejection`]: the row has its time, or the order is looked at again soon.
    pub(super) async fn order(&self, due: DueOrder) -> Result<(), Rejection> {
        let DueOrder { order, references } = due;
        let (channel, now) = (self.channels.get(&order.channel), self.now());
        let limits = channel.map_or(UNCONFIGURED, |open| open.channel.limits());
        let step = step(&order, &limits, now);
        match step {
            // A channel that was taken out of the configuration cannot be asked.
            _ if channel.is_none() && !matches!(step, TillStep::Follow | TillStep::GiveBack) => {
                return Err(Rejection::of(Code::SystemError));
            }
            // It was selected as due. Passed over for a while, it cannot be in the way.
            TillStep::Nothing(_) => return Err(Rejection::of(Code::SystemError)),
            TillStep::Wish(wish) => {
                self.recharges.wished(&order, wish, TILL).await?;
                return Ok(());
            }
            // It asks no channel, and its transaction compares the version.
            TillStep::GiveBack => return self.recharges.bonus_returned(&order).await,
            _ => {}
        }
        let pace = self.options.pace();
        let next_at = next_try(&order, step, &limits, pace, now, self.random());
        // Another version of the row is another decision.
        let Some(order) = self.recharges.tried(&order, next_at).await? else { return Ok(()) };
        if self.is_quiet() {
            return Ok(());
        }
        if step == TillStep::Follow {
            return self.follow(&order).await;
        }
        let Some(channel) = channel else { return Ok(()) };
        match step {
            TillStep::Create => self.create(channel, &limits, &order, references).await,
            TillStep::Close => {
                let is_closed = self.close(channel, &order, &references).await;
                self.query(channel, &limits, &order, references, is_closed).await
            }
            TillStep::Query => self.query(channel, &limits, &order, references, false).await,
            TillStep::Follow | TillStep::Wish(_) | TillStep::GiveBack | TillStep::Nothing(_) => {
                Ok(())
            }
        }
    }

    async fn create(
        &self,
        channel: &Arc<OpenChannel>,
        limits: &ChannelLimits,
        order: &Recharge,
        references: Vec<String>,
    ) -> Result<(), Rejection> {
        let proof = self.recharges.proofs().sign(order);
        let (no, currency) = (order.id.to_string(), channel.terms.currency.clone());
        let url = channel.callback_url.clone();
        let (minor_units, expires_at, first) =
            (order.minor_units, order.expires_at, order.created_at);
        let created = self.call(channel, "create", move |channel| {
            channel.create(&CreateAsk {
                merchant_no: &no,
                minor_units,
                currency: &currency,
                description: DESCRIPTION,
                proof: &proof,
                callback_url: &url,
                expires_at,
                first_tried_at: first,
            })
        });
        let created = created.await;
        crash::point("recharge_after_ask");
        match created {
            Some(Created::Created { reference, pay }) => {
                let next_at = first_query(order, self.options.pace(), self.now());
                let pay = Some(pay.to_json());
                self.recharges.noted(order, Some(reference), pay, Some(next_at)).await?;
            }
            // An earlier create has arrived, and its payer was faster than its answer.
            Some(Created::Paid) => {
                self.query(channel, limits, order, references, false).await?;
            }
            Some(Created::Refused(code)) => {
                warn!(recharge_id = %order.id, code, "a channel refuses an order");
                self.recharges.wished(order, ClosingWish::Refused, TILL).await?;
            }
            Some(Created::Unknown(_)) | None => {}
        }
        Ok(())
    }

    /// Ends an order at its channel. Its answer alone closes nothing: the question behind it does.
    /// Returns whether the channel has answered.
    async fn close(
        &self,
        channel: &Arc<OpenChannel>,
        order: &Recharge,
        references: &[String],
    ) -> bool {
        let (no, references) = (order.id.to_string(), references.to_vec());
        let closing = self.call(channel, "close", move |channel| {
            channel.close(&OrderAsk { merchant_no: &no, references: &references })
        });
        let closing = closing.await;
        crash::point("close_after_there");
        debug!(recharge_id = %order.id, ?closing, "a close");
        closing.is_some_and(|closing| !matches!(closing, Closing::Unknown(_)))
    }

    async fn query(
        &self,
        channel: &Arc<OpenChannel>,
        limits: &ChannelLimits,
        order: &Recharge,
        references: Vec<String>,
        is_closed: bool,
    ) -> Result<(), Rejection> {
        let (no, asked_at) = (order.id.to_string(), self.now());
        let queried = self.call(channel, "query", move |channel| {
            channel.query(&OrderAsk { merchant_no: &no, references: &references })
        });
        let Some(queried) = queried.await else { return Ok(()) };
        match verdict(order, &queried, limits, asked_at) {
            TillVerdict::Tell => self.tell(channel, order, queried, is_closed).await,
            TillVerdict::End => {
                self.recharges.closed(order).await?;
                Ok(())
            }
            TillVerdict::Again => {
                self.report(order, asked_at);
                Ok(())
            }
        }
    }

    /// Has each payment of an answer decided. An order that is to be closed, and of which every
    /// payment has ended without it, is over. `is_closed`: the channel has ended it, so no further
    /// payment can come.
    async fn tell(
        &self,
        channel: &Arc<OpenChannel>,
        order: &Recharge,
        queried: Queried,
        is_closed: bool,
    ) -> Result<(), Rejection> {
        let answers = self.decide(channel, queried).await?;
        match left_by(&answers) {
            Left::Moved => {}
            // Its worker looks again: a PAID order, and one with a HELD payment, stays.
            Left::Over if is_closed && order.is_closing() => {
                self.recharges.closed(order).await?;
            }
            Left::Over | Left::Waits => self.report(order, self.now()),
        }
        Ok(())
    }

    /// The decisions about the payments of an answer, in their turn. A contradiction of one keeps
    /// no other one back.
    async fn decide(
        &self,
        channel: &Arc<OpenChannel>,
        queried: Queried,
    ) -> Result<Vec<PaymentAnswer>, Rejection> {
        let Queried::Paid(mut paid) = queried else { return Ok(Vec::new()) };
        Facts::in_turn(&mut paid);
        let mut answers = Vec::with_capacity(paid.len());
        let mut failed = None;
        for facts in &paid {
            let last = failed.is_none();
            let told = self.recharges.told_in_turn(&channel.terms, facts, SeenBy::Query, last);
            match told.await {
                Ok(answer) => answers.push(answer),
                Err(rejection) => failed = Some(rejection),
            }
        }
        failed.map_or(Ok(answers), Err)
    }

    /// Makes the next question about an order due. One that is over is asked about once, if its
    /// channel has sent the hint: money of it may have gone back there.
    ///
    /// # Errors
    /// A [`Rejection`]: the order has its time all the same.
    pub(super) async fn hinted(&self, nudge: Nudge) -> Result<(), Rejection> {
        self.recharges.hinted(nudge.id()).await?;
        if let Nudge::There(id) = nudge
            && let Some(over) = self.recharges.over(id).await?
        {
            self.ask_over(over);
        }
        Ok(())
    }

    /// Asks about an order that is over. Its state stays; its payments are decided as always.
    ///
    /// # Errors
    /// A [`Rejection`]: a payment is not decided, and bills find it.
    pub(super) async fn over(&self, due: DueOrder) -> Result<(), Rejection> {
        let DueOrder { order, references } = due;
        let Some(channel) = self.channels.get(&order.channel) else { return Ok(()) };
        let no = order.id.to_string();
        let queried = self.call(channel, "query", move |channel| {
            channel.query(&OrderAsk { merchant_no: &no, references: &references })
        });
        let Some(queried) = queried.await else { return Ok(()) };
        self.decide(channel, queried).await?;
        Ok(())
    }

    fn report(&self, order: &Recharge, now: Timestamp) {
        if is_stuck(order, now) {
            watch::stuck(&order.id, "a close");
        }
    }

    /// Sends the money of a PAID order on to Spot.
    async fn follow(&self, order: &Recharge) -> Result<(), Rejection> {
        let forwarded = self.recharges.forward(order, FORWARD_WAIT).await?;
        let follow = match forwarded {
            Forwarding::Ended { req_id, state: State::Committed, .. } => {
                Follow { state: FollowState::Arrived, req_id: Some(req_id), code: None }
            }
            Forwarding::Ended { req_id, code, .. } => {
                Follow { state: FollowState::Failed, req_id: Some(req_id), code }
            }
            Forwarding::UnderWay { req_id } => {
                Follow { state: FollowState::Waiting, req_id: Some(req_id), code: None }
            }
            Forwarding::Refused(code) => {
                let over = gives_up(order, self.options.follow_for, self.now());
                let state = if over { FollowState::GivenUp } else { FollowState::Waiting };
                Follow { state, req_id: None, code: Some(code) }
            }
        };
        if order.follow != follow {
            info!(recharge_id = %order.id, state = follow.state.name(), "money goes on to Spot");
            self.recharges.followed(order, follow).await?;
        }
        Ok(())
    }
}
