//! The till of one process. `till::step` decides; the order of its steps is that of `till::order`
//! and `till::refund`: the try, the call, the answer, each of which may be the last.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use ubscore::channels::{CreateAsk, RefundAsk};
use ubscore::recharge::answers::{Closing, Created, Queried, Refunded};
use ubscore::recharge::order::{ClosingWish, Recharge};
use ubscore::recharge::payment::{RechargePayment, SeenBy};
use ubscore::recharge::returned::RechargeReturn;
use ubscore::recharge::{RechargeId, ReturnId};
use ubscore::till::step::{
    Left, TillStep, TillVerdict, first_query, left_by, next_return, next_try, step, verdict,
};

use super::bank::CURRENCY;
use super::desk::{Acted, CHANNEL, Shop, Turned, name_of};
use super::world::{Planted, proofs};
use domain::code::Code;
use ubscore::recharge::act::{RechargeAct, RechargeOutcome};

/// The longest pause between two looks.
const LOOK: Duration = Duration::from_secs(20);
/// A row with a failed job is passed over for so long.
const SHUN: Duration = Duration::from_secs(30);
/// The actor of wishes of the till.
const TILL: &str = "till";

/// A row in hand, or passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Order(RechargeId),
    Return(ReturnId),
}

/// Until when rows are passed over, since the run began.
type Passed = Arc<Mutex<BTreeMap<Row, Duration>>>;

/// The due rows that are not passed over, and the time of the next one.
type Due =
    (Vec<(Recharge, Vec<String>)>, Vec<(RechargeReturn, RechargePayment)>, Option<Timestamp>);

impl Shop {
    /// Looks for due rows, hands them out, and looks again.
    pub(super) async fn mind(self: Arc<Shop>) {
        let passed = Passed::default();
        loop {
            let now = self.now();
            let due: Acted<Due> = self
                .read(|rows| {
                    let orders = rows.due_orders(now).into_iter();
                    let orders = orders.map(|order| {
                        let references = rows.references_of(&order);
                        (order, references)
                    });
                    let returns = rows.due_returns(now).into_iter().filter_map(|back| {
                        let payment = rows.payment(back.payment)?.clone();
                        Some((back, payment))
                    });
                    (orders.collect(), returns.collect(), rows.next_due())
                })
                .await;
            let mut wait = LOOK;
            if let Ok((orders, returns, next)) = due {
                for (order, references) in orders {
                    let shop = Arc::clone(&self);
                    let row = Row::Order(order.id);
                    self.hand_out(&passed, row, async move { shop.order(order, references).await });
                }
                for (back, payment) in returns {
                    let (shop, row) = (Arc::clone(&self), Row::Return(back.id));
                    self.hand_out(&passed, row, async move { shop.send_back(back, payment).await });
                }
                if let Some(next) = next.filter(|next| *next > now) {
                    wait = wait.min(now.duration_until(next).unsigned_abs());
                }
            }
            let over = std::mem::take(&mut *self.over.lock());
            for id in over {
                let shop = Arc::clone(&self);
                self.spawn(async move { drop(shop.ask_over(id).await) });
            }
            let sleep = self.sim.time.sleep(wait + Duration::from_millis(1));
            tokio::select! {
                biased;
                () = self.look.notified() => self.sim.sleep_ms(5, 10).await,
                () = sleep => {}
            }
        }
    }

    /// Begins a job for a row that is not passed over.
    fn hand_out(
        self: &Arc<Shop>,
        passed: &Passed,
        row: Row,
        job: impl Future<Output = Acted<()>> + Send + 'static,
    ) {
        let now = self.sim.elapsed();
        if passed.lock().get(&row).is_some_and(|until| *until > now) {
            return;
        }
        passed.lock().insert(row, Duration::MAX);
        let (passed, shop) = (Arc::clone(passed), Arc::clone(self));
        self.spawn(async move {
            match job.await {
                Ok(()) => drop(passed.lock().remove(&row)),
                Err(_) => drop(passed.lock().insert(row, shop.sim.elapsed() + SHUN)),
            }
            shop.look.notify_one();
        });
    }

    /// See `till::order`.
    async fn order(&self, order: Recharge, references: Vec<String>) -> Acted<()> {
        let (limits, now) = (self.sim.limits(&order.channel), self.now());
        let (step, planted) = (step(&order, &limits, now), self.sim.planted);
        match step {
            TillStep::Nothing(_) => return Err(Turned::Code(Code::SystemError)),
            TillStep::Wish(wish) => return self.wished(&order, wish, TILL).await.map(drop),
            _ => {}
        }
        let next_at = next_try(&order, step, &limits, self.sim.plan.pace, now, self.sim.random());
        match (planted, step) {
            (Some(Planted::CloseHereFirst), TillStep::Close) => {
                return self.closed(&order, CHANNEL).await.map(drop);
            }
            (Some(Planted::TryAfterCall), TillStep::Create) => {
                self.create(&order).await?;
            }
            _ => {}
        }
        let mut stands = order;
        if planted == Some(Planted::OldVersion) {
            // It has waited for its turn.
            self.sim.sleep_ms(0, 3_000).await;
            let version = self.read(|rows| rows.orders[&stands.id].version).await?;
            stands.version = version;
        }
        let Some(tried) = self.tried(&stands, next_at).await? else { return Ok(()) };
        self.point("behind a try").await;
        match step {
            TillStep::Create => self.create(&tried).await,
            TillStep::Close if planted == Some(Planted::CreateBehindWish) => {
                self.create(&tried).await
            }
            TillStep::Close => {
                let is_closed = self.close(&tried, &references).await;
                if is_closed && planted == Some(Planted::CloseAnswerEnds) {
                    return self.closed(&tried, CHANNEL).await.map(drop);
                }
                self.query(&tried, references, is_closed).await
            }
            TillStep::Query => self.query(&tried, references, false).await,
            // No order of the model is for Spot, and none has a bonus.
            TillStep::Follow | TillStep::GiveBack | TillStep::Wish(_) | TillStep::Nothing(_) => {
                Ok(())
            }
        }
    }

    async fn create(&self, order: &Recharge) -> Acted<()> {
        self.sim.state.lock().judge.asks(order.id, true);
        let proof = proofs().sign(order);
        let (no, channel) = (order.id.to_string(), order.channel.clone());
        let (minor_units, expires_at, first) =
            (order.minor_units, order.expires_at, order.created_at);
        let odd = (self.sim.one_in(3), self.sim.odd(40));
        let made = move |bank: &mut super::bank::Bank, now| {
            let ask = CreateAsk {
                merchant_no: &no,
                minor_units,
                currency: CURRENCY,
                description: "Recharge",
                proof: &proof,
                callback_url: "https://pay.example/callbacks/v1/x",
                expires_at,
                first_tried_at: first,
            };
            bank.create(&channel, &ask, odd, now)
        };
        let created = self.sim.ask(made, Created::Unknown).await;
        self.point("behind a create").await;
        match created {
            Created::Created { reference, pay } => {
                let next_at = first_query(order, self.sim.plan.pace, self.now());
                let pay = Some(pay.to_json());
                self.noted(order, Some(reference), pay, Some(next_at)).await?;
            }
            Created::Refused(_) => {
                self.wished(order, ClosingWish::Refused, TILL).await?;
            }
            // No create of the model says that its order is paid.
            Created::Paid | Created::Unknown(_) => {}
        }
        Ok(())
    }

    async fn close(&self, order: &Recharge, references: &[String]) -> bool {
        self.sim.state.lock().judge.asks(order.id, false);
        let (no, references) = (order.id.to_string(), references.to_vec());
        let lies = self.sim.plan.lies && self.sim.odd(6);
        let work = move |bank: &mut super::bank::Bank, now| bank.close(&no, &references, lies, now);
        let closing = self.sim.ask(work, Closing::Unknown).await;
        self.point("behind a close").await;
        !matches!(closing, Closing::Unknown(_))
    }

    async fn asked(&self, order: &Recharge, references: Vec<String>) -> Queried {
        let (no, one) = (order.id.to_string(), self.sim.odd(3));
        let work = move |bank: &mut super::bank::Bank, now| bank.query(&no, &references, one, now);
        self.sim.ask(work, Queried::Unknown).await
    }

    async fn query(&self, order: &Recharge, references: Vec<String>, is_closed: bool) -> Acted<()> {
        let (limits, asked_at) = (self.sim.limits(&order.channel), self.now());
        let queried = self.asked(order, references).await;
        self.point("behind a query").await;
        match verdict(order, &queried, &limits, asked_at) {
            TillVerdict::Tell => {
                let answers = self.decide(order, queried).await?;
                if left_by(&answers) == Left::Over && is_closed && order.is_closing() {
                    self.closed(order, CHANNEL).await?;
                }
                Ok(())
            }
            TillVerdict::End => self.closed(order, CHANNEL).await.map(drop),
            TillVerdict::Again => Ok(()),
        }
    }

    async fn decide(
        &self,
        order: &Recharge,
        queried: Queried,
    ) -> Acted<Vec<ubscore::coordinator::recharges::PaymentAnswer>> {
        let Queried::Paid(paid) = queried else { return Ok(Vec::new()) };
        let (mut answers, mut failed) = (Vec::with_capacity(paid.len()), None);
        for facts in &paid {
            match self.told(&order.channel, facts, SeenBy::Query, false).await {
                Ok(answer) => answers.push(answer),
                Err(turned) => failed = Some(turned),
            }
        }
        failed.map_or(Ok(answers), Err)
    }

    /// See `Shop::over` of the till.
    async fn ask_over(&self, id: RechargeId) -> Acted<()> {
        let found = self.read(|rows| {
            let order = rows.orders.get(&id)?;
            Some((order.clone(), rows.references_of(order)))
        });
        let Some((order, references)) = found.await? else { return Ok(()) };
        let queried = self.asked(&order, references).await;
        self.decide(&order, queried).await.map(drop)
    }

    /// See `till::refund`.
    async fn send_back(&self, back: RechargeReturn, payment: RechargePayment) -> Acted<()> {
        let planted = self.sim.planted;
        let next_at = next_return(&back, self.sim.plan.pace, self.now(), self.sim.random());
        if planted == Some(Planted::SendAfterCall) {
            self.refund_asked(&back, &payment).await;
        }
        let user = self.holder(&payment).await?;
        let (id, version) = (back.id, back.version);
        let act = RechargeAct::Send { payment: name_of(&payment), id, version, next_at };
        let back = match self.act(user, CHANNEL, act).await? {
            RechargeOutcome::Return { row, replayed: false, .. } => *row,
            RechargeOutcome::Return { .. } => return Ok(()),
            outcome => unreachable!("{outcome:?} answers another act"),
        };
        self.sim.state.lock().judge.granted_send(&back);
        self.point("behind a send").await;
        let refunded = self.refund_asked(&back, &payment).await;
        self.point("behind a refund").await;
        match refunded {
            Refunded::Done => self.returned(&payment, back.id, true).await,
            Refunded::Refused(_) => self.returned(&payment, back.id, false).await,
            Refunded::UnderWay { .. } if planted == Some(Planted::DoneOnAccepted) => {
                self.returned(&payment, back.id, true).await
            }
            Refunded::Unknown(_) if planted == Some(Planted::ReleaseOnUnknown) => {
                self.returned(&payment, back.id, false).await
            }
            _ if planted == Some(Planted::ReleaseOnTimeout) && back.attempts > 3 => {
                self.returned(&payment, back.id, false).await
            }
            Refunded::UnderWay { .. } | Refunded::Unknown(_) => Ok(()),
        }
    }

    async fn refund_asked(&self, back: &RechargeReturn, payment: &RechargePayment) -> Refunded {
        let return_no = match self.sim.planted {
            Some(Planted::NewReturnNumber) if back.attempts > 1 => self.return_id().to_string(),
            _ => back.id.to_string(),
        };
        self.sim.state.lock().judge.asks_refund(&return_no);
        let minor_units = back.minor_units;
        let (no, trade_no) = (payment.merchant_no.clone(), payment.trade_no.clone());
        let (channel, currency) = (payment.channel.clone(), payment.currency.clone());
        let total = payment.minor_units.max(minor_units);
        let refuses = self.sim.odd(6);
        let takes = Duration::from_secs(self.sim.between(0, 200));
        let done = !self.sim.odd(6);
        let work = move |bank: &mut super::bank::Bank, now: Timestamp| {
            let ask = RefundAsk {
                return_no: &return_no,
                merchant_no: &no,
                trade_no: &trade_no,
                minor_units,
                total_minor_units: total,
                currency: &currency,
            };
            bank.refund(&channel, &ask, (refuses, now + takes, done), now)
        };
        self.sim.ask(work, Refunded::Unknown).await
    }
}
