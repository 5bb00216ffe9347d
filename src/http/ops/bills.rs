//! Bills of channels, for operators: the days and their sums, the findings and their ends, and the
//! reconciliation of one day.

use std::sync::Arc;

use hyper::StatusCode;
use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::audit_note::{actor, check_reason};
use super::detached::detached;
use super::recharges::{desk, is_name, now, open};
use super::settlements;
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, parameters, query};
use crate::http::service::{RechargeDesk, Service};
use crate::postgres::bills::FindingSearch;
use crate::recharge::bill::{BillDays, BillDifference, BillFinding, ChannelBill, FindingState};
use domain::code::Code;

/// The routes of bills.
#[derive(Clone, Copy)]
pub(super) enum BillsRoute {
    Bills,
    Findings,
    Dismiss,
    Reconcile,
    Settle,
}

/// Answers one of these routes.
pub(super) async fn answer(
    service: Arc<Service>,
    what: BillsRoute,
    parameters: Vec<String>,
    call: Call,
) -> Outcome {
    match what {
        BillsRoute::Bills => list(&service, &call).await,
        BillsRoute::Findings => findings(&service, &call).await,
        BillsRoute::Dismiss => detached(dismiss(service, parameters, call)).await,
        BillsRoute::Reconcile => detached(reconcile(service, parameters, call)).await,
        BillsRoute::Settle => detached(settlements::settle(service, parameters, call)).await,
    }
}

/// The bill of one day. Sums are in the channel's minor units.
#[derive(Serialize)]
struct BillBody {
    channel: String,
    day: Date,
    state: &'static str,
    /// Whether its lines count: a bill that is wanted again still does.
    good: bool,
    tries: i64,
    lines: u64,
    foreign_lines: i64,
    paid: i64,
    returned: i64,
    /// Of our lines; below 0: given back.
    fees: i64,
    /// Of the other lines: they are not booked.
    foreign_fees: i64,
    fetched_at: Option<Timestamp>,
    next_at: Option<Timestamp>,
    /// It is to be fetched anew: its state and sums stand until then.
    again: bool,
    /// Why the last try brought no bill.
    what: Option<String>,
}

impl From<&ChannelBill> for BillBody {
    fn from(bill: &ChannelBill) -> BillBody {
        BillBody {
            channel: bill.channel.clone(),
            day: bill.day,
            state: bill.state.name(),
            good: bill.run.is_some(),
            tries: bill.tries,
            lines: bill.sums.lines,
            foreign_lines: bill.foreign,
            paid: bill.sums.paid,
            returned: bill.sums.returned,
            fees: bill.sums.fees,
            foreign_fees: bill.foreign_fees,
            fetched_at: bill.fetched_at,
            next_at: bill.next_at,
            again: bill.again,
            what: bill.what.clone(),
        }
    }
}

/// A difference, with the next step. Amounts are in the channel's minor units.
#[derive(Serialize)]
struct DifferenceBody {
    kind: &'static str,
    reference: String,
    trade_no: String,
    merchant_no: String,
    there: Option<i64>,
    here: Option<i64>,
    currency: String,
    plan: &'static str,
}

impl From<&BillDifference> for DifferenceBody {
    fn from(one: &BillDifference) -> DifferenceBody {
        DifferenceBody {
            kind: one.kind.name(),
            reference: one.reference.clone(),
            trade_no: one.trade_no.clone(),
            merchant_no: one.merchant_no.clone(),
            there: one.there,
            here: one.here,
            currency: one.currency.clone(),
            plan: one.kind.plan(),
        }
    }
}

/// A finding, with its difference.
#[derive(Serialize)]
struct FindingBody {
    finding_id: i64,
    channel: String,
    day: Date,
    state: &'static str,
    #[serde(flatten)]
    difference: DifferenceBody,
    found_at: Timestamp,
    updated_at: Timestamp,
    /// Of a dismissal.
    by: Option<String>,
    reason: Option<String>,
    /// The word of the channel.
    what: Option<String>,
}

impl From<&BillFinding> for FindingBody {
    fn from(finding: &BillFinding) -> FindingBody {
        FindingBody {
            finding_id: finding.id,
            channel: finding.channel.clone(),
            day: finding.day,
            state: finding.state.name(),
            difference: DifferenceBody::from(&finding.difference),
            found_at: finding.found_at,
            updated_at: finding.updated_at,
            by: finding.actor.clone(),
            reason: finding.reason.clone(),
            what: finding.what.clone(),
        }
    }
}

/// The name of a channel in a query. One that was taken out of the configuration has its bills.
fn channel_name(name: Option<String>) -> Result<Option<String>, Refusal> {
    match name {
        Some(name) if !is_name(&name) => Err(invalid("channel must be 1 to 16 of a-z 0-9 -")),
        name => Ok(name),
    }
}

fn day_of(text: &str) -> Result<Date, Refusal> {
    let day = text.parse::<Date>().ok().filter(|day| day.to_string() == text);
    day.ok_or_else(|| invalid("day must be a day such as 2026-11-26."))
}

/// `GET /admin/v1/bills?channel=&day=`: the newest bills.
async fn list(service: &Service, call: &Call) -> Outcome {
    service.intake.authenticate_viewer(call)?;
    let text = call.request.uri().query().unwrap_or("");
    let [channel, day] = parameters(text, ["channel", "day"])?;
    let channel = channel_name(channel.map(|name| name.into_owned()))?;
    let day = day.map(|text| day_of(&text)).transpose()?;
    let store = &desk(service)?.bills.store;
    let bills = store.channel_bills(channel.as_deref(), day).await.map_err(postgres_away)?;
    #[derive(Serialize)]
    struct Body {
        bills: Vec<BillBody>,
    }
    let body = Body { bills: bills.iter().map(BillBody::from).collect() };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// `GET /admin/v1/findings?channel=&state=`: the newest findings.
async fn findings(service: &Service, call: &Call) -> Outcome {
    service.intake.authenticate_viewer(call)?;
    let text = call.request.uri().query().unwrap_or("");
    let [channel, state] = parameters(text, ["channel", "state"])?;
    let channel = channel_name(channel.map(|name| name.into_owned()))?;
    let state = state.map(|name| {
        let known = FindingState::ALL.into_iter().find(|state| state.name() == name);
        let names = FindingState::ALL.map(FindingState::name).join(", ");
        known.ok_or_else(|| invalid(format!("state must be one of {names}.")))
    });
    let search = FindingSearch { channel, state: state.transpose()? };
    let store = &desk(service)?.bills.store;
    let found = store.bill_findings(&search).await.map_err(postgres_away)?;
    #[derive(Serialize)]
    struct Body {
        findings: Vec<FindingBody>,
    }
    let body = Body { findings: found.iter().map(FindingBody::from).collect() };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DismissDraft {
    reason: String,
}

/// `POST /admin/v1/findings/{finding_id}/dismiss`: an operator explains a finding. It moves no
/// money, and the day goes on without it.
async fn dismiss(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let DismissDraft { reason } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    let none = || Refusal::because(Code::NotFound, "There is no such finding.");
    let (bills, actor) = (&desk(&service)?.bills, actor(caller));
    let id = parameters[0].parse::<i64>().map_err(|_| none())?;
    let at = now(&service.transfers);
    let finding = bills.store.dismiss_finding(id, (&actor, &reason), at).await;
    let finding = finding.map_err(postgres_away)?.ok_or_else(none)?;
    if finding.state == FindingState::Done {
        let message = "The data do not show the finding any more: it is DONE.";
        return Err(
            Refusal::because(Code::InvalidRequest, message).with_status(StatusCode::CONFLICT)
        );
    }
    warn!(actor, reason, finding_id = id, "an operator dismisses a finding of a bill");
    bills.look();
    Ok(json(StatusCode::OK, &FindingBody::from(&finding), &request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReconcileDraft {
    day: String,
    apply: bool,
    reason: String,
}

#[derive(Serialize)]
struct ReconciledBody {
    bill: BillBody,
    /// With a plan: the result of a comparison now. The bill is the one that is here.
    differences: Vec<DifferenceBody>,
    /// There are more.
    more: bool,
}

/// `POST /admin/v1/channels/{channel}/reconcile`: with `apply` the bill of a day is fetched anew,
/// compared and repaired by the till, as it does by itself. Without, the bill that is here is
/// compared, and nothing is written.
async fn reconcile(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let ReconcileDraft { day, apply, reason } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    let (desk, day) = (desk(&service)?, day_of(&day)?);
    let channel = open(desk, &parameters[0])?;
    let name = &channel.terms.name;
    let at = now(&service.transfers);
    let days = ended(desk, name, day, at)?;
    if !apply {
        let body = planned(desk, name, &days, day).await?;
        return Ok(json(StatusCode::OK, &body, &request_id));
    }
    // Before that time half a bill would count as whole.
    if let Some(due) = days.due(day).filter(|due| *due > at) {
        return Err(invalid(format!("The channel makes the bill of the day at {due}.")));
    }
    if let Some(first) = desk.bills.first_kept(name, at).filter(|first| day < *first) {
        return Err(invalid(format!(
            "Channels keep bills for three months: {first} is the first."
        )));
    }
    let actor = actor(caller);
    let wanted = desk.bills.store.want_again((name, day), at, (&actor, &reason)).await;
    let bill = wanted.map_err(postgres_away)?;
    warn!(actor, reason, channel = name, %day, "an operator has a bill fetched anew");
    desk.bills.look();
    let (bill, differences) = (BillBody::from(&bill), Vec::new());
    let body = ReconciledBody { bill, differences, more: false };
    Ok(json(StatusCode::ACCEPTED, &body, &request_id))
}

/// The days of a channel, if the day has ended.
fn ended(desk: &RechargeDesk, name: &str, day: Date, at: Timestamp) -> Result<BillDays, Refusal> {
    let days = *desk.bills.days(name).ok_or(Code::InvalidChannel)?;
    let is_over = days.span(day).is_some_and(|(_, end)| end <= at);
    match is_over {
        true => Ok(days),
        false => Err(invalid("The day has not ended, as the channel counts days.")),
    }
}

/// Compares the bill that is here.
async fn planned(
    desk: &RechargeDesk,
    name: &str,
    days: &BillDays,
    day: Date,
) -> Result<ReconciledBody, Refusal> {
    let store = &desk.bills.store;
    let bill = store.channel_bill(name, day).await.map_err(postgres_away)?;
    let none = || {
        let message = "The bill of the day is not here yet: reconcile with apply fetches it.";
        Refusal::because(Code::NotFound, message)
    };
    let bill = bill.filter(|bill| bill.run.is_some()).ok_or_else(none)?;
    let span = days.span(day).ok_or_else(none)?;
    let compared = store.try_compare_bill((name, day), span).await.map_err(postgres_away)?;
    let compared = compared.ok_or_else(|| {
        let message = "A comparison of bills is under way: ask for the plan again later.";
        Refusal::because(Code::SystemError, message)
    })?;
    let differences = compared.differences.iter().map(DifferenceBody::from).collect();
    Ok(ReconciledBody { bill: BillBody::from(&bill), differences, more: compared.more })
}
