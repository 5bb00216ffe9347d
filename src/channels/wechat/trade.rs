//! A transaction of WeChat Pay as facts.

use jiff::Timestamp;
use serde_json::Value;

use super::super::json;
use crate::recharge::facts::{Facts, Returned};

/// Kinds of promotions that the merchant does not bear: the whole price arrives.
const BORNE_BY_OTHERS: [&str; 2] = ["CASH", "COUPON"];

/// The facts of a paid transaction; `None`: a field is missing or in a wrong form.
pub(super) fn facts(trade: &Value, returned: Returned) -> Option<Facts> {
    let total = json::amount(trade, "/amount/total")?;
    let (borne, discount) = borne(trade)?;
    let minor_units = total.checked_sub(borne).filter(|units| *units > 0)?;
    let currency = match trade.pointer("/amount/currency") {
        None => "CNY".to_owned(),
        Some(_) => json::currency(trade, "/amount/currency")?,
    };
    Some(Facts {
        merchant_no: json::text(trade, "/out_trade_no")?.to_owned(),
        trade_no: json::text(trade, "/transaction_id")?.to_owned(),
        minor_units,
        total_minor_units: total,
        currency,
        discount,
        returned,
        paid_at: json::text(trade, "/success_time")?.parse::<Timestamp>().ok()?,
        proof: json::text(trade, "/attach").map(str::to_owned),
    })
}

/// The part of the price that does not arrive, and whether there is a discount of that kind. A
/// kind that we do not know counts as one.
fn borne(trade: &Value) -> Option<(i64, bool)> {
    let items = match trade.get("promotion_detail") {
        None | Some(Value::Null) => return Some((0, false)),
        Some(items) => items.as_array()?,
    };
    let (mut sum, mut any) = (0_i64, false);
    for item in items {
        let units = item.get("amount")?.as_i64().filter(|units| *units >= 0)?;
        let kind = item.get("type").and_then(Value::as_str);
        if !kind.is_some_and(|kind| BORNE_BY_OTHERS.contains(&kind)) {
            sum = sum.checked_add(units)?;
            any = true;
        }
    }
    Some((sum, any))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The amount is the one that arrives, and an unknown kind of discount is not harmless.
    #[test]
    fn a_discount_of_the_merchant_lowers_what_arrives() {
        let read = |details: Value| {
            let trade = json!({
                "out_trade_no": "wrc_1", "transaction_id": "42", "success_time":
                "2026-11-27T10:00:00+08:00", "amount": {"total": 1000, "currency": "CNY"},
                "promotion_detail": details,
            });
            facts(&trade, Returned::None).map(|facts| (facts.minor_units, facts.discount))
        };
        let one = |kind: &str| json!([{"type": kind, "amount": 100}]);
        assert_eq!(read(Value::Null), Some((1000, false)));
        assert_eq!(read(json!([])), Some((1000, false)));
        assert_eq!(read(one("CASH")), Some((1000, false)));
        assert_eq!(read(one("COUPON")), Some((1000, false)));
        for borne in ["NOCASH", "NO_CASH", "DISCOUNT", "a new kind"] {
            assert_eq!(read(one(borne)), Some((900, true)), "{borne}");
        }
        assert_eq!(read(json!([{"amount": 100}])), Some((900, true)));
        for bad in [json!({}), json!([{"type": "CASH"}]), json!([{"type": "CASH", "amount": -1}])] {
            assert_eq!(read(bad.clone()), None, "{bad}");
        }
        assert_eq!(read(json!([{"type": "NOCASH", "amount": 1000}])), None);
    }
}
