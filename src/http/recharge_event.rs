//! JSON of a change of a recharge, as streams and endpoints get it.

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::schema::{
    AmountText, CauseName, RechargeEventType, RechargeIdText, RechargeStateName, TargetName,
    WalletPaymentIdText,
};
use super::wire::ErrorBody;
use crate::postgres::flight::recharged::RechargeChange;
use crate::postgres::recharge_events::RechargeEvent;
use crate::recharge::order::{Recharge, RechargeState};
use crate::recharge::payment::{HeldCause, RechargePayment};
use domain::amount::units_text;
use domain::asset::{AssetId, Catalog};

/// A change of a recharge.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RechargeEvent)]
pub struct RechargeEventBody {
    /// Text: many JSON readers lose digits of a number this large.
    event_id: String,
    /// The change.
    #[serde(rename = "type")]
    #[schema(value_type = RechargeEventType)]
    kind: &'static str,
    /// The user.
    user_id: u64,
    /// The time of the commit.
    at: Timestamp,
    /// The order; null for a payment that an operator has credited without one.
    #[schema(required = true)]
    recharge: Option<OrderToldBody>,
    /// The payment, if the event is of one.
    #[schema(required = true)]
    payment: Option<PaymentToldBody>,
}

/// The parts of an order that an event tells.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RechargeTold)]
struct OrderToldBody {
    /// Its name.
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
    /// The state behind this event.
    #[schema(value_type = RechargeStateName)]
    state: &'static str,
    /// Whether the state is final.
    #[serde(rename = "final")]
    is_final: bool,
    /// The client's idempotency key.
    idem_key: String,
    /// Why it is CLOSED, where the state does not say it.
    #[schema(required = true)]
    error: Option<ErrorBody>,
}

/// The parts of a payment that an event tells.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PaymentTold)]
struct PaymentToldBody {
    /// Its name.
    #[schema(value_type = WalletPaymentIdText)]
    payment_id: String,
    /// The channel's own number.
    trade_no: String,
    /// The asset's symbol.
    asset: String,
    /// The amount that arrived; null if no asset stands for it.
    #[schema(value_type = Option<AmountText>, required = true)]
    amount: Option<String>,
    /// Why it is held, if it is.
    #[schema(value_type = Option<CauseName>, required = true)]
    cause: Option<&'static str>,
    /// By the channel's clock.
    paid_at: Timestamp,
}

/// The symbol of an asset. One without a row, deleted by hand, is named by its number.
pub(super) fn symbol_of(asset: AssetId, catalog: &Catalog) -> String {
    let known = catalog.by_id(asset).map(|asset| asset.symbol.clone());
    known.unwrap_or_else(|| format!("#{}", asset.0))
}

impl RechargeEventBody {
    /// The body as JSON text. The same event gives the same text every time.
    pub fn json(event: &RechargeEvent, catalog: &Catalog) -> String {
        let told = |order: &Recharge| {
            let state = event.state.unwrap_or(order.state);
            OrderToldBody::new(order, state, event.change, catalog)
        };
        let payment = event.payment.as_ref();
        let body = RechargeEventBody {
            event_id: event.id.to_string(),
            kind: event.change.event_type(),
            user_id: event.user.number(),
            at: event.at,
            recharge: event.order.as_ref().map(told),
            payment: payment.map(|payment| PaymentToldBody::new(payment, event.cause, catalog)),
        };
        serde_json::to_string(&body).expect("our own structures have no failing serializer")
    }
}

impl OrderToldBody {
    fn new(
        order: &Recharge,
        state: RechargeState,
        change: RechargeChange,
        catalog: &Catalog,
    ) -> OrderToldBody {
        let precision = catalog.precision(order.asset);
        let total = u128::from(order.amount.units()) + u128::from(order.bonus_due());
        let closed = change == RechargeChange::Closed;
        OrderToldBody {
            recharge_id: order.id.to_string(),
            asset: symbol_of(order.asset, catalog),
            amount: order.amount.text(precision),
            bonus: units_text(order.bonus_due().into(), precision),
            total: units_text(total, precision),
            to: order.target.name(),
            channel: order.channel.clone(),
            state: state.name(),
            is_final: state.is_terminal(),
            idem_key: order.idem_key.clone(),
            // The row has a later code too: it must not come into an earlier event.
            error: order.code.filter(|_| closed).map(ErrorBody::from),
        }
    }
}

impl PaymentToldBody {
    fn new(
        payment: &RechargePayment,
        cause: Option<HeldCause>,
        catalog: &Catalog,
    ) -> PaymentToldBody {
        let precision = catalog.precision(payment.asset);
        PaymentToldBody {
            payment_id: payment.id.to_string(),
            trade_no: payment.trade_no.clone(),
            asset: symbol_of(payment.asset, catalog),
            amount: payment.amount.map(|amount| amount.text(precision)),
            cause: cause.map(HeldCause::name),
            paid_at: payment.paid_at,
        }
    }
}
