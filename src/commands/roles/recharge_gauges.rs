//! The gauges of recharges, and the alerts about those that do not end. It does nothing while
//! recharges are off.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tracing::debug;

use crate::alert::{Alert, alert_about};
use crate::http::service::{RechargeDesk, Service};
use crate::postgres::reads::recharge_gauges::{BacklogSince, RechargeBacklog};
use crate::recharge::payment::HeldCause;
use crate::recharge::promotion::Promotion;
use crate::telemetry;

/// An order that is PAYING for longer is overdue.
const OVERDUE: Duration = Duration::from_secs(30 * 60);
/// A return, or a close behind the end of payment, that takes longer is stuck.
const STUCK: Duration = Duration::from_secs(60 * 60);
/// A transfer to Spot that takes longer is failing.
const FOLLOW: Duration = Duration::from_secs(60);
/// The last key of a channel ends soon.
const KEYS_END_SOON: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Starts the series of each channel.
pub(super) fn begin(service: &Service) {
    if let Some(desk) = &service.recharges {
        for open in desk.channels.all() {
            telemetry::recharges::expect_channel(&open.terms.name);
        }
    }
}

/// Sets the gauges, and raises the alerts.
pub(super) async fn watch(service: &Service) {
    let Some(desk) = &service.recharges else { return };
    let now = Timestamp::from_nanosecond(service.intake.clock.now_ns().into());
    let now = now.expect("any u64 of ns is in range");
    watch_keys(desk, now);
    let since = BacklogSince {
        overdue: before(now, OVERDUE),
        stuck: before(now, STUCK),
        follow: before(now, FOLLOW),
    };
    match service.transfers.reads.recharge_backlog(since).await {
        Ok(backlog) => set(&backlog, desk.recharges.failing()),
        Err(error) => debug!(%error, "the backlog of recharges is not known"),
    }
    match service.transfers.reads.promotion_rows().await {
        Ok(promotions) => promotions.iter().for_each(|promotion| watch_promotion(promotion, now)),
        Err(error) => debug!(%error, "the promotions are not known"),
    }
}

fn watch_promotion(promotion: &Promotion, now: Timestamp) {
    let Promotion { name, available, starts_at, ends_at, .. } = promotion;
    telemetry::recharges::promotion_available(name, *available);
    if promotion.is_low() && (*starts_at..*ends_at).contains(&now) {
        let what = format_args!("promotion {name} has {available} smallest units left");
        alert_about(Alert::PromotionLow, name, what);
    }
}

fn before(now: Timestamp, age: Duration) -> Timestamp {
    let past = SignedDuration::try_from(age).ok().and_then(|age| now.checked_sub(age).ok());
    past.unwrap_or(Timestamp::UNIX_EPOCH)
}

/// `failing`: verified payments that are not committed.
fn set(backlog: &RechargeBacklog, failing: u64) {
    let RechargeBacklog { overdue, held, following, events_pending, dead_letters, .. } = backlog;
    telemetry::recharges::receivables_open(backlog.receivables);
    let failing = following + failing;
    telemetry::recharges::recharge_backlog(*overdue, *events_pending, *dead_letters, failing);
    for cause in HeldCause::ALL {
        let count = held.iter().find(|(held, _)| *held == cause).map_or(0, |(_, count)| *count);
        telemetry::recharges::payments_held(cause.name(), count);
    }
    if let Some(id) = backlog.stuck_order {
        let what = format_args!("order {id} is not closed an hour behind its end of payment");
        alert_about(Alert::RechargeStuck, &id, what);
    }
    if let Some(id) = backlog.stuck_return {
        let what = format_args!("return {id} has not ended for an hour");
        alert_about(Alert::RechargeStuck, &id, what);
    }
}

fn watch_keys(desk: &RechargeDesk, now: Timestamp) {
    for open in desk.channels.all() {
        let Some(end) = open.channel.keys_end() else { continue };
        let name = &open.terms.name;
        telemetry::recharges::channel_key_end(name, end.as_second());
        if end.duration_since(now) < KEYS_END_SOON {
            let what = format_args!("the last key of channel {name} ends at {end}");
            alert_about(Alert::ChannelKeyExpiring, name, what);
        }
    }
}
