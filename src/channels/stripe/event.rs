//! Events and intents as notices and facts.

use jiff::Timestamp;
use serde_json::Value;

use super::super::json;
use super::{ORDER, PROOF};
use crate::recharge::facts::{Facts, Notice, Returned, Taking};

/// A text of an object's metadata.
pub(super) fn metadata<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.get("metadata")?.get(name)?.as_str()
}

/// The notices of an event; `None`: a field is missing or in a wrong form.
pub(super) fn notices(event: &Value) -> Option<Vec<Notice>> {
    let kind = json::text(event, "/type")?;
    let object = event.pointer("/data/object").filter(|object| object.is_object())?;
    let notice = match kind {
        "payment_intent.succeeded" => {
            let paid_at = time(event, "/created")?;
            Notice::Payment(Facts { paid_at, ..facts(object)? })
        }
        "charge.dispute.funds_withdrawn" => Notice::Taken(taking(event, object)?),
        "charge.dispute.funds_reinstated" => Notice::GivenBack(taking(event, object)?),
        _ => match metadata(object, ORDER) {
            // Failed, cancelled, refunded: none of it stays true. A query shows the state.
            Some(no) => Notice::Hint { merchant_no: no.to_owned() },
            None => Notice::Nothing,
        },
    };
    Some(vec![notice])
}

/// The facts of an intent that has succeeded; `None`: a field is missing or in a wrong form.
pub(super) fn facts(intent: &Value) -> Option<Facts> {
    if json::text(intent, "/status")? != "succeeded" {
        return None;
    }
    let minor_units = json::amount(intent, "/amount_received")?;
    let returned = match intent.pointer("/latest_charge/amount_refunded") {
        None => Returned::None,
        Some(sum) => match sum.as_i64()? {
            0 => Returned::None,
            sum if sum >= minor_units => Returned::Whole,
            sum if sum > 0 => Returned::Part,
            _ => return None,
        },
    };
    Some(Facts {
        // Without our metadata the payment is foreign.
        merchant_no: metadata(intent, ORDER).unwrap_or_default().to_owned(),
        trade_no: json::text(intent, "/id")?.to_owned(),
        minor_units,
        total_minor_units: json::amount(intent, "/amount")?,
        currency: json::currency(intent, "/currency")?,
        discount: false,
        returned,
        paid_at: time(intent, "/latest_charge/created").or_else(|| time(intent, "/created"))?,
        proof: metadata(intent, PROOF).map(str::to_owned),
    })
}

fn taking(event: &Value, dispute: &Value) -> Option<Taking> {
    Some(Taking {
        merchant_no: metadata(dispute, ORDER).map(str::to_owned),
        trade_no: json::text(dispute, "/payment_intent")?.to_owned(),
        number: json::text(dispute, "/id")?.to_owned(),
        minor_units: json::amount(dispute, "/amount")?,
        currency: json::currency(dispute, "/currency")?,
        at: time(event, "/created")?,
    })
}

/// A time in seconds since 1970.
pub(super) fn time(value: &Value, pointer: &str) -> Option<Timestamp> {
    Timestamp::from_second(json::amount(value, pointer)?).ok()
}
