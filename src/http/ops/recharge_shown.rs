//! Recharges as operators see them: orders, payments, returns, receivables, movements,
//! channels.

use jiff::Timestamp;
use serde::Serialize;

use crate::channels::open::OpenChannel;
use crate::postgres::reads::notices::NoticeHead;
use crate::postgres::reads::recharge_deliveries::{RechargeDelivery, RechargeEventRow};
use crate::postgres::reads::recharge_search::{MovementRow, RechargePassage, WholeRecharge};
use crate::recharge::answers::Queried;
use crate::recharge::facts::{Facts, Returned};
use crate::recharge::order::{BonusState, ClosingWish, Recharge, RechargeState, RechargeTarget};
use crate::recharge::payment::RechargePayment;
use crate::recharge::returned::{Receivable, ReceivableAct, RechargeReturn, ReturnState};
use domain::account::UserId;
use domain::amount::units_text;
use domain::asset::{AssetId, Catalog};
use domain::code::Code;

/// An order that is PAYING for longer is overdue, ms.
pub(super) const OVERDUE_MS: i64 = 30 * 60 * 1_000;

/// The time so many milliseconds before `now`.
pub(super) fn before(now: Timestamp, ms: i64) -> Timestamp {
    let past = Timestamp::from_millisecond(now.as_millisecond().saturating_sub(ms));
    past.unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The age of a thing, ms; 0 if the clock has gone back.
fn age_ms(now: Timestamp, at: Timestamp) -> u64 {
    u64::try_from(now.as_millisecond().saturating_sub(at.as_millisecond())).unwrap_or(0)
}

fn symbol(catalog: &Catalog, asset: AssetId) -> String {
    let known = catalog.by_id(asset).map(|asset| asset.symbol.clone());
    known.unwrap_or_else(|| format!("#{}", asset.0))
}

/// An order. The data of its payer is for its owner alone.
#[derive(Serialize)]
pub(super) struct OrderBody {
    recharge_id: String,
    user_id: u64,
    channel: String,
    asset: String,
    amount: String,
    /// Of its promotion, whether it gets it or not.
    bonus: String,
    promotion: Option<String>,
    /// Null: no promotion has set a bonus apart.
    bonus_state: Option<&'static str>,
    to: &'static str,
    state: &'static str,
    closing: Option<&'static str>,
    code: Option<&'static str>,
    overdue: bool,
    r#final: bool,
    reference: Option<String>,
    payments: u32,
    held: u32,
    attempts: u32,
    age_ms: u64,
    next_at: Option<Timestamp>,
    idem_key: String,
    created_at: Timestamp,
    expires_at: Timestamp,
    updated_at: Timestamp,
    paid_at: Option<Timestamp>,
    /// Null: it is not PAID, or its money stays in Funding.
    follow: Option<FollowBody>,
}

/// How far the money of an order has gone on to Spot.
#[derive(Serialize)]
struct FollowBody {
    state: &'static str,
    req_id: Option<String>,
    code: Option<&'static str>,
}

impl FollowBody {
    fn of(order: &Recharge) -> Option<FollowBody> {
        let goes_on = order.state == RechargeState::Paid && order.target == RechargeTarget::Spot;
        goes_on.then_some(FollowBody {
            state: order.follow.state.name(),
            req_id: order.follow.req_id.map(|id| id.to_string()),
            code: order.follow.code.map(Code::name),
        })
    }
}

impl OrderBody {
    pub(super) fn new(order: &Recharge, catalog: &Catalog, now: Timestamp) -> OrderBody {
        let precision = catalog.precision(order.asset);
        let is_old = order.created_at < before(now, OVERDUE_MS);
        OrderBody {
            recharge_id: order.id.to_string(),
            user_id: order.user.number(),
            channel: order.channel.clone(),
            asset: symbol(catalog, order.asset),
            amount: order.amount.text(precision),
            bonus: units_text(order.bonus.into(), precision),
            promotion: order.promotion.clone(),
            bonus_state: order.bonus_state.map(BonusState::name),
            to: order.target.name(),
            state: order.state.name(),
            closing: order.closing.map(ClosingWish::name),
            code: order.code.map(Code::name),
            overdue: order.state == RechargeState::Paying && is_old,
            r#final: order.state.is_terminal(),
            reference: order.reference.clone(),
            payments: order.payments,
            held: order.held,
            attempts: order.attempts,
            age_ms: age_ms(now, order.created_at),
            next_at: order.next_at,
            idem_key: order.idem_key.clone(),
            created_at: order.created_at,
            expires_at: order.expires_at,
            updated_at: order.updated_at,
            paid_at: order.paid_at,
            follow: FollowBody::of(order),
        }
    }
}

/// A payment.
#[derive(Serialize)]
pub(super) struct PaymentBody {
    payment_id: String,
    channel: String,
    trade_no: String,
    merchant_no: String,
    recharge_id: Option<String>,
    /// The owner of the order; without one, the user that was credited.
    user_id: Option<u64>,
    asset: String,
    /// Null: no amount of the asset stands for it.
    amount: Option<String>,
    minor_units: i64,
    currency: String,
    disposition: &'static str,
    cause: Option<&'static str>,
    seen_by: &'static str,
    r#final: bool,
    age_ms: u64,
    paid_at: Timestamp,
    at: Timestamp,
    updated_at: Timestamp,
}

impl PaymentBody {
    /// `owner`: that of its order.
    pub(super) fn new(
        payment: &RechargePayment,
        owner: Option<UserId>,
        catalog: &Catalog,
        now: Timestamp,
    ) -> PaymentBody {
        let precision = catalog.precision(payment.asset);
        PaymentBody {
            payment_id: payment.id.to_string(),
            channel: payment.channel.clone(),
            trade_no: payment.trade_no.clone(),
            merchant_no: payment.merchant_no.clone(),
            recharge_id: payment.recharge.map(|id| id.to_string()),
            user_id: payment.user.or(owner).map(UserId::number),
            asset: symbol(catalog, payment.asset),
            amount: payment.amount.map(|amount| amount.text(precision)),
            minor_units: payment.minor_units,
            currency: payment.currency.clone(),
            disposition: payment.disposition.name(),
            cause: payment.cause.map(|cause| cause.name()),
            seen_by: payment.seen_by.name(),
            r#final: payment.disposition.is_terminal(),
            age_ms: age_ms(now, payment.at),
            paid_at: payment.paid_at,
            at: payment.at,
            updated_at: payment.updated_at,
        }
    }
}

/// A return.
#[derive(Serialize)]
pub(super) struct ReturnBody {
    return_id: String,
    payment_id: String,
    kind: &'static str,
    asset: Option<String>,
    /// Null: no amount of the asset stands for it.
    amount: Option<String>,
    minor_units: i64,
    /// The part of the bonus that goes with it; null as `amount` is.
    bonus: Option<String>,
    state: &'static str,
    /// Why it has failed.
    code: Option<&'static str>,
    /// Of a refund.
    idem_key: Option<String>,
    /// The channel's own number of a taking.
    number: Option<String>,
    next_at: Option<Timestamp>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl ReturnBody {
    /// `payment`: its payment; `None`: it is not among those that are shown.
    pub(super) fn new(
        row: &RechargeReturn,
        payment: Option<&RechargePayment>,
        catalog: &Catalog,
    ) -> ReturnBody {
        let amount = payment.and_then(|payment| {
            let amount = payment.amount_of(row.minor_units)?;
            Some(amount.text(catalog.precision(payment.asset)))
        });
        ReturnBody {
            return_id: row.id.to_string(),
            payment_id: row.payment.to_string(),
            kind: row.kind.name(),
            asset: payment.map(|payment| symbol(catalog, payment.asset)),
            amount,
            minor_units: row.minor_units,
            bonus: payment
                .map(|payment| units_text(row.bonus.into(), catalog.precision(payment.asset))),
            state: match row.state {
                ReturnState::Requested => "REQUESTED",
                ReturnState::Ready => "READY",
                ReturnState::Sent => "SENT",
                ReturnState::Done => "DONE",
                ReturnState::Failed => "FAILED",
            },
            code: row.code.map(Code::name),
            idem_key: row.idem_key.clone(),
            number: row.number.clone(),
            next_at: row.next_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// A receivable.
#[derive(Serialize)]
pub(super) struct ReceivableBody {
    return_id: String,
    payment_id: String,
    user_id: u64,
    asset: String,
    amount: String,
    /// Paid by its user, or given back by the channel.
    recovered: String,
    written_off: String,
    /// The part that is still owed.
    open: String,
    acts: Vec<ReceivableActBody>,
    at: Timestamp,
    updated_at: Timestamp,
}

#[derive(Serialize)]
struct ReceivableActBody {
    at: Timestamp,
    /// RECOVERED, WRITTEN_OFF or GIVEN_BACK.
    end: &'static str,
    amount: String,
    idem_key: String,
    by: String,
}

impl ReceivableBody {
    pub(super) fn new(row: &Receivable, catalog: &Catalog) -> ReceivableBody {
        let precision = catalog.precision(row.asset);
        let units = |units: u64| units_text(units.into(), precision);
        let act = |act: &ReceivableAct| ReceivableActBody {
            at: act.at,
            end: act.end.name(),
            amount: act.amount.text(precision),
            idem_key: act.idem_key.clone(),
            by: act.actor.clone(),
        };
        ReceivableBody {
            return_id: row.id.to_string(),
            payment_id: row.payment.to_string(),
            user_id: row.user.number(),
            asset: symbol(catalog, row.asset),
            amount: row.amount.text(precision),
            recovered: units(row.recovered),
            written_off: units(row.written_off),
            open: units(row.open()),
            acts: row.acts.iter().map(act).collect(),
            at: row.at,
            updated_at: row.updated_at,
        }
    }
}

#[derive(Serialize)]
struct MovementBody {
    key: String,
    debit: String,
    credit: String,
    asset: String,
    amount: String,
    at: Timestamp,
}

impl MovementBody {
    fn new(row: &MovementRow, catalog: &Catalog) -> MovementBody {
        MovementBody {
            key: row.key.clone(),
            debit: row.debit.clone(),
            credit: row.credit.clone(),
            asset: symbol(catalog, row.asset),
            amount: units_text(row.amount.into(), catalog.precision(row.asset)),
            at: row.at,
        }
    }
}

#[derive(Serialize)]
struct PassageBody {
    state: &'static str,
    at: Timestamp,
    by: String,
    reason: Option<String>,
}

impl From<&RechargePassage> for PassageBody {
    fn from(passage: &RechargePassage) -> PassageBody {
        PassageBody {
            state: passage.step.state.name(),
            at: passage.at,
            by: passage.step.actor.clone(),
            reason: passage.step.reason.clone(),
        }
    }
}

/// An event that the user of a recharge has of it.
#[derive(Serialize)]
struct EventShownBody {
    /// Text: many JSON readers lose digits of a number this large.
    event_id: String,
    r#type: &'static str,
    at: Timestamp,
    payment_id: Option<String>,
    deliveries: Vec<DeliveryShownBody>,
}

#[derive(Serialize)]
struct DeliveryShownBody {
    endpoint: String,
    /// PENDING, DELIVERED or DEAD.
    state: &'static str,
    attempts: u32,
    /// Null: it has ended, or waits for an earlier one.
    next_at: Option<Timestamp>,
    error: Option<String>,
}

impl From<&RechargeEventRow> for EventShownBody {
    fn from(event: &RechargeEventRow) -> EventShownBody {
        let delivery = |row: &RechargeDelivery| DeliveryShownBody {
            endpoint: row.endpoint.clone(),
            state: row.state,
            attempts: row.attempts,
            next_at: row.next_at,
            error: row.last_error.clone(),
        };
        EventShownBody {
            event_id: event.id.to_string(),
            r#type: event.change.event_type(),
            at: event.at,
            payment_id: event.payment.map(|id| id.to_string()),
            deliveries: event.deliveries.iter().map(delivery).collect(),
        }
    }
}

/// A kept callback, without its words.
#[derive(Serialize)]
pub(super) struct NoticeHeadBody {
    notice_id: String,
    payment_id: Option<String>,
    channel: String,
    trade_no: String,
    /// HELD, MISSING or CONTRADICTION.
    outcome: String,
    bytes: u32,
    at: Timestamp,
}

impl From<&NoticeHead> for NoticeHeadBody {
    fn from(head: &NoticeHead) -> NoticeHeadBody {
        NoticeHeadBody {
            notice_id: head.id.to_string(),
            payment_id: head.payment.map(|id| id.to_string()),
            channel: head.channel.clone(),
            trade_no: head.trade_no.clone(),
            outcome: head.outcome.clone(),
            bytes: head.bytes,
            at: head.at,
        }
    }
}

/// The word of a channel about an order, at this moment.
#[derive(Serialize)]
pub(super) struct AskedBody {
    /// OPEN, CLOSED, ABSENT, PAID or UNKNOWN.
    word: &'static str,
    /// Why it is not known.
    why: Option<String>,
    payments: Vec<FactsBody>,
}

#[derive(Serialize)]
struct FactsBody {
    trade_no: String,
    minor_units: i64,
    currency: String,
    discount: bool,
    returned: &'static str,
    paid_at: Timestamp,
}

impl From<&Facts> for FactsBody {
    fn from(facts: &Facts) -> FactsBody {
        FactsBody {
            trade_no: facts.trade_no.clone(),
            minor_units: facts.minor_units,
            currency: facts.currency.clone(),
            discount: facts.discount,
            returned: match facts.returned {
                Returned::None => "NONE",
                Returned::Part => "PART",
                Returned::Whole => "WHOLE",
            },
            paid_at: facts.paid_at,
        }
    }
}

impl From<&Queried> for AskedBody {
    fn from(queried: &Queried) -> AskedBody {
        let (word, why, payments) = match queried {
            Queried::Open => ("OPEN", None, &[][..]),
            Queried::Closed => ("CLOSED", None, &[][..]),
            Queried::Absent => ("ABSENT", None, &[][..]),
            Queried::Paid(facts) => ("PAID", None, facts.as_slice()),
            Queried::Unknown(doubt) => ("UNKNOWN", Some(doubt.to_string()), &[][..]),
        };
        AskedBody { word, why, payments: payments.iter().map(FactsBody::from).collect() }
    }
}

/// An order, or a payment without one, with everything that belongs to it.
#[derive(Serialize)]
pub(super) struct WholeBody {
    recharge: Option<OrderBody>,
    payments: Vec<PaymentBody>,
    returns: Vec<ReturnBody>,
    receivables: Vec<ReceivableBody>,
    movements: Vec<MovementBody>,
    history: Vec<PassageBody>,
    /// The newest events of its user, oldest first.
    events: Vec<EventShownBody>,
    /// The kept callbacks of its payments; `payments/{payment_id}/notices` has their words.
    notices: Vec<NoticeHeadBody>,
    /// The word of its channel; null: it was not asked.
    channel_says: Option<AskedBody>,
}

impl WholeBody {
    pub(super) fn new(
        whole: &WholeRecharge,
        asked: Option<&Queried>,
        catalog: &Catalog,
        now: Timestamp,
    ) -> WholeBody {
        let WholeRecharge { order, history, payments, returns, .. } = whole;
        let WholeRecharge { receivables, movements, events, notices, .. } = whole;
        let owner = order.as_ref().map(|order| order.user);
        let payment = |payment| PaymentBody::new(payment, owner, catalog, now);
        let back = |row: &RechargeReturn| {
            let payment = payments.iter().find(|payment| payment.id == row.payment);
            ReturnBody::new(row, payment, catalog)
        };
        WholeBody {
            recharge: order.as_ref().map(|order| OrderBody::new(order, catalog, now)),
            payments: payments.iter().map(payment).collect(),
            returns: returns.iter().map(back).collect(),
            receivables: receivables.iter().map(|row| ReceivableBody::new(row, catalog)).collect(),
            movements: movements.iter().map(|row| MovementBody::new(row, catalog)).collect(),
            history: history.iter().map(PassageBody::from).collect(),
            events: events.iter().map(EventShownBody::from).collect(),
            notices: notices.iter().map(NoticeHeadBody::from).collect(),
            channel_says: asked.map(AskedBody::from),
        }
    }
}

/// A channel.
#[derive(Serialize)]
pub(super) struct ChannelBody {
    name: String,
    asset: String,
    currency: String,
    minor_digits: u8,
    min: String,
    max: String,
    paused: bool,
    /// Null: its keys have no end.
    keys_end: Option<Timestamp>,
    callback_url: String,
}

impl ChannelBody {
    pub(super) fn new(open: &OpenChannel, catalog: &Catalog) -> ChannelBody {
        let terms = &open.terms;
        let precision = catalog.precision(terms.asset);
        ChannelBody {
            name: terms.name.clone(),
            asset: symbol(catalog, terms.asset),
            currency: terms.currency.clone(),
            minor_digits: terms.minor_digits,
            min: open.amount_min.text(precision),
            max: open.amount_max.text(precision),
            paused: open.is_paused(),
            keys_end: open.channel.keys_end(),
            callback_url: open.callback_url.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::recharge::decide::tests::order;
    use crate::recharge::order::{Follow, FollowState};

    /// Goal: an operator sees how far the money has gone on, and why it never does.
    #[test]
    fn an_order_shows_how_far_its_money_has_gone() {
        let shown = |target, follow| {
            let order = Recharge { state: RechargeState::Paid, target, follow, ..order() };
            let body = OrderBody::new(&order, &Catalog::new([]), Timestamp::UNIX_EPOCH);
            serde_json::to_value(body).expect("plain values")["follow"].clone()
        };
        let failed = Follow {
            state: FollowState::Failed,
            req_id: domain::transfer::ReqId::new(9),
            code: Some(Code::AccountFrozen),
        };
        let want = json!({
            "state": "FAILED",
            "req_id": failed.req_id.map(|id| id.to_string()),
            "code": "ACCOUNT_FROZEN",
        });
        assert_eq!(shown(RechargeTarget::Spot, failed), want);
        assert_eq!(shown(RechargeTarget::Funding, failed), Value::Null);
    }
}
