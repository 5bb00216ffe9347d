//! JSON of recharges, as their owner reads them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::recharge_event::symbol_of;
use super::schema::{
    AmountText, CauseName, CodeName, DispositionName, FollowName, PayKindName, RechargeIdText,
    RechargeStateName, ReqIdText, ReturnIdText, ReturnStateName, TargetName, WalletPaymentIdText,
    WishName,
};
use super::wire::ErrorBody;
use crate::channels::open::OpenChannel;
use crate::postgres::reads::own_recharges::{RechargeStepRow, RechargeTotal};
use crate::recharge::PaymentId;
use crate::recharge::order::{ClosingWish, Recharge, RechargeState, RechargeTarget};
use crate::recharge::payment::{HeldCause, RechargePayment};
use crate::recharge::returned::{RechargeReturn, ReturnState};
use domain::amount::{Amount, units_text};
use domain::asset::{AssetStatus, Catalog};
use domain::code::Code;

/// An order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Recharge)]
pub struct RechargeBody {
    /// Its name: also the merchant's number at the channel.
    #[schema(value_type = RechargeIdText)]
    recharge_id: String,
    /// The asset's symbol.
    asset: String,
    /// The amount of the order.
    #[schema(value_type = AmountText)]
    amount: String,
    /// Out of a promotion.
    #[schema(value_type = AmountText)]
    bonus: String,
    /// Both.
    #[schema(value_type = AmountText)]
    total: String,
    /// The account that the money is meant for.
    #[schema(value_type = TargetName)]
    to: &'static str,
    /// The channel's name.
    channel: String,
    /// The state.
    #[schema(value_type = RechargeStateName)]
    state: &'static str,
    /// There is a wish to close it. A payment may still win.
    closing: bool,
    /// Whether the state is final.
    #[serde(rename = "final")]
    is_final: bool,
    /// The data for the payer: for the owner alone, while PAYING and not closing.
    #[schema(required = true)]
    pay: Option<PayBody>,
    /// The payments that name it, in the order in which they came.
    payments: Vec<RechargePaymentBody>,
    /// Money that goes back to its payer, or has.
    returns: Vec<RechargeReturnBody>,
    /// How far the money of a PAID order with `to` SPOT has gone on; null otherwise.
    #[schema(required = true)]
    transfer: Option<RechargeTransferBody>,
    /// Why it is CLOSED, where the state does not say it.
    #[schema(required = true)]
    error: Option<ErrorBody>,
    /// The client's idempotency key.
    idem_key: String,
    /// When it was made.
    created_at: Timestamp,
    /// When it is closed unpaid.
    expires_at: Timestamp,
    /// When it was credited.
    #[schema(required = true)]
    paid_at: Option<Timestamp>,
}

/// The data for the payer.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = RechargePay)]
struct PayBody {
    /// The form of the value.
    #[schema(value_type = PayKindName)]
    kind: String,
    /// The URL of a QR code, or the secret of a payment form.
    value: String,
    /// The end of its validity, where it has one.
    #[serde(default)]
    #[schema(required = true)]
    expires_at: Option<Timestamp>,
}

impl std::fmt::Debug for PayBody {
    // The value lets its reader pay, or see the payment.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "PayBody {{ {} *** }}", self.kind)
    }
}

/// A payment of an order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RechargePayment)]
pub struct RechargePaymentBody {
    /// Its name.
    #[schema(value_type = WalletPaymentIdText)]
    payment_id: String,
    /// The channel's own number.
    trade_no: String,
    /// The amount that arrived; null if no asset stands for it.
    #[schema(value_type = Option<AmountText>, required = true)]
    amount: Option<String>,
    /// ISO 4217.
    currency: String,
    /// Where it stands.
    #[schema(value_type = DispositionName)]
    disposition: &'static str,
    /// Why it is held, or was.
    #[schema(value_type = Option<CauseName>, required = true)]
    cause: Option<&'static str>,
    /// By the channel's clock.
    paid_at: Timestamp,
}

/// Money of a payment that goes back to its payer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RechargeReturn)]
pub struct RechargeReturnBody {
    /// Its name: also the refund's number at the channel.
    #[schema(value_type = ReturnIdText)]
    return_id: String,
    /// Of which payment.
    #[schema(value_type = WalletPaymentIdText)]
    payment_id: String,
    /// How much; null if no asset stands for it.
    #[schema(value_type = Option<AmountText>, required = true)]
    amount: Option<String>,
    /// Where it stands.
    #[schema(value_type = ReturnStateName)]
    state: &'static str,
    /// When it was asked for.
    created_at: Timestamp,
}

/// How far the money of an order has gone on from Funding to Spot.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RechargeTransfer)]
pub struct RechargeTransferBody {
    /// The transfer, once it is known.
    #[schema(value_type = Option<ReqIdText>, required = true)]
    req_id: Option<String>,
    /// Where it stands. FAILED and GIVEN_UP: the money is in Funding.
    #[schema(value_type = FollowName)]
    state: &'static str,
    /// Why it did not go on yet, or never does.
    #[schema(value_type = Option<CodeName>, required = true)]
    code: Option<&'static str>,
}

impl RechargeTransferBody {
    /// `None`: the order is not PAID, or its money stays in Funding.
    fn of(order: &Recharge) -> Option<RechargeTransferBody> {
        let goes_on = order.state == RechargeState::Paid && order.target == RechargeTarget::Spot;
        goes_on.then_some(RechargeTransferBody {
            req_id: order.follow.req_id.map(|id| id.to_string()),
            state: order.follow.state.name(),
            code: order.follow.code.map(Code::name),
        })
    }
}

impl PayBody {
    /// `order.pay` is this struct as JSON; of a text that is none, the form is known by its scheme.
    fn of(order: &Recharge) -> Option<PayBody> {
        let shown = order.state == RechargeState::Paying && order.closing.is_none();
        let text = order.pay.as_deref().filter(|_| shown)?;
        Some(serde_json::from_str(text).unwrap_or_else(|_| {
            let kind = if text.contains("://") { "code_url" } else { "client_secret" };
            PayBody { kind: kind.to_owned(), value: text.to_owned(), expires_at: None }
        }))
    }
}

impl RechargePaymentBody {
    fn new(payment: &RechargePayment, catalog: &Catalog) -> RechargePaymentBody {
        let precision = catalog.precision(payment.asset);
        RechargePaymentBody {
            payment_id: payment.id.to_string(),
            trade_no: payment.trade_no.clone(),
            amount: payment.amount.map(|amount| amount.text(precision)),
            currency: payment.currency.clone(),
            disposition: payment.disposition.name(),
            cause: payment.cause.map(HeldCause::name),
            paid_at: payment.paid_at,
        }
    }
}

impl RechargeReturnBody {
    fn new(
        row: &RechargeReturn,
        payment: &RechargePayment,
        catalog: &Catalog,
    ) -> RechargeReturnBody {
        let precision = catalog.precision(payment.asset);
        RechargeReturnBody {
            return_id: row.id.to_string(),
            payment_id: payment.id.to_string(),
            amount: part(payment, row.minor_units).map(|units| units_text(units, precision)),
            state: match row.state {
                ReturnState::Requested | ReturnState::Ready | ReturnState::Sent => "UNDER_WAY",
                ReturnState::Done => "DONE",
                ReturnState::Failed => "FAILED",
            },
            created_at: row.created_at,
        }
    }
}

/// So many minor units of a payment's channel, in the asset's smallest units.
fn part(payment: &RechargePayment, minor_units: i64) -> Option<u128> {
    let whole = u128::try_from(payment.minor_units).ok().filter(|whole| *whole > 0)?;
    let units = u128::from(payment.amount?.units());
    // The amount is a multiple of its minor units.
    Some(units / whole * u128::try_from(minor_units).ok()?)
}

/// Payments and returns of the orders that an answer shows.
#[derive(Debug, Default)]
pub struct RechargeParts {
    /// In the order in which they came.
    pub payments: Vec<RechargePayment>,
    /// Oldest first.
    pub returns: Vec<RechargeReturn>,
}

impl RechargeBody {
    /// An order with its parts, which may be those of others too. `owner`: the owner reads it.
    pub fn new(
        order: &Recharge,
        parts: &RechargeParts,
        catalog: &Catalog,
        owner: bool,
    ) -> RechargeBody {
        let precision = catalog.precision(order.asset);
        let total = u128::from(order.amount.units()) + u128::from(order.bonus_due());
        let own = parts.payments.iter().filter(|payment| payment.recharge == Some(order.id));
        let by_id: BTreeMap<PaymentId, &RechargePayment> =
            own.clone().map(|payment| (payment.id, payment)).collect();
        let returns = parts.returns.iter().filter_map(|row| {
            let payment = by_id.get(&row.payment)?;
            Some(RechargeReturnBody::new(row, payment, catalog))
        });
        RechargeBody {
            recharge_id: order.id.to_string(),
            asset: symbol_of(order.asset, catalog),
            amount: order.amount.text(precision),
            bonus: units_text(order.bonus_due().into(), precision),
            total: units_text(total, precision),
            to: order.target.name(),
            channel: order.channel.clone(),
            state: order.state.name(),
            closing: order.closing.is_some() && !order.state.is_terminal(),
            is_final: order.state.is_terminal(),
            pay: PayBody::of(order).filter(|_| owner),
            payments: own.map(|payment| RechargePaymentBody::new(payment, catalog)).collect(),
            returns: returns.collect(),
            transfer: RechargeTransferBody::of(order),
            error: order.code.map(ErrorBody::from),
            idem_key: order.idem_key.clone(),
            created_at: order.created_at,
            expires_at: order.expires_at,
            paid_at: order.paid_at,
        }
    }
}

/// A page of a user's orders.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RechargeList)]
pub struct RechargesBody {
    /// Newest first. With filters that seldom match, a page may be short or empty and not the last.
    pub recharges: Vec<RechargeBody>,
    /// The cursor of the next page; null at the end.
    #[schema(value_type = Option<RechargeIdText>, required = true)]
    pub next_cursor: Option<String>,
}

/// The history of an order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RechargeHistory)]
pub struct RechargeHistoryBody {
    /// The order.
    #[schema(value_type = RechargeIdText)]
    pub recharge_id: String,
    /// In order.
    pub history: Vec<RechargeStepBody>,
}

/// A state that an order has passed, or the wish to close it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RechargeStep)]
pub struct RechargeStepBody {
    /// The state.
    #[schema(value_type = RechargeStateName)]
    state: &'static str,
    /// The time.
    at: Timestamp,
    /// The wish to close it, in the step that wrote it down.
    #[schema(value_type = Option<WishName>, required = true)]
    closing: Option<&'static str>,
    /// Why it is CLOSED, where the state does not say it.
    #[schema(required = true)]
    error: Option<ErrorBody>,
}

impl RechargeStepBody {
    /// The steps that the owner sees. Notes of operators and of the channel's numbers are not among
    /// them.
    pub fn all(rows: &[RechargeStepRow]) -> Vec<RechargeStepBody> {
        let mut before = None;
        let seen = rows.iter().filter_map(|row| {
            let reason = row.reason.as_deref();
            let wish = |reason| ClosingWish::ALL.into_iter().find(|wish| wish.name() == reason);
            let closing = reason.and_then(wish).map(ClosingWish::name);
            let moved = before.replace(row.state) != Some(row.state);
            let error = reason.filter(|_| moved).and_then(Code::from_name).map(ErrorBody::from);
            let (state, at) = (row.state.name(), row.at);
            (moved || closing.is_some()).then_some(RechargeStepBody { state, at, closing, error })
        });
        seen.collect()
    }
}

/// The sums of a user's recharges.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RechargeTotals)]
pub struct RechargeTotalsBody {
    /// In the order of the assets' numbers.
    pub totals: Vec<RechargeTotalBody>,
}

/// The sums in one asset.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RechargeTotal)]
pub struct RechargeTotalBody {
    /// The asset's symbol.
    asset: String,
    /// Credited payments.
    #[schema(value_type = AmountText)]
    recharged: String,
    /// Out of promotions.
    #[schema(value_type = AmountText)]
    bonus: String,
    /// Given back to their payers.
    #[schema(value_type = AmountText)]
    returned: String,
    /// The number of credited payments.
    count: u64,
}

impl RechargeTotalBody {
    /// One row.
    pub fn new(total: &RechargeTotal, catalog: &Catalog) -> RechargeTotalBody {
        let text = |units| units_text(units, catalog.precision(total.asset));
        RechargeTotalBody {
            asset: symbol_of(total.asset, catalog),
            recharged: text(total.recharged),
            bonus: text(total.bonus),
            returned: text(total.returned),
            count: total.count,
        }
    }
}

/// The channels.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChannelList)]
pub struct RechargeChannelsBody {
    /// In the order of their names.
    pub channels: Vec<RechargeChannelBody>,
}

/// A channel.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Channel)]
pub struct RechargeChannelBody {
    /// Its name.
    name: String,
    /// The asset that its payments become.
    asset: String,
    /// The smallest order.
    #[schema(value_type = AmountText)]
    min: String,
    /// The largest one.
    #[schema(value_type = AmountText)]
    max: String,
    /// Amounts are multiples of it.
    #[schema(value_type = AmountText)]
    step: String,
    /// Whether it takes new orders.
    enabled: bool,
}

impl RechargeChannelBody {
    /// One row.
    pub fn new(channel: &OpenChannel, catalog: &Catalog) -> RechargeChannelBody {
        let asset = channel.terms.asset;
        let precision = catalog.precision(asset);
        let is_active = catalog.by_id(asset).is_some_and(|row| row.status == AssetStatus::Active);
        let step = channel.terms.amount(1, precision).map_or(0, Amount::units);
        RechargeChannelBody {
            name: channel.terms.name.clone(),
            asset: symbol_of(asset, catalog),
            min: channel.amount_min.text(precision),
            max: channel.amount_max.text(precision),
            step: units_text(step.into(), precision),
            enabled: is_active && !channel.is_paused(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::recharge::RechargeId;
    use crate::recharge::order::BonusState;
    use crate::recharge::order::{Follow, FollowState};
    use crate::recharge::payment::{Disposition, SeenBy};
    use domain::account::UserId;
    use domain::asset::{Asset, AssetId};
    use domain::transfer::ReqId;

    fn catalog() -> Catalog {
        Catalog::new([Asset {
            id: AssetId(6),
            symbol: "CNY".to_owned(),
            precision: 6,
            status: AssetStatus::Active,
            transfer_enabled: true,
            transfer_min: Amount::new(1).expect("not zero"),
            transfer_max: Amount::new(1_000_000_000).expect("not zero"),
        }])
    }

    fn order() -> Recharge {
        let at = Timestamp::UNIX_EPOCH;
        Recharge {
            id: RechargeId::new(7).expect("not zero"),
            user: UserId::new(1001).expect("an id"),
            idem_key: "topup-1".to_owned(),
            fingerprint: String::new(),
            channel: "wechat".to_owned(),
            asset: AssetId(6),
            amount: Amount::new(100_000_000).expect("not zero"),
            minor_units: 10_000,
            bonus: 20_000_000,
            bonus_state: Some(BonusState::Reserved),
            promotion: None,
            target: RechargeTarget::Spot,
            state: RechargeState::Paying,
            closing: None,
            code: None,
            reference: None,
            pay: Some(r#"{"kind":"code_url","value":"weixin://x","expires_at":null}"#.to_owned()),
            payments: 0,
            held: 0,
            attempts: 1,
            next_at: None,
            created_at: at,
            expires_at: at,
            updated_at: at,
            paid_at: None,
            version: 1,
            follow: Follow::default(),
        }
    }

    fn body(order: &Recharge, parts: &RechargeParts, owner: bool) -> Value {
        let body = RechargeBody::new(order, parts, &catalog(), owner);
        assert!(!format!("{body:?}").contains("weixin://"), "no log may have it");
        serde_json::to_value(body).expect("plain values")
    }

    /// Goal: the body is that of the specification, to the field.
    #[test]
    fn the_body_has_these_fields_and_no_other() {
        let want = json!({
            "recharge_id": "wrc_00000000000000000000000007", "asset": "CNY", "amount": "100",
            "bonus": "20", "total": "120", "to": "SPOT", "channel": "wechat", "state": "PAYING",
            "closing": false, "final": false,
            "pay": {"kind": "code_url", "value": "weixin://x", "expires_at": null},
            "payments": [], "returns": [], "transfer": null, "error": null,
            "idem_key": "topup-1", "created_at": "1970-01-01T00:00:00Z",
            "expires_at": "1970-01-01T00:00:00Z", "paid_at": null,
        });
        assert_eq!(body(&order(), &RechargeParts::default(), true), want);
    }

    /// Goal: the owner learns how far the money has gone on, and why it never does.
    #[test]
    fn the_body_says_how_far_the_money_has_gone() {
        let of = |state, target, follow| {
            let order = Recharge { state, target, follow, ..order() };
            body(&order, &RechargeParts::default(), true)["transfer"].clone()
        };
        let (paid, spot) = (RechargeState::Paid, RechargeTarget::Spot);
        let req_id = ReqId::new(9);
        for (state, req_id, code) in [
            (FollowState::Waiting, None, None),
            (FollowState::Waiting, None, Some(Code::TransferNotAllowed)),
            (FollowState::Arrived, req_id, None),
            (FollowState::Failed, req_id, Some(Code::AccountFrozen)),
            (FollowState::GivenUp, None, Some(Code::TransferNotAllowed)),
        ] {
            let want = json!({
                "req_id": req_id.map(|id| id.to_string()),
                "state": state.name(),
                "code": code.map(Code::name),
            });
            assert_eq!(of(paid, spot, Follow { state, req_id, code }), want);
        }
        let arrived = Follow { state: FollowState::Arrived, req_id, code: None };
        assert_eq!(of(paid, RechargeTarget::Funding, arrived), Value::Null);
        assert_eq!(of(RechargeState::Paying, spot, Follow::default()), Value::Null);
        assert_eq!(of(RechargeState::Closed, spot, Follow::default()), Value::Null);
    }

    /// Goal: only the owner of an order that can be paid is told how.
    #[test]
    fn pay_is_told_to_the_owner_while_the_order_can_be_paid() {
        let parts = RechargeParts::default();
        let pay = |order: &Recharge, owner| body(order, &parts, owner)["pay"].clone();
        assert!(pay(&order(), true).is_object());
        assert_eq!(pay(&order(), false), Value::Null);
        let closing = Recharge { closing: Some(ClosingWish::Cancelled), ..order() };
        assert_eq!(pay(&closing, true), Value::Null);
        for state in [RechargeState::Init, RechargeState::Paid, RechargeState::Closed] {
            assert_eq!(pay(&Recharge { state, ..order() }, true), Value::Null, "{state:?}");
        }
        let plain = |text: &str| Recharge { pay: Some(text.to_owned()), ..order() };
        assert_eq!(pay(&plain("weixin://y"), true)["kind"], json!("code_url"));
        assert_eq!(pay(&plain("pi_1_secret_2"), true)["kind"], json!("client_secret"));
    }

    /// Goal: an order shows its own payments, each with its returns in the asset's units.
    #[test]
    fn payments_and_returns_are_those_of_the_order() {
        let payment = |number, recharge| RechargePayment {
            id: PaymentId::new(number).expect("not zero"),
            channel: "wechat".to_owned(),
            trade_no: format!("4200{number}"),
            merchant_no: String::new(),
            recharge: RechargeId::new(recharge),
            ordinal: Some(1),
            user: None,
            minor_units: 10_000,
            currency: "CNY".to_owned(),
            asset: AssetId(6),
            amount: Amount::new(100_000_000),
            disposition: Disposition::Returning,
            cause: Some(HeldCause::Duplicate),
            seen_by: SeenBy::Callback,
            paid_at: Timestamp::UNIX_EPOCH,
            at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
            version: 1,
        };
        assert_eq!(part(&payment(1, 7), 2_500), Some(25_000_000));
        let parts =
            RechargeParts { payments: vec![payment(1, 7), payment(2, 8)], ..Default::default() };
        let shown = body(&order(), &parts, true);
        let want = json!([{
            "payment_id": "wpy_00000000000000000000000001", "trade_no": "42001", "amount": "100",
            "currency": "CNY", "disposition": "RETURNING", "cause": "DUPLICATE",
            "paid_at": "1970-01-01T00:00:00Z",
        }]);
        assert_eq!(shown["payments"], want);
    }

    /// Goal: a history shows states and the wish, and no note of an operator or a channel.
    #[test]
    fn a_history_shows_what_the_owner_may_see() {
        let step = |state, reason: Option<&str>| RechargeStepRow {
            at: Timestamp::UNIX_EPOCH,
            state,
            reason: reason.map(str::to_owned),
        };
        let rows = [
            step(RechargeState::Init, None),
            step(RechargeState::Paying, None),
            step(RechargeState::Paying, Some("reference pi_2")),
            step(RechargeState::Paying, Some("REFUSED")),
            step(RechargeState::Closed, Some("CHANNEL_REFUSED")),
        ];
        let steps = serde_json::to_value(RechargeStepBody::all(&rows)).expect("plain values");
        let seen: Vec<(&Value, &Value, &Value)> = steps
            .as_array()
            .expect("an array")
            .iter()
            .map(|step| (&step["state"], &step["closing"], &step["error"]["code"]))
            .collect();
        let null = Value::Null;
        assert_eq!(
            seen,
            [
                (&json!("INIT"), &null, &null),
                (&json!("PAYING"), &null, &null),
                (&json!("PAYING"), &json!("REFUSED"), &null),
                (&json!("CLOSED"), &null, &json!("CHANNEL_REFUSED")),
            ]
        );
    }
}
