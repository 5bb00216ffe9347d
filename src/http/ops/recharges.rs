//! Recharges, for operators: find orders and held payments, see one with everything that belongs to
//! it and the word of its channel, have the channel asked, close an order, pause a channel.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::audit_note::{AuditNote, actor, check_reason};
use super::page::{LIMIT_DEFAULT, LIMIT_MAX};
use super::recharge_shown::{ChannelBody, OVERDUE_MS, OrderBody, PaymentBody, WholeBody, before};
use super::rejected::rejected;
use crate::channels::OrderAsk;
use crate::channels::open::OpenChannel;
use crate::http::answer::json;
use crate::http::auth;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, number, parameters, query};
use crate::http::service::{RechargeDesk, Service, Transfers};
use crate::postgres::reads::recharge_search::{PaymentSearch, RechargeSearch, WholeRecharge};
use crate::recharge::answers::{ChannelDoubt, Queried};
use crate::recharge::order::{ClosingWish, Recharge, RechargeState};
use crate::recharge::payment::HeldCause;
use crate::recharge::{PaymentId, RechargeId};
use crate::telemetry;
use domain::account::UserId;
use domain::code::Code;

/// The longest number of a channel.
const TRADE_NO_BYTES_MAX: usize = 128;

/// The desk of recharges.
///
/// # Errors
/// NOT_FOUND: recharges are off.
pub(super) fn desk(service: &Service) -> Result<&RechargeDesk, Refusal> {
    service.recharges.as_ref().ok_or_else(|| {
        let message = "Recharges are off: recharge.enabled is false in the configuration.";
        Refusal::because(Code::NotFound, message)
    })
}

/// The service's clock.
pub(super) fn now(transfers: &Transfers) -> Timestamp {
    Timestamp::from_nanosecond(transfers.clock.now_ns().into()).expect("any u64 of ns is in range")
}

/// A list as an operator asks for it.
enum Search {
    Orders(RechargeSearch),
    Payments(PaymentSearch),
}

/// `GET /admin/v1/recharges`: orders, newest first; or, with `held` or `trade_no`, payments, oldest
/// first.
pub(super) async fn list(service: &Service, call: &Call) -> Outcome {
    service.intake.authenticate_viewer(call)?;
    let desk = desk(service)?;
    let (transfers, now) = (&service.transfers, now(&service.transfers));
    let search = parse(call.request.uri().query().unwrap_or(""), desk, now)?;
    let catalog = transfers.reads.catalog();
    #[derive(Default, Serialize)]
    struct Body {
        recharges: Vec<OrderBody>,
        payments: Vec<PaymentBody>,
        next_cursor: Option<String>,
    }
    let body = match search {
        Search::Orders(search) => {
            let found = transfers.reads.search_recharges(&search).await.map_err(postgres_away)?;
            let orders = found.orders.iter().map(|order| OrderBody::new(order, &catalog, now));
            let next_cursor = found.next.map(|id| id.to_string());
            Body { recharges: orders.collect(), next_cursor, ..Body::default() }
        }
        Search::Payments(search) => {
            let found = transfers.reads.search_payments(&search).await.map_err(postgres_away)?;
            let rows = found.payments.iter();
            let payments =
                rows.map(|one| PaymentBody::new(&one.payment, one.owner, &catalog, now)).collect();
            let next = found.next;
            let next_cursor = next.map(|(at, id)| format!("{}.{id}", at.as_microsecond()));
            Body { payments, next_cursor, ..Body::default() }
        }
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// Reads the search from a query.
fn parse(query: &str, desk: &RechargeDesk, now: Timestamp) -> Result<Search, Refusal> {
    let names = ["held", "overdue", "user", "trade_no", "channel", "limit", "cursor"];
    let [held, overdue, user, trade_no, channel, limit, cursor] = parameters(query, names)?;
    let (held, cause) = match held.as_deref() {
        None | Some("false") => (false, None),
        Some("true") => (true, None),
        Some(name) => {
            let cause = HeldCause::ALL.into_iter().find(|cause| cause.name() == name);
            let names = HeldCause::ALL.map(HeldCause::name).join(", ");
            let wrong = || invalid(format!("held must be true, false or one of {names}."));
            (true, Some(cause.ok_or_else(wrong)?))
        }
    };
    let overdue = match overdue.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(invalid("overdue must be true or false.")),
    };
    let user = user.map(|text| {
        let user = auth::user_id(&text).and_then(UserId::new);
        user.ok_or_else(|| invalid("There is no such user."))
    });
    let user = user.transpose()?;
    let limit = limit.map(|text| number("limit", &text, 1..=LIMIT_MAX)).transpose()?;
    let limit = limit.unwrap_or(LIMIT_DEFAULT);
    // A channel that was taken out of the configuration still has its orders.
    let channel = channel.map(|name| match is_name(&name) {
        true => Ok(name.into_owned()),
        false => Err(invalid("channel must be 1 to 16 of a-z 0-9 -")),
    });
    let channel = channel.transpose()?;
    let wrong_cursor = || invalid("cursor must be the next_cursor of an earlier answer.");
    let Some(trade_no) = trade_no.map(|text| text.into_owned()).or(held.then(String::new)) else {
        let before = cursor.map(|text| RechargeId::parse(&text).ok_or_else(wrong_cursor));
        return Ok(Search::Orders(RechargeSearch {
            user,
            channel,
            overdue: overdue.then(|| before_overdue(now)),
            before: before.transpose()?,
            limit,
        }));
    };
    if overdue {
        return Err(invalid("overdue is about orders, and held and trade_no are about payments."));
    }
    if trade_no.len() > TRADE_NO_BYTES_MAX || trade_no.contains('\0') {
        return Err(invalid("trade_no must be 1 to 128 bytes."));
    }
    let after = cursor.map(|text| {
        let (at, id) = text.split_once('.')?;
        Some((Timestamp::from_microsecond(at.parse().ok()?).ok()?, PaymentId::parse(id)?))
    });
    let after = after.map(|after| after.ok_or_else(wrong_cursor)).transpose()?;
    let trade_no = Some(trade_no).filter(|text| !text.is_empty());
    let channels = match channel {
        Some(name) => vec![name],
        // The key of a payment begins with its channel.
        None if trade_no.is_some() => {
            desk.channels.all().map(|open| open.terms.name.clone()).collect()
        }
        None => Vec::new(),
    };
    Ok(Search::Payments(PaymentSearch { held, cause, user, channels, trade_no, after, limit }))
}

fn before_overdue(now: Timestamp) -> Timestamp {
    before(now, OVERDUE_MS)
}

/// Whether a text can be the name of a channel.
pub(super) fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=16).contains(&text.len()) && text.bytes().all(plain)
}

/// Everything about the order, or the payment, that a path names.
async fn whole(transfers: &Transfers, id: &str) -> Result<WholeRecharge, Refusal> {
    let found = match (RechargeId::parse(id), PaymentId::parse(id)) {
        (Some(id), _) => transfers.reads.whole_recharge(id).await,
        (_, Some(id)) => transfers.reads.whole_payment(id).await,
        _ => return Err(Code::RechargeNotFound.into()),
    };
    found.map_err(postgres_away)?.ok_or_else(|| Code::RechargeNotFound.into())
}

/// `GET /admin/v1/recharges/{recharge_id}`: all that PostgreSQL has of an order; with `ask=true`
/// also the word of its channel. The id of a payment finds its order.
pub(super) async fn show(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    service.intake.authenticate_viewer(&call)?;
    let asks = match query(&call, "ask")?.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(invalid("ask must be true or false.")),
    };
    let desk = desk(&service)?;
    let transfers = &service.transfers;
    let whole = whole(transfers, &parameters[0]).await?;
    let asked = if asks { Some(ask(desk, transfers, &whole).await?) } else { None };
    let catalog = transfers.reads.catalog();
    let body = WholeBody::new(&whole, asked.as_ref(), &catalog, now(transfers));
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// Asks the channel of an order, or of a payment without one. It changes nothing.
async fn ask(
    desk: &RechargeDesk,
    transfers: &Transfers,
    whole: &WholeRecharge,
) -> Result<Queried, Refusal> {
    let payment = whole.payments.first();
    let (channel, merchant_no) = match (&whole.order, payment) {
        (Some(order), _) => (&order.channel, order.id.to_string()),
        (None, Some(payment)) => (&payment.channel, payment.merchant_no.clone()),
        (None, None) => return Err(Code::RechargeNotFound.into()),
    };
    let open = open(desk, channel)?;
    let mut references: Vec<String> = Vec::new();
    if let Some(order) = &whole.order {
        references.extend(order.reference.clone());
        // Further numbers of the channel stand in the history.
        let noted = whole.history.iter().filter_map(|passage| passage.step.reason.as_deref());
        let noted = noted.filter_map(|reason| reason.strip_prefix("reference "));
        references.extend(noted.map(str::to_owned));
        references.sort_unstable();
        references.dedup();
    }
    Ok(query_channel(&open, merchant_no, references, transfers).await)
}

/// The channel with this name.
///
/// # Errors
/// INVALID_CHANNEL: it is not in the configuration any more.
pub(super) fn open(desk: &RechargeDesk, name: &str) -> Result<Arc<OpenChannel>, Refusal> {
    desk.channels.get(name).cloned().ok_or_else(|| {
        let message = format!("The channel {name} is not in the configuration.");
        Refusal::because(Code::InvalidChannel, message)
    })
}

/// Asks a channel about an order, on a thread for calls that block.
pub(super) async fn query_channel(
    open: &Arc<OpenChannel>,
    merchant_no: String,
    references: Vec<String>,
    transfers: &Transfers,
) -> Queried {
    let (asked, began_ns) = (Arc::clone(open), transfers.clock.monotonic_ns());
    let query = tokio::task::spawn_blocking(move || {
        let order = OrderAsk { merchant_no: &merchant_no, references: &references };
        asked.channel.query(&order)
    });
    let queried = query.await.unwrap_or_else(|panicked| {
        let what = format!("the query ended early: {panicked}");
        Queried::Unknown(ChannelDoubt::Unanswered(what))
    });
    let outcome = match &queried {
        Queried::Open => "open",
        Queried::Closed => "closed",
        Queried::Absent => "absent",
        Queried::Paid(_) => "paid",
        Queried::Unknown(_) => "unknown",
    };
    let took = Duration::from_nanos(transfers.clock.monotonic_ns().saturating_sub(began_ns));
    telemetry::channel_call(&open.terms.name, "query", outcome, took);
    queried
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttendDraft {
    reason: String,
    /// Only of a close.
    #[serde(default)]
    force: bool,
}

/// Reads an action about an order, and finds it.
async fn attended(
    service: &Service,
    id: &str,
    call: Call,
) -> Result<(Recharge, bool, AuditNote), Refusal> {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let AttendDraft { reason, force } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    desk(service)?;
    let id = RechargeId::parse(id).ok_or(Code::RechargeNotFound)?;
    let order = service.transfers.reads.recharge(id).await.map_err(postgres_away)?;
    let order = order.ok_or(Code::RechargeNotFound)?;
    Ok((order, force, AuditNote { actor: actor(caller), reason, request_id }))
}

/// Writes the audit row of an action, before it is done.
async fn audit(
    transfers: &Transfers,
    order: &Recharge,
    action: &str,
    note: &AuditNote,
) -> Result<(), Refusal> {
    let AuditNote { actor, reason, .. } = note;
    let (id, state) = (order.id.to_string(), order.state.name());
    let detail = format!("user {}, {}, {state}", order.user, order.channel);
    let audit = transfers.admin.audit(actor, action, &id, &detail, reason);
    audit.await.map_err(postgres_away)?;
    warn!(actor, reason, recharge_id = id, action, "an operator acts on a recharge");
    Ok(())
}

fn told(transfers: &Transfers, order: &Recharge, note: &AuditNote) -> Outcome {
    let body = OrderBody::new(order, &transfers.reads.catalog(), now(transfers));
    Ok(json(StatusCode::OK, &body, &note.request_id))
}

/// `POST …/query`: the till asks the channel now, and has a payment decided as always.
pub(super) async fn query_now(
    service: Arc<Service>,
    parameters: Vec<String>,
    call: Call,
) -> Outcome {
    let (order, force, note) = attended(&service, &parameters[0], call).await?;
    if force {
        return Err(invalid("force is for a close."));
    }
    audit(&service.transfers, &order, "recharge query", &note).await?;
    desk(&service)?.till.look(order.id);
    told(&service.transfers, &order, &note)
}

/// `POST …/close`: the wish to close an order; the till closes it at the channel and then here.
/// With `force` it is closed here alone: a payment that comes later is a late one.
pub(super) async fn close(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    let (order, force, note) = attended(&service, &parameters[0], call).await?;
    let desk = desk(&service)?;
    match order.state {
        RechargeState::Paid => return Err(Code::RechargePaid.into()),
        RechargeState::Closed => return told(&service.transfers, &order, &note),
        RechargeState::Init | RechargeState::Paying => {}
    }
    if order.held > 0 {
        return Err(holds_payment());
    }
    let action = if force { "recharge close, forced" } else { "recharge close" };
    audit(&service.transfers, &order, action, &note).await?;
    let wished = desk.recharges.wished(&order, ClosingWish::Operator, &note.actor);
    let mut order = wished.await.map_err(rejected)?;
    if force && !order.state.is_terminal() {
        order = desk.recharges.forced(&order, &note.actor).await.map_err(rejected)?;
    }
    if order.state == RechargeState::Paid {
        return Err(Code::RechargePaid.into());
    }
    if order.held > 0 {
        return Err(holds_payment());
    }
    desk.till.look(order.id);
    told(&service.transfers, &order, &note)
}

fn holds_payment() -> Refusal {
    let message = "A payment of the order is held: credit, return or dismiss it, which ends the \
                   order.";
    Refusal::because(Code::InvalidRequest, message).with_status(StatusCode::CONFLICT)
}

/// `GET /admin/v1/channels`: the channels of the configuration.
pub(super) fn channels(service: &Service, call: &Call) -> Outcome {
    service.intake.authenticate_viewer(call)?;
    query(call, "")?;
    let catalog = service.transfers.reads.catalog();
    #[derive(Serialize)]
    struct Body {
        channels: Vec<ChannelBody>,
    }
    let channels = desk(service)?.channels.all();
    let body = Body { channels: channels.map(|open| ChannelBody::new(open, &catalog)).collect() };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseChannelDraft {
    reason: String,
}

/// `POST /admin/v1/channels/{name}/pause` and `/unpause`: a paused channel takes no new orders, and
/// all else goes on. It stays so over a restart.
pub(super) async fn pause(
    service: Arc<Service>,
    paused: bool,
    parameters: Vec<String>,
    call: Call,
) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let PauseChannelDraft { reason } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    let open = open(desk(&service)?, &parameters[0])?;
    let (transfers, actor) = (&service.transfers, actor(caller));
    let (name, admin) = (&open.terms.name, &transfers.admin);
    let in_force = || open.paused.store(paused, Ordering::Relaxed);
    let known = admin.pause_channel(name, paused, &actor, &reason, in_force).await;
    if !known.map_err(postgres_away)? {
        let message = "PostgreSQL does not know the channel: nothing was changed.";
        return Err(Refusal::because(Code::SystemError, message));
    }
    warn!(actor, reason, channel = name, paused, "a channel is paused or goes on");
    let body = ChannelBody::new(&open, &transfers.reads.catalog());
    Ok(json(StatusCode::OK, &body, &request_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_channel_is_plain() {
        for name in ["wechat", "card", "c-2", "a234567890123456"] {
            assert!(is_name(name), "{name}");
        }
        for wrong in ["", "Card", "a b", "a/b", "a2345678901234567", "é"] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
