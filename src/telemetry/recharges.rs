//! The metrics of recharges. None of them is there while recharges are off.

use metrics::Unit;

use super::{CHANNEL_CALLS_TOTAL, WEBHOOK_DEAD};

/// Gauge: orders that are PAYING for more than 30 minutes.
pub const RECHARGES_OVERDUE: &str = "ubscore_recharges_overdue";
/// Gauge: HELD payments, by `cause`.
pub const RECHARGE_PAYMENTS_HELD: &str = "ubscore_recharge_payments_held";
/// Gauge: receivables of which a part is owed.
pub const RECEIVABLES_OPEN: &str = "ubscore_recharge_receivables_open";
/// Gauge: events about recharges that are not delivered.
pub const RECHARGE_EVENTS_PENDING: &str = "ubscore_recharge_events_pending";
/// Gauge: verified payments that are not committed for a minute, and transfers to Spot that do not
/// end.
pub const RECHARGE_CREDITS_FAILING: &str = "ubscore_recharge_credits_failing";
/// Counter: credited payments, by `channel` and the way in which they were seen, `seen_by`:
/// callback, query, bill, operator.
pub const RECHARGE_CREDITS_TOTAL: &str = "ubscore_recharge_credits_total";
/// Gauge, s since the Unix epoch: the end of a channel's last key, by `channel`. A key without an
/// end has no series.
pub const CHANNEL_KEY_END: &str = "ubscore_channel_key_end_timestamp_seconds";

/// Gauge: open findings of bills, by `channel` and `kind`.
pub const BILL_FINDINGS: &str = "ubscore_bill_findings";
/// Gauge, s since the Unix epoch: the end of the last day with a good bill, by `channel`.
pub const BILL_LAST_GOOD: &str = "ubscore_bill_last_good_timestamp_seconds";
/// Gauge, smallest units: money of a promotion that is neither reserved nor given, by `promotion`.
pub const PROMOTION_AVAILABLE: &str = "ubscore_promotion_available";

/// Starts the series of a channel at zero.
pub fn expect_channel(channel: &str) {
    for seen_by in ["callback", "query", "bill", "operator"] {
        credits(channel, seen_by, 0);
    }
    for call in ["create", "query", "close", "bill"] {
        let channel = channel.to_owned();
        metrics::counter!(CHANNEL_CALLS_TOTAL, "channel" => channel, "call" => call, "outcome" => "unknown")
            .increment(0);
    }
}

/// Sets the numbers of a backlog: overdue orders, undelivered events, dead letters, and failing
/// credits. The dead letters of recharges are a part of all, with a label of their own.
pub fn recharge_backlog(overdue: u64, events: u64, dead: u64, failing: u64) {
    metrics::gauge!(RECHARGES_OVERDUE).set(overdue as f64);
    metrics::gauge!(RECHARGE_EVENTS_PENDING).set(events as f64);
    metrics::gauge!(WEBHOOK_DEAD, "kind" => "recharge").set(dead as f64);
    metrics::gauge!(RECHARGE_CREDITS_FAILING).set(failing as f64);
}

/// Sets the number of payments that are held for a cause.
pub fn payments_held(cause: &'static str, count: u64) {
    metrics::gauge!(RECHARGE_PAYMENTS_HELD, "cause" => cause).set(count as f64);
}

/// Sets the number of receivables of which a part is owed.
pub fn receivables_open(count: u64) {
    metrics::gauge!(RECEIVABLES_OPEN).set(count as f64);
}

/// Counts credited payments.
pub fn credits(channel: &str, seen_by: &'static str, count: u64) {
    let channel = channel.to_owned();
    metrics::counter!(RECHARGE_CREDITS_TOTAL, "channel" => channel, "seen_by" => seen_by)
        .increment(count);
}

/// Sets the end of a channel's last key, seconds since the Unix epoch.
pub fn channel_key_end(channel: &str, second: i64) {
    metrics::gauge!(CHANNEL_KEY_END, "channel" => channel.to_owned()).set(second as f64);
}

/// Sets the number of open findings of a kind.
pub fn bill_findings(channel: &str, kind: &'static str, count: u64) {
    let channel = channel.to_owned();
    metrics::gauge!(BILL_FINDINGS, "channel" => channel, "kind" => kind).set(count as f64);
}

/// Sets the end of the last day with a good bill, seconds since the Unix epoch.
pub fn last_good_bill(channel: &str, second: i64) {
    metrics::gauge!(BILL_LAST_GOOD, "channel" => channel.to_owned()).set(second as f64);
}

/// Sets the money of a promotion, smallest units.
pub fn promotion_available(promotion: &str, units: u64) {
    metrics::gauge!(PROMOTION_AVAILABLE, "promotion" => promotion.to_owned()).set(units as f64);
}

/// Registers the help and the unit of each metric.
#[rustfmt::skip]
pub(super) fn describe() {
    use metrics::{describe_counter, describe_gauge};

    describe_gauge!(RECHARGES_OVERDUE, Unit::Count, "Orders that are PAYING for more than 30 minutes.");
    describe_gauge!(RECHARGE_PAYMENTS_HELD, Unit::Count, "Payments that are held for an operator.");
    describe_gauge!(RECEIVABLES_OPEN, Unit::Count, "Receivables of which a part is owed.");
    describe_gauge!(RECHARGE_EVENTS_PENDING, Unit::Count, "Events about recharges that are not delivered.");
    describe_gauge!(RECHARGE_CREDITS_FAILING, Unit::Count, "Payments and transfers of recharges that cannot be committed.");
    describe_counter!(RECHARGE_CREDITS_TOTAL, Unit::Count, "Payments that were credited.");
    describe_gauge!(BILL_FINDINGS, Unit::Count, "Open findings of bills.");
    describe_gauge!(BILL_LAST_GOOD, Unit::Seconds, "The end of the last day with a good bill.");
    describe_gauge!(PROMOTION_AVAILABLE, Unit::Count, "Money of a promotion that is neither reserved nor given, smallest units.");
    describe_gauge!(CHANNEL_KEY_END, Unit::Seconds, "When the last key of a channel ends.");
}
