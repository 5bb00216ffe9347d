//! The people around a process: users that order, pay, cancel and spend; operators; and the
//! channels themselves, which send messages, hear disputes, and refund without being asked.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::account::{AccountStatus, UserId};
use domain::amount::Amount;
use domain::transfer::Op;
use jiff::SignedDuration;
use ubscore::channels::CallbackEnd;
use ubscore::postgres::store::{Call, External};
use ubscore::recharge::RechargeId;
use ubscore::recharge::act::{HeldEnd, RechargeAct};
use ubscore::recharge::facts::{Facts, Notice, Returned};
use ubscore::recharge::order::{ClosingWish, Follow, Recharge, RechargeState, RechargeTarget};
use ubscore::recharge::payment::{Disposition, RechargePayment, SeenBy};
use ubscore::recharge::returned::ReceivableEnd;

use super::bank::{Bank, Manner};
use super::desk::{Acted, OPERATOR, Turned};
use super::world::{ASSET, Sim, UNITS_OF_MINOR, channel_of, proofs, users};

/// For so long a channel waits for the answer to a message.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// A message that is turned down so often in quiet times is not sent any more.
const TRIES_MAX: u32 = 60;

/// Begins them all.
pub(super) fn begin(sim: &Arc<Sim>) {
    for nth in 0..sim.plan.orders {
        sim.spawn(order(Arc::clone(sim), nth));
    }
    sim.spawn(operate(Arc::clone(sim)));
    sim.spawn(spend(Arc::clone(sim)));
    sim.spawn(trouble(Arc::clone(sim)));
}

/// Sends a message until it is taken, and sometimes again.
pub(super) async fn deliver(sim: Arc<Sim>, channel: String, notice: Notice) {
    let mut refused = 0;
    loop {
        match sim.is_quiet() {
            true => sim.sleep_ms(1_000, 20_000).await,
            false => {
                let most = sim.pick(&[200, 3_000, 60_000, 400_000]);
                sim.sleep_ms(10, most).await;
            }
        }
        if sim.fails() {
            continue;
        }
        let end = call_back(&sim, &channel, &notice).await;
        sim.trace(|| format!("{channel} is told {end:?}: {notice:?}"));
        // The answer may be lost on its way.
        match end {
            Some(CallbackEnd::Success) if !sim.fails() && !sim.odd(6) => break,
            Some(CallbackEnd::Missing | CallbackEnd::Contradiction) if sim.is_quiet() => {
                refused += 1;
                if refused == TRIES_MAX {
                    break;
                }
            }
            _ => {}
        }
    }
    sim.letters.fetch_sub(1, Ordering::Relaxed);
}

async fn call_back(sim: &Arc<Sim>, channel: &str, notice: &Notice) -> Option<CallbackEnd> {
    let (of, told) = (channel.to_owned(), notice.clone());
    let answer = sim.at_shop(|shop| shop.heard(of, told));
    let end = tokio::select! {
        biased;
        end = answer => end,
        () = sim.time.sleep(ANSWER_WITHIN) => None,
    };
    if end == Some(CallbackEnd::Success) {
        let mut state = sim.state.lock();
        let super::world::State { tables, bank, judge, .. } = &mut *state;
        judge.told_success(channel, notice, tables, bank);
    }
    end
}

/// A wish to recharge, and its payer.
async fn order(sim: Arc<Sim>, nth: u64) {
    sim.sleep_ms(0, 200_000).await;
    let order = wish(&sim, nth);
    let mut made = false;
    while !made {
        let asked = order.clone();
        let answer = sim
            .at_shop(|shop| async move {
                let act = RechargeAct::Create { order: Box::new(asked.clone()), open_max: 50 };
                let made = shop.act(Some(asked.user), "user", act).await;
                shop.look.notify_one();
                made
            })
            .await;
        made = matches!(answer, Some(Ok(_)));
        sim.sleep_ms(100, 4_000).await;
    }
    if sim.one_in(4) {
        sim.spawn(cancel(Arc::clone(&sim), order.id));
    }
    let payers = if sim.plan.silent { 1 } else { sim.pick(&[1, 1, 1, 2]) };
    for _ in 0..payers {
        sim.spawn(pay(Arc::clone(&sim), order.id));
    }
}

/// A new order, as `Recharges::create` makes it.
fn wish(sim: &Sim, nth: u64) -> Recharge {
    let user = sim.pick(&users().collect::<Vec<UserId>>());
    let minor_units = i64::try_from(sim.between(10, 500)).expect("small") * 100;
    let units = u64::try_from(minor_units).expect("above 0") * UNITS_OF_MINOR;
    let channel = channel_of(sim.random());
    let now = sim.now();
    let life = SignedDuration::try_from(sim.plan.life).expect("minutes");
    Recharge {
        id: RechargeId::generate(sim.now_ns(), sim.wide()),
        user,
        idem_key: format!("order-{nth}"),
        fingerprint: format!("CNY:{units}:{channel}:FUNDING:"),
        channel: channel.to_owned(),
        asset: ASSET,
        amount: Amount::new(units).expect("not 0"),
        minor_units,
        bonus: 0,
        bonus_state: None,
        promotion: None,
        target: RechargeTarget::Funding,
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
        expires_at: now + life,
        updated_at: now,
        paid_at: None,
        version: 1,
        follow: Follow::default(),
    }
}

/// The owner cancels, at some time.
async fn cancel(sim: Arc<Sim>, id: RechargeId) {
    let most = sim.pick(&[300, 3_000, 60_000]);
    sim.sleep_ms(0, most).await;
    while let Some(order) = stands(&sim, id).filter(|order| !order.state.is_terminal()) {
        let asked = order.clone();
        let wish = sim.at_shop(|shop| async move {
            let made = shop.wished(&asked, ClosingWish::Cancelled, "user").await;
            shop.look.notify_one();
            made
        });
        if matches!(wish.await, Some(Ok(_) | Err(Turned::Code(domain::code::Code::RechargePaid)))) {
            return;
        }
        sim.sleep_ms(500, 5_000).await;
    }
}

fn stands(sim: &Sim, id: RechargeId) -> Option<Recharge> {
    sim.state.lock().tables.orders.get(&id).cloned()
}

/// A payer waits for the way to pay, and pays once.
async fn pay(sim: Arc<Sim>, id: RechargeId) {
    let reference = loop {
        let Some(order) = stands(&sim, id) else { return };
        if order.state.is_terminal() || sim.is_quiet() {
            return;
        }
        // It is told to the owner alone, while PAYING and not closing.
        let told = order.pay.filter(|_| order.state == RechargeState::Paying);
        if let Some(pay) = told.filter(|_| order.closing.is_none()) {
            let pay: serde_json::Value = serde_json::from_str(&pay).expect("an object");
            let value = pay["value"].as_str().expect("a text").to_owned();
            sim.bank(|bank, _| bank.tell(&value));
            break value;
        }
        sim.sleep_ms(200, 5_000).await;
    };
    let life = u64::try_from(sim.plan.life.as_millis()).expect("minutes");
    let most = sim.pick(&[2_000, 20_000, life, life * 3 / 2]);
    sim.sleep_ms(0, most).await;
    if sim.one_in(8) || sim.is_quiet() {
        return;
    }
    use Manner::*;
    let manner =
        sim.pick(&[Exact, Exact, Exact, Exact, Exact, Exact, Less, More, Currency, Discount]);
    let again = !sim.plan.silent && sim.one_in(8);
    let mut taken = sim.bank(|bank, now| bank.pay(&reference, manner, again, now));
    // A way that was ended by a lie, or is open again, takes a payment later.
    for _ in 0..3 {
        if taken || sim.plan.silent {
            break;
        }
        sim.sleep_ms(1_000, 90_000).await;
        taken = !sim.is_quiet() && sim.bank(|bank, now| bank.pay(&reference, manner, false, now));
    }
    sim.trace(|| format!("{id} is paid by {reference}: {manner:?} {again} {taken}"));
    if taken && sim.one_in(6) {
        behind_at_once(&sim, &reference).await;
    }
}

/// The channel gives a payment back before we may have seen it.
async fn behind_at_once(sim: &Arc<Sim>, reference: &str) {
    let key = (channel_of(1).to_owned(), reference.to_owned());
    sim.bank(|bank, _| {
        if let Some(real) = bank.payments().get(&key) {
            let minor_units = real.facts.minor_units;
            bank.refund_behind(&key, minor_units);
        }
    });
}

/// Users spend, so that takings meet short balances.
async fn spend(sim: Arc<Sim>) {
    let mut nth = 0;
    while !sim.is_quiet() {
        sim.sleep_ms(5_000, 90_000).await;
        nth += 1;
        let user = sim.pick(&users().collect::<Vec<UserId>>());
        let balance = sim.state.lock().tables.balances.get(&(user, ASSET)).copied();
        let available = balance.map_or(0, |row| u64::try_from(row.available).unwrap_or(0));
        let most = sim.pick(&[available, available, available / 2]);
        let Some(amount) = Amount::new(most) else { continue };
        let external = External {
            idem_key: format!("spend-{nth}"),
            op: Op::ExtWithdraw,
            user,
            asset: ASSET,
            amount,
            actor: "user".to_owned(),
            order_number: 0,
        };
        let call = Call::External(external);
        sim.at_shop(|shop| async move { drop(shop.call(user, call).await) }).await;
    }
}

/// Operators: they end held payments, refund, recover, and change accounts.
async fn operate(sim: Arc<Sim>) {
    let mut nth = 0;
    while !sim.is_quiet() {
        sim.sleep_ms(2_000, 60_000).await;
        nth += 1;
        match sim.between(0, 11) {
            0..=3 => end_held(&sim).await,
            4..=7 => refund(&sim, nth).await,
            8 | 9 => end_receivable(&sim, nth).await,
            10 => change_account(&sim).await,
            _ => force(&sim).await,
        }
    }
}

fn some_payment(sim: &Sim, of: Disposition) -> Option<RechargePayment> {
    let rows: Vec<RechargePayment> = {
        let state = sim.state.lock();
        let rows = state.tables.payments.values();
        rows.filter(|row| row.disposition == of).cloned().collect()
    };
    let count = u64::try_from(rows.len()).expect("few");
    let place = if count == 0 { 0 } else { sim.between(0, count - 1) };
    rows.into_iter().nth(usize::try_from(place).expect("few"))
}

async fn end_held(sim: &Arc<Sim>) {
    let Some(payment) = some_payment(sim, Disposition::Held) else { return };
    let how = match sim.between(0, 3) {
        0 => Some(HeldEnd::Credit),
        1 => Some(HeldEnd::Return(sim.return_id())),
        2 => Some(HeldEnd::Dismiss),
        _ => None,
    };
    let user = sim.pick(&users().collect::<Vec<UserId>>());
    sim.at_shop(|shop| async move {
        let ended: Acted<()> = match how {
            Some(how) => shop.end_held(&payment, how, user).await,
            None => {
                let facts = again(&payment);
                shop.told(&payment.channel, &facts, SeenBy::Operator, true).await.map(drop)
            }
        };
        shop.look.notify_one();
        drop(ended);
    })
    .await;
}

/// The facts of a payment as its row has them, for a rematch.
fn again(payment: &RechargePayment) -> Facts {
    Facts {
        merchant_no: payment.merchant_no.clone(),
        trade_no: payment.trade_no.clone(),
        minor_units: payment.minor_units,
        total_minor_units: payment.minor_units,
        currency: payment.currency.clone(),
        discount: false,
        returned: Returned::None,
        paid_at: payment.paid_at,
        proof: None,
    }
}

async fn refund(sim: &Arc<Sim>, nth: u64) {
    let Some(payment) = some_payment(sim, Disposition::Credited) else { return };
    let part = sim.one_in(2).then(|| (payment.minor_units / 3).max(1));
    let key = format!("refund-{nth}");
    // It is asked for until it is answered, and once more.
    for _ in 0..sim.between(1, 4) {
        let (payment, key) = (payment.clone(), key.clone());
        sim.at_shop(|shop| async move { shop.refund(&payment, part, &key).await }).await;
        sim.sleep_ms(100, 8_000).await;
    }
}

async fn end_receivable(sim: &Arc<Sim>, nth: u64) {
    let ids: Vec<_> = sim.state.lock().tables.receivables.keys().copied().collect();
    if ids.is_empty() {
        return;
    }
    let id = sim.pick(&ids);
    let end = sim.pick(&[ReceivableEnd::Recovered, ReceivableEnd::WrittenOff]);
    let key = format!("end-{nth}");
    for _ in 0..sim.between(1, 3) {
        let key = key.clone();
        sim.at_shop(|shop| async move { shop.end_receivable(id, end, &key).await }).await;
        sim.sleep_ms(100, 8_000).await;
    }
}

async fn change_account(sim: &Arc<Sim>) {
    use AccountStatus::*;
    let user = sim.pick(&users().collect::<Vec<UserId>>());
    if !sim.state.lock().tables.balances.contains_key(&(user, ASSET)) {
        return;
    }
    let status = sim.pick(&[Active, Active, Frozen, Disabled]);
    let (actor, reason) = (OPERATOR.to_owned(), "a test".to_owned());
    let call = Call::SetFundingStatus { user, status, actor, reason };
    sim.at_shop(|shop| async move { drop(shop.call(user, call).await) }).await;
}

/// An operator ends an order here alone.
async fn force(sim: &Arc<Sim>) {
    if sim.plan.silent || !sim.one_in(3) {
        return;
    }
    let open: Vec<Recharge> = {
        let state = sim.state.lock();
        let orders = state.tables.orders.values();
        orders.filter(|order| order.is_open()).cloned().collect()
    };
    let Some(order) = open.into_iter().next() else { return };
    sim.at_shop(|shop| async move {
        let wished = shop.wished(&order, ClosingWish::Operator, OPERATOR).await;
        if let Ok(order) = wished
            && order.is_open()
        {
            drop(shop.closed(&order, OPERATOR).await);
        }
    })
    .await;
}

/// The trouble of channels: disputes, refunds without a request, hints, and strange payments.
async fn trouble(sim: Arc<Sim>) {
    while !sim.is_quiet() && !sim.plan.silent {
        sim.sleep_ms(2_000, 60_000).await;
        let keys = troubled(&sim);
        let numbers: Vec<String> = sim.state.lock().bank.disputes().keys().cloned().collect();
        let kind = sim.between(0, 11);
        let (place, part) = (sim.random(), sim.random());
        match kind {
            0..=3 => some(&keys, place, |key| sim.bank(|bank, now| dispute(bank, key, part, now))),
            4..=6 => some(&numbers, place, |number| {
                sim.bank(|bank, now| {
                    if bank.disputes()[number].given.is_none() {
                        let part =
                            (part % 3 == 0).then(|| i64::try_from(part % 5_000).expect("small"));
                        bank.give_back(number, part, now);
                    }
                });
            }),
            7 => some(&keys, place, |key| {
                let minor_units = i64::try_from(part % 3_000).expect("small");
                sim.bank(|bank, _| bank.refund_behind(key, minor_units));
            }),
            8 => drop(sim.bank(|bank, now| bank.refund_after_all(now))),
            9 => stray(&sim, part),
            _ => sim.bank(|bank, _| bank.hint_of_order(part)),
        }
    }
}

/// The payments that channels have trouble with. A dispute names its payment alone: where neither
/// the payment nor its order is here, no deployment can know it for its own.
fn troubled(sim: &Sim) -> Vec<(String, String)> {
    let state = sim.state.lock();
    let is_here = |key: &(String, String), merchant_no: &str| {
        let id = RechargeId::parse(merchant_no);
        state.tables.payments.contains_key(key)
            || id.is_some_and(|id| state.tables.orders.contains_key(&id))
    };
    let payments = state.bank.payments().iter();
    payments
        .filter(|(key, real)| is_here(key, &real.facts.merchant_no))
        .map(|(key, _)| key.clone())
        .collect()
}

fn some<T>(all: &[T], place: u64, work: impl FnOnce(&T)) {
    let count = u64::try_from(all.len()).expect("few");
    if count > 0 {
        work(&all[usize::try_from(place % count).expect("few")]);
    }
}

fn dispute(bank: &mut Bank, key: &(String, String), part: u64, now: jiff::Timestamp) {
    let whole = bank.payments()[key].facts.minor_units;
    let minor_units = match part % 3 {
        0 => (whole / 2).max(1),
        _ => whole,
    };
    // Rarely a payment has two at once.
    if bank.payments()[key].taken == 0 || part.is_multiple_of(5) {
        bank.dispute(key, minor_units, now);
    }
}

/// A payment of an order that this deployment never had, or of another deployment.
fn stray(sim: &Arc<Sim>, part: u64) {
    let id = RechargeId::generate(sim.now_ns(), sim.wide());
    let channel = channel_of(part);
    let proof = match part % 2 {
        0 => "1.other.1.4.64.0..1.00000000000000000000000001".to_owned(),
        _ => {
            let mut order = wish(sim, 999);
            (order.id, order.channel) = (id, channel.to_owned());
            proofs().sign(&order)
        }
    };
    sim.bank(|bank, _| bank.stray(channel, id.to_string(), proof));
}
