//! Recharges of users: orders, their reads, and the channels.
//!
//! A wish passes these steps, and each may end it: the form, the halt, the checks of `validation`,
//! the rates, the worker. A refused wish with a known key is answered as a repeat. Then the till
//! asks the channel, and the answer waits for it a while.

mod create;

use std::time::Duration;

use hyper::StatusCode;

use super::get::WAIT_MS_MAX;
use super::list::{LIMIT_DEFAULT, LIMIT_MAX, moment};
use super::routes::Public;
use crate::http::answer::json;
use crate::http::recharge_body::{
    RechargeBody, RechargeChannelBody, RechargeChannelsBody, RechargeHistoryBody, RechargeParts,
    RechargeStepBody, RechargeTotalBody, RechargeTotalsBody, RechargesBody,
};
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, number, parameters, query};
use crate::http::service::{Caller, RechargeDesk, Service, Transfers};
use crate::postgres::reads::Reads;
use crate::postgres::reads::own_recharges::OwnRecharges;
use crate::recharge::RechargeId;
use crate::recharge::order::{ClosingWish, Recharge, RechargeState};
use domain::account::UserId;
use domain::code::Code;

/// Answers one request. `id`: of the path, if it has one.
pub(super) async fn answer(
    service: &Service,
    caller: Caller,
    route: Public,
    id: Option<&str>,
    call: Call,
) -> Outcome {
    // Off: as an unknown route.
    let desk = service.recharges.as_ref().ok_or(Code::NotFound)?;
    let transfers = &service.transfers;
    let id = id.unwrap_or_default();
    match route {
        Public::PostRecharge => create::create(service, desk, caller, call).await,
        Public::GetRecharge => get(desk, transfers, caller, id, &call).await,
        Public::RechargeHistory => history(transfers, caller, id, &call).await,
        Public::CancelRecharge => cancel(desk, transfers, caller, id, &call).await,
        Public::ListRecharges => list(transfers, caller, &call).await,
        Public::RechargeTotals => totals(transfers, caller, &call).await,
        _ => channels(desk, transfers, &call),
    }
}

/// An order that the caller may read. Another user's is answered like a missing one.
async fn look(reads: &Reads, caller: Caller, id: &str) -> Result<Recharge, Refusal> {
    let id = RechargeId::parse(id).ok_or(Code::RechargeNotFound)?;
    let found = reads.recharge(id).await.map_err(postgres_away)?;
    let own = |order: &Recharge| caller.sees_everyone() || order.user == caller.user;
    Ok(found.filter(own).ok_or(Code::RechargeNotFound)?)
}

/// The payments and returns of orders.
async fn parts(reads: &Reads, orders: &[Recharge]) -> Result<RechargeParts, Refusal> {
    let paid = orders.iter().filter(|order| order.payments > 0).map(|order| order.id);
    let paid: Vec<RechargeId> = paid.collect();
    let payments = reads.payments_of(&paid).await.map_err(postgres_away)?;
    let ids: Vec<_> = payments.iter().map(|payment| payment.id).collect();
    let returns = reads.returns_of(&ids).await.map_err(postgres_away)?;
    Ok(RechargeParts { payments, returns })
}

/// The body of one order for a reader.
async fn body(reads: &Reads, reader: UserId, order: Recharge) -> Result<RechargeBody, Refusal> {
    let orders = [order];
    let parts = parts(reads, &orders).await?;
    let owner = orders[0].user == reader;
    Ok(RechargeBody::new(&orders[0], &parts, &reads.catalog(), owner))
}

/// Waits for an order, and no longer than the server runs. Returns the order as it stands then; as
/// it was, if PostgreSQL does not answer.
async fn settled(
    desk: &RechargeDesk,
    transfers: &Transfers,
    order: Recharge,
    until: impl Fn(&Recharge) -> bool,
    at_most: Duration,
) -> Recharge {
    let mut stopping = transfers.stopping.clone();
    let waited = tokio::select! {
        waited = desk.recharges.wait(order.id, until, at_most) => waited,
        // Changed or gone: the server stops.
        _ = stopping.changed() => transfers.reads.recharge(order.id).await,
    };
    waited.ok().flatten().unwrap_or(order)
}

/// `GET /api/v1/recharge/{id}`: one order, at once or when it has moved on.
async fn get(
    desk: &RechargeDesk,
    transfers: &Transfers,
    caller: Caller,
    id: &str,
    call: &Call,
) -> Outcome {
    let wait_ms = query(call, "wait_ms")?;
    let wait_ms = wait_ms.map(|text| number("wait_ms", &text, 0..=WAIT_MS_MAX)).transpose()?;
    let mut order = look(&transfers.reads, caller, id).await?;
    let wait = Duration::from_millis(wait_ms.unwrap_or(0).into());
    if !wait.is_zero() && !order.state.is_terminal() {
        if order.user == caller.user {
            // The owner expects something: the till asks the channel, if it may.
            desk.till.look(order.id);
        }
        let begun = order.state;
        let until = move |order: &Recharge| order.state != begun || order.state.is_terminal();
        let at_most = wait.min(transfers.limits.end_wait_max);
        order = settled(desk, transfers, order, until, at_most).await;
    }
    let body = body(&transfers.reads, caller.user, order).await?;
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// `GET /api/v1/recharge/{id}/history`.
async fn history(transfers: &Transfers, caller: Caller, id: &str, call: &Call) -> Outcome {
    query(call, "")?;
    let order = look(&transfers.reads, caller, id).await?;
    let steps = transfers.reads.recharge_steps(order.id).await.map_err(postgres_away)?;
    let history = RechargeStepBody::all(&steps);
    let body = RechargeHistoryBody { recharge_id: order.id.to_string(), history };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// `POST /api/v1/recharge/{id}/cancel`, by the owner: 200 once it is CLOSED, 202 while a payment
/// may still win.
async fn cancel(
    desk: &RechargeDesk,
    transfers: &Transfers,
    caller: Caller,
    id: &str,
    call: &Call,
) -> Outcome {
    query(call, "")?;
    if caller.is_read_only() {
        return Err(Code::Forbidden.into());
    }
    let order = look(&transfers.reads, caller, id).await?;
    // Operators have a route of their own, with a reason.
    if order.user != caller.user {
        return Err(Code::RechargeNotFound.into());
    }
    let paid = |order: &Recharge| match order.state {
        RechargeState::Paid => Err(Refusal::from(Code::RechargePaid)),
        _ => Ok(()),
    };
    paid(&order)?;
    let mut order = order;
    if !order.state.is_terminal() {
        let actor = format!("user/{}", caller.user);
        order = desk.recharges.wished(&order, ClosingWish::Cancelled, &actor).await?;
    }
    if !order.state.is_terminal() && order.closing.is_some() {
        desk.till.look(order.id);
        let until = |order: &Recharge| order.state.is_terminal() || order.held > 0;
        order = settled(desk, transfers, order, until, desk.create_wait).await;
    }
    paid(&order)?;
    let status = match order.state {
        RechargeState::Closed => StatusCode::OK,
        _ => StatusCode::ACCEPTED,
    };
    let body = body(&transfers.reads, caller.user, order).await?;
    Ok(json(status, &body, &call.request_id))
}

/// `GET /api/v1/recharges`: the caller's own ones, newest first.
async fn list(transfers: &Transfers, caller: Caller, call: &Call) -> Outcome {
    let reads = &transfers.reads;
    let filter = parse(call.request.uri().query().unwrap_or(""), caller.user)?;
    let page = reads.own_recharges(&filter).await.map_err(postgres_away)?;
    let parts = parts(reads, &page.orders).await?;
    let catalog = reads.catalog();
    let row = |order: &Recharge| RechargeBody::new(order, &parts, &catalog, true);
    let body = RechargesBody {
        recharges: page.orders.iter().map(row).collect(),
        next_cursor: page.next.map(|next| next.to_string()),
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// Reads the filter from a query.
fn parse(query: &str, user: UserId) -> Result<OwnRecharges, Refusal> {
    let names = ["state", "channel", "since", "until", "limit", "cursor"];
    let [state, channel, since, until, limit, cursor] = parameters(query, names)?;
    let state = state.map(|name| {
        let known = RechargeState::ALL.into_iter().find(|state| state.name() == name);
        let names = || RechargeState::ALL.map(RechargeState::name).join(", ");
        known.ok_or_else(|| invalid(format!("state must be one of {}.", names())))
    });
    let channel = channel.map(|name| match is_name(&name) {
        true => Ok(name.into_owned()),
        false => Err(invalid("channel must be 1 to 16 of a-z 0-9 -")),
    });
    let since = since.map(|text| moment("since", &text)).transpose()?;
    let until = until.map(|text| moment("until", &text)).transpose()?;
    let limit = limit.map(|text| number("limit", &text, 1..=LIMIT_MAX)).transpose()?;
    let before = cursor.map(|text| {
        let known = RechargeId::parse(&text);
        known.ok_or_else(|| invalid("cursor must be the next_cursor of an earlier answer."))
    });
    Ok(OwnRecharges {
        user,
        state: state.transpose()?,
        channel: channel.transpose()?,
        since,
        until,
        before: before.transpose()?,
        limit: limit.unwrap_or(LIMIT_DEFAULT),
    })
}

/// Whether a text can be the name of a channel.
fn is_name(text: &str) -> bool {
    let sane = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=16).contains(&text.len()) && text.bytes().all(sane)
}

/// `GET /api/v1/recharges/totals`: the caller's own sums.
async fn totals(transfers: &Transfers, caller: Caller, call: &Call) -> Outcome {
    query(call, "")?;
    let rows = transfers.reads.recharge_totals(caller.user).await.map_err(postgres_away)?;
    let catalog = transfers.reads.catalog();
    let totals = rows.iter().map(|row| RechargeTotalBody::new(row, &catalog)).collect();
    Ok(json(StatusCode::OK, &RechargeTotalsBody { totals }, &call.request_id))
}

/// `GET /api/v1/channels`.
fn channels(desk: &RechargeDesk, transfers: &Transfers, call: &Call) -> Outcome {
    query(call, "")?;
    let catalog = transfers.reads.catalog();
    let channels = desk.channels.all().map(|channel| RechargeChannelBody::new(channel, &catalog));
    let body = RechargeChannelsBody { channels: channels.collect() };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}
