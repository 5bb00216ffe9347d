//! Recharges, as the till, the listener of callbacks and operators see them: create an order, note
//! the answer of its channel, have a verified payment decided.
//!
//! Each change is one call of the user's worker. A repeat of a decided payment is answered by a
//! read of the committed rows, also while halted.

mod bonus;
mod creates;
pub mod forward;
mod lookups;
pub mod recovered;
pub mod returns;
mod tries;
mod turns;
mod waits;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tracing::warn;

use self::bonus::Bonuses;
use self::creates::Creates;
use self::lookups::Lookups;
use self::turns::Turns;
use self::waits::Waits;
use super::{Coordinator, Rejection};
use crate::adapters::Adapter;
use crate::alert::{Alert, alert_about};
use crate::clock::{Clock, NS_PER_S};
use crate::crash;
use crate::entropy::Entropy;
use crate::postgres::Error;
use crate::postgres::reads::Reads;
use crate::postgres::reads::recharges::{KnownMatter, MatterKey};
use crate::postgres::recover::Restored;
use crate::quota::Refused;
use crate::recharge::act::{
    HeldEnd, PaymentCall, PaymentName, RechargeAct, RechargeCall, RechargeOutcome,
};
use crate::recharge::decide::{KnownPayment, PaymentDecision, PaymentTold, decide};
use crate::recharge::facts::Facts;
use crate::recharge::order::{ClosingWish, Follow, Recharge, RechargeState, RechargeTarget};
use crate::recharge::payment::{RechargePayment, SeenBy};
use crate::recharge::proof::ProofKeys;
use crate::recharge::terms::{ChannelTerms, RechargePolicy};
use crate::recharge::{PaymentId, RechargeId, ReturnId};
use crate::telemetry;
use domain::account::UserId;
use domain::amount::Amount;
use domain::code::Code;

/// The actor of changes that follow from a channel.
const CHANNEL: &str = "channel";

/// A verified payment that is not committed for so long is failing.
const FAILING_NS: u64 = 60 * NS_PER_S;

/// Payments whose failures are remembered. A further one is not counted as failing.
const FAILING_MAX: usize = 10_000;

/// The rules of orders: see `[recharge]` in the configuration.
#[derive(Clone, Copy, Debug)]
pub struct RechargeRules {
    /// How payments are decided.
    pub policy: RechargePolicy,
    /// The most open orders of one user.
    pub open_max: usize,
    /// The life of an unpaid order.
    pub life: Duration,
    /// Whether the account of a user that owes taken money is frozen.
    pub freeze_on_short: bool,
}

/// A checked wish to recharge.
#[derive(Clone, Debug)]
pub struct RechargeDraft {
    /// The owner of the Funding account.
    pub user: UserId,
    /// The client's idempotency key.
    pub idem_key: String,
    /// The channel.
    pub terms: Arc<ChannelTerms>,
    /// How much: a multiple of the channel's minor unit.
    pub amount: Amount,
    /// Where the money is meant for.
    pub target: RechargeTarget,
    /// The promotion that is to add a bonus.
    pub promotion: Option<String>,
}

/// An order that was made now, or before.
#[derive(Clone, Debug)]
pub struct RechargeMade {
    /// The order.
    pub order: Recharge,
    /// The key was used before, with this body.
    pub replayed: bool,
}

/// The decision about a payment, for its channel.
#[derive(Clone, Debug)]
pub struct PaymentAnswer {
    /// The decision.
    pub decision: PaymentDecision,
    /// The answer for the channel.
    pub told: PaymentTold,
    /// The payment as it stands; `None`: it is not recorded.
    pub payment: Option<RechargePayment>,
    /// Whether the till may have something to do for its order now.
    pub due: bool,
}

/// See the head of this file.
pub struct Recharges<T, F> {
    coordinator: Arc<Coordinator<T, F>>,
    reads: Reads,
    proofs: ProofKeys,
    rules: RechargeRules,
    clock: Arc<dyn Clock>,
    entropy: Mutex<Box<dyn Entropy>>,
    creates: Creates,
    lookups: Lookups,
    turns: Turns,
    waits: Waits,
    bonuses: Option<Bonuses>,
    /// Payments that were told and not committed, each with its first failure, monotonic ns.
    failing: Mutex<HashMap<(String, String), u64>>,
    /// The last restore of the database; `None`: there was none.
    restored: Option<Restored>,
}

impl<T: Adapter, F: Adapter> Recharges<T, F> {
    /// A handle. Nothing happens before its first call.
    pub fn new(
        coordinator: Arc<Coordinator<T, F>>,
        reads: Reads,
        proofs: ProofKeys,
        rules: RechargeRules,
        clock: Arc<dyn Clock>,
        entropy: Box<dyn Entropy>,
    ) -> Recharges<T, F> {
        let (creates, waits) = (Creates::default(), Waits::default());
        let (entropy, failing) = (Mutex::new(entropy), Mutex::default());
        let restored = None;
        Recharges {
            coordinator,
            reads,
            proofs,
            rules,
            clock,
            entropy,
            creates,
            lookups: Lookups::default(),
            turns: Turns::default(),
            waits,
            bonuses: None,
            failing,
            restored,
        }
    }

    /// The same in a database that was restored.
    pub fn behind(self, restored: Option<Restored>) -> Recharges<T, F> {
        Recharges { restored, ..self }
    }

    /// The keys of proofs, for orders on their way to a channel.
    pub fn proofs(&self) -> &ProofKeys {
        &self.proofs
    }

    /// Makes an order INIT, durable before anything is asked of its channel.
    ///
    /// # Errors
    /// [`Code::DuplicateRequest`], naming the fields; [`Code::TooManyOpen`];
    /// [`Code::PrecisionOverflow`]; [`Code::PromotionNotApplicable`], naming the reason; a
    /// [`Rejection`] that is unknown: the same draft again.
    pub async fn create(&self, draft: RechargeDraft) -> Result<RechargeMade, Rejection> {
        let RechargeDraft { user, idem_key, terms, amount, target, promotion } = draft;
        let catalog = self.reads.catalog();
        let asset = catalog.by_id(terms.asset).ok_or(Code::InvalidAsset)?;
        let minor_units = terms.minor_units(amount, asset.precision);
        let minor_units = minor_units.ok_or(Code::PrecisionOverflow)?;
        let text = amount.text(asset.precision);
        let (symbol, named) = (&asset.symbol, promotion.as_deref());
        let fingerprint = Recharge::fingerprint_of(symbol, &text, &terms.name, target, named);
        let now = self.now();
        let life = SignedDuration::try_from(self.rules.life).unwrap_or(SignedDuration::MAX);
        let order = Recharge {
            id: RechargeId::generate(self.clock.now_ns(), self.entropy.lock().u128()),
            user,
            idem_key,
            fingerprint,
            channel: terms.name.clone(),
            asset: asset.id,
            amount,
            minor_units,
            bonus: 0,
            promotion,
            target,
            state: RechargeState::Init,
            closing: None,
            code: None,
            reference: None,
            pay: None,
            payments: 0,
            held: 0,
            attempts: 1,
            next_at: None,
            created_at: now,
            expires_at: now.saturating_add(life).unwrap_or(Timestamp::MAX),
            updated_at: now,
            paid_at: None,
            version: 1,
            follow: Follow::default(),
            bonus_state: None,
        };
        let actor = format!("user/{user}");
        let made = match order.promotion.clone() {
            Some(name) => self.reserved(&order, &name, &actor).await?,
            None => {
                let open_max = self.rules.open_max;
                let act = RechargeAct::Create { order: Box::new(order), open_max };
                made(self.act(Some(user), &actor, act).await?)?
            }
        };
        crash::point("recharge_after_create");
        if !made.replayed {
            self.creates.opened().await;
        }
        Ok(made)
    }

    /// Counts a wish to create that has passed the checks before. `per_minute`: the most of one
    /// user; 0: no limit. `open_max`: the most open orders of all users.
    ///
    /// # Errors
    /// [`Refused`]: of the rate, [`Code::TooManyOpen`] of the bound, [`Code::SystemError`] if
    /// PostgreSQL does not answer.
    pub async fn admit(&self, user: UserId, per_minute: u32, open_max: u64) -> Result<(), Refused> {
        self.creates.count(user, per_minute, &self.clock)?;
        let open = self.creates.open(&self.reads, open_max, &*self.clock).await;
        let open = open.map_err(|error| {
            warn!(%error, "the open orders cannot be counted");
            Refused::from(Code::SystemError)
        })?;
        if open >= open_max { Err(Code::TooManyOpen.into()) } else { Ok(()) }
    }

    /// Waits until an order fulfills a condition, and at most so long. Each act of this process on
    /// the order has it looked at again. Returns the order as it is committed then; `None`: there
    /// is none. When the server stops, its caller drops the wait.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn wait(
        &self,
        id: RechargeId,
        until: impl Fn(&Recharge) -> bool,
        at_most: Duration,
    ) -> Result<Option<Recharge>, Error> {
        let mut waiting = self.waits.begin(id);
        let mut patience = self.clock.sleep(at_most);
        loop {
            let order = self.reads.recharge(id).await?;
            if order.as_ref().is_none_or(&until) {
                return Ok(order);
            }
            tokio::select! {
                () = waiting.changed() => {}
                () = &mut patience => return self.reads.recharge(id).await,
            }
        }
    }

    /// Notes that the channel knows an order: INIT becomes PAYING. Behind PAYING it changes
    /// nothing. `next_at`: when the till looks at it next.
    ///
    /// # Errors
    /// [`Code::RechargeNotFound`]; a [`Rejection`].
    pub async fn noted(
        &self,
        order: &Recharge,
        reference: Option<String>,
        pay: Option<String>,
        next_at: Option<Timestamp>,
    ) -> Result<Recharge, Rejection> {
        let act = RechargeAct::Note { id: order.id, reference, pay, next_at };
        Ok(made(self.act(Some(order.user), CHANNEL, act).await?)?.order)
    }

    /// Writes down the wish to close an order. The first wish stands; a payment may still win.
    ///
    /// # Errors
    /// [`Code::RechargePaid`]; [`Code::RechargeNotFound`]; a [`Rejection`].
    pub async fn wished(
        &self,
        order: &Recharge,
        closing: ClosingWish,
        actor: &str,
    ) -> Result<Recharge, Rejection> {
        let act = RechargeAct::Wish { id: order.id, closing };
        let wished = made(self.act(Some(order.user), actor, act).await?)?.order;
        crash::point("close_after_wish");
        Ok(wished)
    }

    /// Closes an order that has a wish, once a verified answer of its channel behind the wish says
    /// that nothing can be paid any more. A PAID order, and one with a HELD payment, stays.
    ///
    /// # Errors
    /// [`Code::RechargeNotFound`]; a [`Rejection`].
    pub async fn closed(&self, order: &Recharge) -> Result<Recharge, Rejection> {
        let act = RechargeAct::Close { id: order.id };
        Ok(made(self.act(Some(order.user), CHANNEL, act).await?)?.order)
    }

    /// Closes an order here alone, by an operator, once it has a wish. Its channel may still take a
    /// payment, which is late then. A PAID order, and one with a HELD payment, stays.
    ///
    /// # Errors
    /// [`Code::RechargeNotFound`]; a [`Rejection`].
    pub async fn forced(&self, order: &Recharge, actor: &str) -> Result<Recharge, Rejection> {
        let act = RechargeAct::Close { id: order.id };
        Ok(made(self.act(Some(order.user), actor, act).await?)?.order)
    }

    /// Has a verified payment decided, once. Returns the answer for its channel.
    ///
    /// # Errors
    /// A [`Rejection`]: not known yet, and the channel must come again (503).
    pub async fn told(
        &self,
        terms: &Arc<ChannelTerms>,
        facts: &Facts,
        seen_by: SeenBy,
    ) -> Result<PaymentAnswer, Rejection> {
        self.told_in_turn(terms, facts, seen_by, false).await
    }

    /// The same in the turn of [`Facts::in_turn`]. `last`: each other payment of the order that its
    /// channel knows was told before it, and decided.
    ///
    /// # Errors
    /// As [`Recharges::told`].
    pub async fn told_in_turn(
        &self,
        terms: &Arc<ChannelTerms>,
        facts: &Facts,
        seen_by: SeenBy,
        last: bool,
    ) -> Result<PaymentAnswer, Rejection> {
        let answer = self.decided(terms, facts, (seen_by, CHANNEL), false, last).await;
        self.note_failure(terms, facts, answer.is_err());
        let answer = answer?;
        self.report(terms, facts, &answer);
        self.report_gone(facts, &answer).await;
        if let PaymentDecision::Credit { .. } = answer.decision {
            telemetry::recharges::credits(&terms.name, seen_by.name(), 1);
        }
        Ok(answer)
    }

    /// Remembers a payment that was not committed, until it is.
    fn note_failure(&self, terms: &ChannelTerms, facts: &Facts, failed: bool) {
        let mut failing = self.failing.lock();
        // Nearly always there is nothing to forget.
        if !failed && failing.is_empty() {
            return;
        }
        let key = (terms.name.clone(), facts.trade_no.clone());
        if !failed {
            failing.remove(&key);
        } else if failing.len() < FAILING_MAX {
            failing.entry(key).or_insert_with(|| self.clock.monotonic_ns());
        }
    }

    /// Verified payments that are told and not committed for a minute.
    pub fn failing(&self) -> u64 {
        let now_ns = self.clock.monotonic_ns();
        let late = |since_ns: &&u64| now_ns.saturating_sub(**since_ns) >= FAILING_NS;
        self.failing.lock().values().filter(late).count() as u64
    }

    /// Takes a HELD payment through the table again, by an operator.
    ///
    /// # Errors
    /// As [`Recharges::told`].
    pub async fn rematched(
        &self,
        terms: &Arc<ChannelTerms>,
        facts: &Facts,
        actor: &str,
    ) -> Result<PaymentAnswer, Rejection> {
        self.rematched_in_turn(terms, facts, actor, false).await
    }

    /// The same in a turn; see [`Recharges::told_in_turn`].
    ///
    /// # Errors
    /// As [`Recharges::told`].
    pub async fn rematched_in_turn(
        &self,
        terms: &Arc<ChannelTerms>,
        facts: &Facts,
        actor: &str,
        last: bool,
    ) -> Result<PaymentAnswer, Rejection> {
        let answer = self.decided(terms, facts, (SeenBy::Operator, actor), true, last).await?;
        self.note_failure(terms, facts, false);
        if let PaymentDecision::Contradiction = answer.decision {
            self.report(terms, facts, &answer);
        }
        Ok(answer)
    }

    async fn decided(
        &self,
        terms: &Arc<ChannelTerms>,
        facts: &Facts,
        (seen_by, actor): (SeenBy, &str),
        again: bool,
        last: bool,
    ) -> Result<PaymentAnswer, Rejection> {
        let key = MatterKey {
            channel: terms.name.clone(),
            trade_no: facts.trade_no.clone(),
            order: RechargeId::parse(&facts.merchant_no),
        };
        loop {
            let KnownMatter { order, payment: recorded } =
                self.lookups.look(&self.reads, &key).await?;
            let order = order.filter(|order| order.channel == terms.name);
            let proof = facts.proof.as_deref();
            let (proven, _) = self.proofs.verify(proof, &terms.name, &facts.merchant_no);
            let known = KnownPayment {
                terms,
                amount: None,
                proven,
                recorded: recorded.as_ref(),
                order: order.as_ref(),
                account: None,
                again,
            };
            // Only the rows that write nothing: they rest on committed rows that never change.
            let decision = decide(&known, facts, self.rules.policy);
            if !decision.writes() {
                let told = decision.told(recorded.as_ref());
                let due = order.is_some_and(|order| !order.state.is_terminal());
                return Ok(PaymentAnswer { decision, told, payment: recorded, due });
            }
            let named = (key.channel.clone(), key.trade_no.clone(), again);
            let turn = match self.turns.begin(named) {
                Ok(turn) => turn,
                Err(another) => {
                    turns::ended(another).await?;
                    continue;
                }
            };
            let pay = PaymentCall {
                id: PaymentId::of(&terms.name, &facts.trade_no),
                return_id: self.return_id(),
                facts: facts.clone(),
                terms: Arc::clone(terms),
                proven,
                recharge: order.as_ref().map(|order| order.id),
                seen_by,
                policy: self.rules.policy,
                again,
                bonus: order.as_ref().is_some_and(|order| order.bonus_state.is_some()),
                restored: self.may_be_restored(order.as_ref()),
                last,
                seen: None,
            };
            let answer = self.pay(pay, order, recorded.is_some(), actor).await;
            match &answer {
                Ok(_) => drop(turn),
                Err(rejection) => turn.fail(rejection.clone()),
            }
            return answer;
        }
    }

    /// Has the worker of its user decide a payment. `order`: as it was looked up. `is_recorded`:
    /// the payment was seen too.
    async fn pay(
        &self,
        mut pay: PaymentCall,
        order: Option<Recharge>,
        is_recorded: bool,
        actor: &str,
    ) -> Result<PaymentAnswer, Rejection> {
        let (restored, bonus) = (pay.restored, pay.bonus);
        let user = order.as_ref().map(|order| order.user);
        let is_paid = order.as_ref().is_some_and(|order| order.state == RechargeState::Paid);
        let goes_on = order.as_ref().is_none_or(|order| order.target != RechargeTarget::Funding);
        pay.seen = order.filter(|_| !is_recorded).map(Box::new);
        let act = RechargeAct::Pay(Box::new(pay));
        crash::point("callback_before_commit");
        let outcome = self.act(user, actor, act).await?;
        crash::point("callback_after_commit");
        let mut answer = answered(outcome)?;
        // A credit ends the order, and leaves no return and no question.
        let credits = matches!(answer.decision, PaymentDecision::Credit { .. });
        answer.due = !credits || goes_on || bonus;
        if restored && !is_paid {
            Self::report_other(&answer);
        }
        Ok(answer)
    }

    /// Raises an alert about a decision that a person must see.
    fn report(&self, terms: &ChannelTerms, facts: &Facts, answer: &PaymentAnswer) {
        let (alert, what) = match answer.decision {
            PaymentDecision::Contradiction => {
                (Alert::RechargeContradiction, "it contradicts its record")
            }
            PaymentDecision::Hold(cause) if cause.is_unmatched() => {
                (Alert::RechargeUnmatched, cause.name())
            }
            PaymentDecision::Hold(cause) => (Alert::RechargeHeld, cause.name()),
            _ => return,
        };
        let (channel, trade_no) = (&terms.name, &facts.trade_no);
        let id = PaymentId::of(channel, trade_no);
        let what = format_args!("payment {id}, {trade_no} of channel {channel}: {what}");
        alert_about(alert, &id, what);
    }

    /// Ends a HELD payment, by an operator. `user`: of a payment without an order, to be credited.
    /// A payment that has ended is returned as it stands.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`]: no asset stands for it, or no user was given; the account's code;
    /// a [`Rejection`].
    pub async fn ended(
        &self,
        payment: &RechargePayment,
        end: HeldEnd,
        user: Option<UserId>,
        actor: &str,
    ) -> Result<PaymentAnswer, Rejection> {
        let owner = self.owner(payment).await?;
        if owner.is_some() && user.is_some() {
            return Err(Rejection::of(Code::InvalidRequest));
        }
        let user = owner.or(user);
        if matches!(end, HeldEnd::Return(_)) {
            self.refuse_unrecovered()?;
        }
        if end == HeldEnd::Credit && (user.is_none() || payment.amount.is_none()) {
            return Err(Rejection::of(Code::InvalidRequest));
        }
        let act = RechargeAct::EndHeld { payment: name_of(payment), how: end };
        answered(self.act(user, actor, act).await?)
    }

    /// The channel has ended a return. `gone`: the payer has the money; otherwise the channel
    /// refuses for good. Then a payment that is RETURNING is HELD, and the user of a CREDITED one
    /// has the money that was set apart again.
    ///
    /// # Errors
    /// [`Code::RechargeNotFound`]; a [`Rejection`].
    pub async fn returned(
        &self,
        payment: &RechargePayment,
        id: ReturnId,
        gone: bool,
    ) -> Result<PaymentAnswer, Rejection> {
        let gone = if gone { Ok(()) } else { Err(Code::ChannelRefused) };
        self.end_return(payment, id, gone).await
    }

    /// Ends a return that was never SENT: its channel has given more of the payment back than is
    /// known here. As one that the channel refuses.
    ///
    /// # Errors
    /// As [`Recharges::returned`].
    pub async fn unsent(
        &self,
        payment: &RechargePayment,
        id: ReturnId,
    ) -> Result<PaymentAnswer, Rejection> {
        self.end_return(payment, id, Err(Code::NotReturnable)).await
    }

    async fn end_return(
        &self,
        payment: &RechargePayment,
        id: ReturnId,
        gone: Result<(), Code>,
    ) -> Result<PaymentAnswer, Rejection> {
        let user = self.holder(payment).await?;
        let act = RechargeAct::EndReturn { payment: name_of(payment), id, gone };
        answered(self.act(user, CHANNEL, act).await?)
    }

    /// A new id of a return.
    pub fn return_id(&self) -> ReturnId {
        ReturnId::generate(self.clock.now_ns(), self.entropy.lock().u128())
    }

    /// The owner of the order of a payment.
    async fn owner(&self, payment: &RechargePayment) -> Result<Option<UserId>, Rejection> {
        let Some(id) = payment.recharge else { return Ok(None) };
        let order = self.reads.recharge(id).await.map_err(|error| {
            warn!(%error, "an order waits for PostgreSQL");
            Rejection::of(Code::SystemError)
        })?;
        Ok(order.map(|order| order.user))
    }

    async fn act(
        &self,
        user: Option<UserId>,
        actor: &str,
        act: RechargeAct,
    ) -> Result<RechargeOutcome, Rejection> {
        let call =
            RechargeCall { user, order_number: 0, bonus_number: 0, actor: actor.to_owned(), act };
        let id = call.recharge();
        let outcome = self.coordinator.recharge(call).await;
        // Also one of unknown end: it may have changed the order.
        if let Some(id) = id {
            self.waits.wake(id);
        }
        match outcome? {
            RechargeOutcome::Refused { code, detail } => {
                Err(Rejection { detail, ..Rejection::of(code) })
            }
            RechargeOutcome::Nothing => Err(Rejection::of(Code::ServiceHalted)),
            outcome => Ok(outcome),
        }
    }

    /// The time, as exact as PostgreSQL keeps it.
    fn now(&self) -> Timestamp {
        let us = i64::try_from(self.clock.now_ns() / 1_000).expect("a time before the year 294247");
        Timestamp::from_microsecond(us).expect("a time after 1970")
    }
}

fn name_of(payment: &RechargePayment) -> PaymentName {
    PaymentName {
        channel: payment.channel.clone(),
        trade_no: payment.trade_no.clone(),
        id: payment.id,
        recharge: payment.recharge,
    }
}

/// The order of an outcome.
fn made(outcome: RechargeOutcome) -> Result<RechargeMade, Rejection> {
    match outcome {
        RechargeOutcome::Order { order, replayed } => Ok(RechargeMade { order: *order, replayed }),
        outcome => unreachable!("{outcome:?} answers another act"),
    }
}

/// The payment of an outcome.
fn answered(outcome: RechargeOutcome) -> Result<PaymentAnswer, Rejection> {
    match outcome {
        RechargeOutcome::Payment { decision, told, payment } => {
            let payment = payment.map(|payment| *payment);
            Ok(PaymentAnswer { decision, told, payment, due: true })
        }
        outcome => unreachable!("{outcome:?} answers another act"),
    }
}
