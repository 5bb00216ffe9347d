//! The balance transactions of one day, UTC, page by page.

use jiff::ToSpan;
use jiff::tz::Offset;
use serde_json::Value;

use super::super::json;
use super::{BillAsk, ORDER, PAGE, RETURN, Stripe, event};
use crate::recharge::answers::{
    BillKind, BillLine, BillSums, Billed, ChannelDoubt, FEE_PARTS, whole_fees,
};

/// The most pages of one day: 10 million lines.
const PAGES_MAX: usize = 100_000;

/// Fetches the day's lines in order.
pub(super) fn fetch_day(stripe: &Stripe, ask: &BillAsk, lines: &mut dyn FnMut(BillLine)) -> Billed {
    match pages(stripe, ask, lines) {
        Ok(sums) if sums.lines == 0 && !ask.has_trade => Billed::NoTrade,
        // A transaction may appear some time behind its payment.
        Ok(sums) if sums.lines == 0 => Billed::NotYet,
        Ok(sums) => Billed::Whole(sums),
        Err(doubt) => Billed::Unknown(doubt),
    }
}

fn pages(
    stripe: &Stripe,
    ask: &BillAsk,
    lines: &mut dyn FnMut(BillLine),
) -> Result<BillSums, ChannelDoubt> {
    let midnight = |day: jiff::civil::Date| Offset::UTC.to_timestamp(day.at(0, 0, 0, 0));
    let from = midnight(ask.day);
    let until = ask.day.checked_add(1.day()).and_then(midnight);
    let (Ok(from), Ok(until)) = (from, until) else { return Err(ChannelDoubt::Unreadable) };
    let (from, until) = (from.as_second().to_string(), until.as_second().to_string());
    let (mut sums, mut after) = (BillSums::default(), String::new());
    let limit = PAGE.to_string();
    for _ in 0..PAGES_MAX {
        let mut fields = vec![
            ("created[gte]", from.as_str()),
            ("created[lt]", until.as_str()),
            ("limit", limit.as_str()),
            ("expand[]", "data.source"),
        ];
        if !after.is_empty() {
            fields.push(("starting_after", &after));
        }
        let page = stripe.get("/v1/balance_transactions", &fields);
        let page = page.map_err(super::Problem::doubt)?;
        let items = page.get("data").and_then(Value::as_array).ok_or(ChannelDoubt::Unreadable)?;
        for item in items {
            let line = line(item).ok_or(ChannelDoubt::Unreadable)?;
            add(&mut sums, &line).ok_or(ChannelDoubt::Damaged("its sums overflow"))?;
            lines(line);
        }
        match super::behind(&page, items, &after)? {
            Some(last) => after = last,
            None => return Ok(sums),
        }
    }
    Err(ChannelDoubt::Damaged("it has too many pages"))
}

/// Adds a line to the sums; `None`: they overflow.
fn add(sums: &mut BillSums, line: &BillLine) -> Option<()> {
    let units = line.minor_units;
    sums.lines += 1;
    match line.kind {
        BillKind::Paid => sums.paid = sums.paid.checked_add(units)?,
        BillKind::Returned | BillKind::Taken => sums.returned = sums.returned.checked_add(units)?,
        BillKind::GivenBack => sums.returned = sums.returned.checked_sub(units)?,
        BillKind::Undone | BillKind::Other => {}
    }
    sums.fees = sums.fees.checked_add(whole_fees(line.fee_parts))?;
    Some(())
}

/// One balance transaction; `None`: a field is missing or in a wrong form.
fn line(item: &Value) -> Option<BillLine> {
    let net = item.get("amount")?.as_i64()?;
    let at = event::time(item, "/created")?;
    // Fees are in the currency of the account.
    let fee_parts = item.get("fee")?.as_i64()?.checked_mul(FEE_PARTS)?;
    let fee_currency = json::currency(item, "/currency")?;
    let source = item.get("source").filter(|source| source.is_object());
    let kind = match (json::text(item, "/type")?, json::text(item, "/reporting_category")) {
        ("charge" | "payment", _) => BillKind::Paid,
        ("refund_failure" | "payment_failure_refund", _) => BillKind::Undone,
        ("refund" | "payment_refund", _) => BillKind::Returned,
        ("adjustment", Some("dispute")) => BillKind::Taken,
        ("adjustment", Some("dispute_reversal")) => BillKind::GivenBack,
        _ => BillKind::Other,
    };
    let is_named = source.is_some_and(|source| json::text(source, "/id").is_some());
    if kind == BillKind::Other || (kind == BillKind::Undone && !is_named) {
        let currency = fee_currency.clone();
        let minor_units = net.checked_abs()?;
        let (merchant_no, trade_no) = (String::new(), String::new());
        let (return_no, channel_return_no) = (None, None);
        return Some(BillLine {
            kind,
            merchant_no,
            trade_no,
            return_no,
            channel_return_no,
            minor_units,
            currency,
            fee_parts,
            fee_currency,
            at,
        });
    }
    let source = source?;
    let id = json::text(source, "/id")?.to_owned();
    let text = |name: &str| event::metadata(source, name).map(str::to_owned);
    Some(BillLine {
        kind,
        merchant_no: text(ORDER).unwrap_or_default(),
        // The number of a payment is its intent's. A charge without one is foreign.
        trade_no: json::text(source, "/payment_intent").unwrap_or_default().to_owned(),
        return_no: text(RETURN),
        channel_return_no: (kind != BillKind::Paid).then_some(id),
        // In the currency of the payment. The transaction itself is in that of the account.
        minor_units: json::amount(source, "/amount")?,
        currency: json::currency(source, "/currency")?,
        fee_parts,
        fee_currency,
        at,
    })
}
