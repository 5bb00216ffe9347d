//! The listener of callbacks and the acts of operators, as `http::callbacks` and
//! `coordinator::recharges` have them: which rows are read before, and which act follows.

use std::sync::Arc;

use domain::account::UserId;
use domain::code::Code;
use ubscore::channels::CallbackEnd;
use ubscore::coordinator::recharges::PaymentAnswer;
use ubscore::recharge::act::{
    HeldEnd, PaymentCall, ReceivableCall, RechargeAct, RechargeOutcome, RefundCall, TakeCall,
    TakingCondition,
};
use ubscore::recharge::decide::{KnownPayment, PaymentTold, decide};
use ubscore::recharge::facts::{Facts, Notice, Taking};
use ubscore::recharge::payment::{RechargePayment, SeenBy};
use ubscore::recharge::returned::{ReceivableEnd, RechargeReturn, ReturnKind, ReturnState};
use ubscore::recharge::{PaymentId, RechargeId, ReturnId};

use super::desk::{Acted, CHANNEL, OPERATOR, Shop, Turned, name_of};
use super::world::{Planted, proofs};

impl Shop {
    /// Takes one message of a channel.
    pub(super) async fn heard(self: Arc<Shop>, channel: String, notice: Notice) -> CallbackEnd {
        let told = match &notice {
            Notice::Payment(facts) => self.payment_heard(&channel, facts).await,
            Notice::Hint { merchant_no } => {
                if let Some(id) = RechargeId::parse(merchant_no) {
                    self.hint_heard(&channel, id).await;
                }
                Ok(PaymentTold::Success)
            }
            Notice::Taken(taking) => self.fact(&channel, taking, ReturnKind::Taken).await,
            Notice::GivenBack(taking) => self.fact(&channel, taking, ReturnKind::GivenBack).await,
            Notice::Nothing => Ok(PaymentTold::Success),
        };
        match told {
            Ok(PaymentTold::Success) => CallbackEnd::Success,
            Ok(PaymentTold::NotFound) => CallbackEnd::Missing,
            Ok(PaymentTold::Conflict) => CallbackEnd::Contradiction,
            Err(_) => CallbackEnd::Later,
        }
    }

    async fn payment_heard(self: &Arc<Shop>, channel: &str, facts: &Facts) -> Acted<PaymentTold> {
        let key = format!("{channel} {}", facts.trade_no);
        match self.sim.planted {
            // A mark in another store, before the commit.
            Some(Planted::DedupeBeforeCommit) if !self.sim.seen.lock().insert(key) => {
                return Ok(PaymentTold::Success);
            }
            Some(Planted::SuccessFirst) => {
                let (shop, channel, facts) = (Arc::clone(self), channel.to_owned(), facts.clone());
                self.spawn(async move {
                    drop(shop.told(&channel, &facts, SeenBy::Callback, false).await);
                });
                return Ok(PaymentTold::Success);
            }
            _ => {}
        }
        let answer = self.told(channel, facts, SeenBy::Callback, false).await?;
        self.look.notify_one();
        Ok(answer.told)
    }

    async fn hint_heard(self: &Arc<Shop>, channel: &str, id: RechargeId) {
        let shop = Arc::clone(self);
        let channel = channel.to_owned();
        self.spawn(async move {
            if shop.sim.planted == Some(Planted::CreditOnHint) {
                shop.believe(&channel, id).await;
            }
            let asks = shop.hinted(id).await;
            if matches!(asks, Ok(true)) {
                shop.over.lock().push(id);
            }
            shop.look.notify_one();
        });
    }

    /// A planted bug: a hint is taken for a payment of the order.
    async fn believe(&self, channel: &str, id: RechargeId) {
        let order = self.read(|rows| rows.orders.get(&id).cloned()).await;
        let Ok(Some(order)) = order else { return };
        let facts = Facts {
            merchant_no: id.to_string(),
            trade_no: order.reference.clone().unwrap_or_else(|| id.ulid()),
            minor_units: order.minor_units,
            total_minor_units: order.minor_units,
            currency: super::bank::CURRENCY.to_owned(),
            discount: false,
            returned: ubscore::recharge::facts::Returned::None,
            paid_at: self.now(),
            proof: None,
        };
        drop(self.told(channel, &facts, SeenBy::Callback, false).await);
    }

    /// See `Recharges::hinted` and `Recharges::over`. Returns whether the order is over and is to
    /// be asked about.
    async fn hinted(&self, id: RechargeId) -> Acted<bool> {
        let order = self.read(|rows| rows.orders.get(&id).cloned()).await?;
        let Some(order) = order else { return Ok(false) };
        if order.is_open() {
            self.act(Some(order.user), CHANNEL, RechargeAct::Hint { id }).await?;
        }
        Ok(order.state.is_terminal())
    }

    /// See `Recharges::decided`. `again`: by an operator.
    pub(super) async fn told(
        &self,
        channel: &str,
        facts: &Facts,
        seen_by: SeenBy,
        again: bool,
    ) -> Acted<PaymentAnswer> {
        let planted = self.sim.planted;
        let mut facts = facts.clone();
        if planted == Some(Planted::GrossCredited) {
            (facts.minor_units, facts.discount) = (facts.total_minor_units, false);
        }
        let terms = self.sim.terms(channel);
        let key = (terms.name.clone(), facts.trade_no.clone());
        let recorded = self.read(|rows| rows.payments.get(&key).cloned()).await?;
        let order = match RechargeId::parse(&facts.merchant_no) {
            Some(_) if planted == Some(Planted::MatchByTradeNo) => {
                let trade_no = Some(facts.trade_no.clone());
                self.read(|rows| {
                    rows.orders.values().find(|order| order.reference == trade_no).cloned()
                })
                .await?
            }
            Some(id) => self.read(|rows| rows.orders.get(&id).cloned()).await?,
            None => None,
        };
        let order = order.filter(|order| order.channel == terms.name);
        let (proven, _) = proofs().verify(facts.proof.as_deref(), &terms.name, &facts.merchant_no);
        let policy = self.sim.plan.policy;
        let known = KnownPayment {
            terms: &terms,
            amount: None,
            proven,
            recorded: recorded.as_ref(),
            order: order.as_ref(),
            account: None,
            again,
        };
        let decision = decide(&known, &facts, policy);
        if !decision.writes() {
            let told = decision.told(recorded.as_ref());
            return Ok(PaymentAnswer { decision, told, payment: recorded, due: true });
        }
        let user = order.as_ref().map(|order| order.user);
        let act = RechargeAct::Pay(Box::new(PaymentCall {
            id: PaymentId::of(&terms.name, &facts.trade_no),
            return_id: self.return_id(),
            facts,
            terms,
            proven,
            recharge: order.as_ref().map(|order| order.id),
            seen_by,
            policy,
            again,
            bonus: false,
            restored: false,
            last: false,
            // That bug is planted in the reads of flights.
            seen: order
                .filter(|_| recorded.is_none() && planted != Some(Planted::SecondCredited))
                .map(Box::new),
        }));
        self.point("before a payment is committed").await;
        let actor = if again { OPERATOR } else { CHANNEL };
        answered(self.act(user, actor, act).await?)
    }

    pub(super) fn return_id(&self) -> ReturnId {
        self.sim.return_id()
    }

    /// See `Recharges::fact`.
    async fn fact(&self, channel: &str, taking: &Taking, kind: ReturnKind) -> Acted<PaymentTold> {
        let key = (channel.to_owned(), taking.trade_no.clone());
        let Some(payment) = self.read(|rows| rows.payments.get(&key).cloned()).await? else {
            return self.of_unknown(channel, taking).await;
        };
        if taking.currency != payment.currency {
            return Ok(PaymentTold::Conflict);
        }
        if let Some(told) = self.own(&payment, taking, kind).await? {
            return Ok(told);
        }
        let id = match self.sim.planted {
            Some(Planted::TakenTwice) => self.return_id(),
            _ => ReturnId::of(payment.id, kind, &taking.number),
        };
        if let Some(row) = self.read(|rows| rows.returns.get(&id).cloned()).await? {
            return Ok(match row.minor_units == taking.minor_units {
                true => PaymentTold::Success,
                false => PaymentTold::Conflict,
            });
        }
        let act = RechargeAct::Take(Box::new(TakeCall {
            payment: name_of(&payment),
            asset: payment.asset,
            id,
            kind,
            number: taking.number.clone(),
            minor_units: taking.minor_units,
            freezes: self.sim.plan.freezes,
            condition: TakingCondition::Always,
        }));
        let user = self.holder(&payment).await?;
        match self.act(user, CHANNEL, act).await {
            Ok(_) => Ok(PaymentTold::Success),
            Err(Turned::Code(Code::IdemKeyConflict)) => Ok(PaymentTold::Conflict),
            Err(Turned::Code(Code::RechargeNotFound)) => Ok(PaymentTold::NotFound),
            Err(turned) => Err(turned),
        }
    }

    /// See `Recharges::of_unknown`.
    async fn of_unknown(&self, channel: &str, taking: &Taking) -> Acted<PaymentTold> {
        let marked = taking.merchant_no.as_deref().and_then(RechargeId::parse).is_some();
        let is_ours = match &taking.merchant_no {
            Some(_) => marked,
            None => self.read(|rows| rows.has_reference(channel, &taking.trade_no)).await?,
        };
        Ok(if is_ours { PaymentTold::NotFound } else { PaymentTold::Success })
    }

    /// See `Recharges::own`.
    async fn own(
        &self,
        payment: &RechargePayment,
        taking: &Taking,
        kind: ReturnKind,
    ) -> Acted<Option<PaymentTold>> {
        let Some(id) = ReturnId::parse(&taking.number).filter(|_| kind == ReturnKind::Taken) else {
            return Ok(None);
        };
        let row = self.read(|rows| rows.returns.get(&id).cloned()).await?;
        let is_own =
            |row: &RechargeReturn| (row.payment, row.kind) == (payment.id, ReturnKind::Refund);
        let Some(row) = row.filter(is_own) else { return Ok(None) };
        match row.state {
            ReturnState::Failed => return Ok(None),
            ReturnState::Done => {}
            ReturnState::Requested | ReturnState::Ready | ReturnState::Sent => {
                self.returned(payment, id, true).await?;
            }
        }
        Ok(Some(PaymentTold::Success))
    }

    /// See `Recharges::ended`. `user`: of a payment without an order.
    pub(super) async fn end_held(
        &self,
        payment: &RechargePayment,
        how: HeldEnd,
        user: UserId,
    ) -> Acted<()> {
        let owner = match payment.recharge {
            Some(_) => self.holder(payment).await?,
            None => None,
        };
        let user = owner.or(Some(user).filter(|_| how == HeldEnd::Credit));
        if how == HeldEnd::Credit && payment.amount.is_none() {
            return Err(Turned::Code(Code::InvalidRequest));
        }
        let act = RechargeAct::EndHeld { payment: name_of(payment), how };
        self.act(user, OPERATOR, act).await.map(drop)
    }

    /// See `Recharges::refund`. `minor_units`: `None` for all that is left.
    pub(super) async fn refund(
        &self,
        payment: &RechargePayment,
        minor_units: Option<i64>,
        idem_key: &str,
    ) -> Acted<()> {
        let act = RechargeAct::Refund(Box::new(RefundCall {
            payment: name_of(payment),
            asset: payment.asset,
            id: ReturnId::of(payment.id, ReturnKind::Refund, idem_key),
            minor_units,
            idem_key: idem_key.to_owned(),
        }));
        let user = self.holder(payment).await?;
        self.act(user, OPERATOR, act).await?;
        self.look.notify_one();
        Ok(())
    }

    /// See `Recharges::end_receivable`.
    pub(super) async fn end_receivable(
        &self,
        id: ReturnId,
        end: ReceivableEnd,
        idem_key: &str,
    ) -> Acted<()> {
        let rows = self.read(|rows| {
            let receivable = rows.receivables.get(&id)?;
            Some((receivable.clone(), rows.payment(receivable.payment)?.clone()))
        });
        let (receivable, payment) = rows.await?.ok_or(Turned::Code(Code::RechargeNotFound))?;
        let twice = self.sim.planted == Some(Planted::ReceivableEndedTwice);
        if !twice && receivable.acts.iter().any(|act| act.idem_key == idem_key) {
            return Ok(());
        }
        let number = if twice { 1 } else { receivable.acts.len() + 1 };
        let act = RechargeAct::EndReceivable(Box::new(ReceivableCall {
            payment: name_of(&payment),
            asset: receivable.asset,
            id,
            end,
            number,
            idem_key: idem_key.to_owned(),
        }));
        self.act(Some(receivable.user), OPERATOR, act).await.map(drop)
    }
}

/// The payment of an outcome.
fn answered(outcome: RechargeOutcome) -> Acted<PaymentAnswer> {
    match outcome {
        RechargeOutcome::Payment { decision, told, payment } => {
            let payment = payment.map(|payment| *payment);
            Ok(PaymentAnswer { decision, told, payment, due: true })
        }
        outcome => unreachable!("{outcome:?} answers another act"),
    }
}
