//! Transfers, for operators: find those that do not end, see where their money is and which
//! participant has not answered, retry one at once, and end the wait for a decision.

use std::sync::Arc;

use futures_util::future::join_all;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use super::approvals;
use super::audit_note::{AuditNote, actor, check_reason};
use super::page::{LIMIT_DEFAULT, LIMIT_MAX};
use super::rejected::rejected;
use crate::adapters::spot::Spot;
use crate::approval::Action;
use crate::coordinator::Rejection;
use crate::http::answer::json;
use crate::http::auth;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, number, parameters, query};
use crate::http::service::{Caller, Intake, Service, Transfers};
use crate::http::settle::settle;
use crate::http::wire::{FundsAt, ListedBody, OperationBody, OperatorBody, PassedBody, ShownBody};
use crate::postgres::admin::Admin;
use crate::postgres::reads::lists::{Dossier, Filter, Listed, Posted, Stands};
use crate::postgres::store::{Sought, Transfer};
use domain::account::UserId;
use domain::code::Code;
use domain::transfer::{Cid, Op, ReqId, State};

/// A transfer as UBSCore's record has it. If UBSCore does not answer, the transfer as it is stored:
/// operators need the list most at such a time.
async fn settle_or_leave(transfers: &Transfers, transfer: Transfer) -> (Transfer, FundsAt) {
    let stored = transfer.clone();
    let funds_at = FundsAt::of(stored.state, false);
    settle(&transfers.coordinator, transfer).await.unwrap_or((stored, funds_at))
}

/// `GET /admin/v1/transfers`: transfers that are not final, in one state, with a cid, or of one
/// user.
pub(super) async fn list(intake: &Intake, transfers: &Transfers, call: &Call) -> Outcome {
    intake.authenticate_viewer(call)?;
    let filter = parse(call.request.uri().query().unwrap_or(""), transfers.limits.stuck_ms)?;
    let under_way = transfers.coordinator.under_way().await.map_err(rejected)?;
    let page = transfers.reads.list(&filter, &under_way).await.map_err(postgres_away)?;
    let catalog = &*transfers.reads.catalog();
    let settled = page.transfers.into_iter().map(|listed| async move {
        let (transfer, funds_at) = settle_or_leave(transfers, listed.transfer).await;
        let last_error = transfers.coordinator.last_error(&transfer.intent);
        ListedBody::new(&Listed { transfer, ..listed }, funds_at, catalog, last_error)
    });
    #[derive(Serialize)]
    struct Body {
        transfers: Vec<ListedBody>,
        next_cursor: Option<String>,
    }
    let next_cursor = page.next.map(|next| next.to_string());
    let body = Body { transfers: join_all(settled).await, next_cursor };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// Reads the filter from a query.
fn parse(query: &str, stuck_ms: u64) -> Result<Filter, Refusal> {
    let names = ["stuck", "state", "user", "cid", "ended", "order", "limit", "cursor"];
    let [stuck, state, user, cid, ended, order, limit, cursor] = parameters(query, names)?;
    let flag = |name: &str, value: Option<&str>| match value {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(invalid(format!("{name} must be true or false."))),
    };
    let stuck = flag("stuck", stuck.as_deref())?;
    let ended = flag("ended", ended.as_deref())?;
    let oldest_first = match order.as_deref() {
        None | Some("newest") => false,
        Some("oldest") => true,
        Some(_) => return Err(invalid("order must be newest or oldest.")),
    };
    let state = state.map(|name| {
        let unknown = || invalid(format!("state must be one of {}.", State::names()));
        State::from_name(&name).ok_or_else(unknown)
    });
    let user = user.map(|text| {
        let user = auth::user_id(&text).and_then(UserId::new);
        user.ok_or_else(|| invalid("There is no such user."))
    });
    let cid = cid.map(|text| {
        Cid::new(&text).ok_or_else(|| invalid("cid must be 1 to 64 of A-Z a-z 0-9 _ . : -"))
    });
    let limit = limit.map(|text| number("limit", &text, 1..=LIMIT_MAX)).transpose()?;
    let limit = limit.unwrap_or(LIMIT_DEFAULT);
    let behind = cursor.map(|text| {
        text.parse().map_err(|_| invalid("cursor must be the next_cursor of an earlier answer."))
    });
    let (state, user, cid) = (state.transpose()?, user.transpose()?, cid.transpose()?);
    if ended && user.is_none() {
        return Err(invalid("ended=true needs a user."));
    }
    let stands = match state {
        Some(state) => Stands::In(state),
        None if (cid.is_some() && !stuck) || ended => Stands::Anywhere,
        None => Stands::UnderWay,
    };
    if stuck && stands.may_have_ended() {
        return Err(invalid("A transfer that has ended is never stuck."));
    }
    if oldest_first && stands.may_have_ended() {
        return Err(invalid("Only transfers that have not ended are listed oldest first."));
    }
    let older_ms = stuck.then_some(stuck_ms);
    Ok(Filter { stands, user, cid, older_ms, oldest_first, behind: behind.transpose()?, limit })
}

/// `GET /admin/v1/transfers/{req_id}`: all that both participants know of a transfer.
pub(super) async fn show(
    intake: &Intake,
    transfers: &Transfers,
    spot: &Spot,
    req_id: &str,
    call: &Call,
) -> Outcome {
    intake.authenticate_viewer(call)?;
    query(call, "")?;
    let req_id = ReqId::parse(req_id).ok_or(Code::TransferNotFound)?;
    let dossier = transfers.reads.dossier(req_id).await.map_err(postgres_away)?;
    let Dossier { listed, history, operations } = dossier.ok_or(Code::TransferNotFound)?;
    let catalog = transfers.reads.catalog();
    let intent = listed.transfer.intent.clone();
    let asset = catalog.by_id(intent.asset).expect("read with this catalog or an older one");
    let ops = Op::OF_TRANSFER;
    let recorded = spot.recorded(&ops.map(|op| (req_id, op))).await.ok();
    let (transfer, funds_at) = settle_or_leave(transfers, listed.transfer).await;
    let of_funding = |posted: Posted| (posted.op, OperationBody::funding(posted, asset.precision));
    let mut bodies: Vec<(Op, OperationBody)> = operations.into_iter().map(of_funding).collect();
    let spot_answered = recorded.is_some();
    let (found, watermark) = recorded.unwrap_or_default();
    let of_spot = ops.into_iter().zip(&found).filter_map(|(op, found)| {
        Some((op, OperationBody::spot(op, found.as_ref()?, asset.precision)))
    });
    bodies.extend(of_spot);
    // In the order of the decisions: each operation waits for the one before it. Two clocks could
    // give another order.
    bodies.sort_by_key(|(op, _)| *op);
    let last_error = transfers.coordinator.last_error(&intent);
    let listed = Listed { transfer, ..listed };
    let body = ShownBody {
        transfer: ListedBody::new(&listed, funds_at, &catalog, last_error),
        history: history.into_iter().map(PassedBody::from).collect(),
        operations: bodies.into_iter().map(|(_, body)| body).collect(),
        spot_answered,
        spot_forgotten: intent.order_number < watermark,
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttendDraft {
    reason: String,
}

/// A transfer that an operator acts on.
struct Wanted {
    note: AuditNote,
    transfer: Transfer,
}

impl Wanted {
    /// Reads the request, and finds the transfer.
    async fn read(
        intake: &Intake,
        transfers: &Transfers,
        req_id: &str,
        call: Call,
    ) -> Result<(Caller, Wanted), Refusal> {
        let request_id = call.request_id.clone();
        let caller = intake.authenticate_admin(&call)?;
        query(&call, "")?;
        ReqId::parse(req_id).ok_or(Code::TransferNotFound)?;
        let AttendDraft { reason } = intake.json_body(call).await?;
        check_reason(&reason)?;
        let note = AuditNote { actor: actor(caller), reason, request_id };
        Ok((caller, Wanted::find(transfers, req_id, note).await?))
    }

    async fn find(transfers: &Transfers, req_id: &str, note: AuditNote) -> Result<Wanted, Refusal> {
        let req_id = ReqId::parse(req_id).ok_or(Code::TransferNotFound)?;
        if transfers.halt.is_halted() {
            return Err(Code::ServiceHalted.into());
        }
        let found =
            transfers.reads.transfer(&Sought::ReqId(req_id)).await.map_err(postgres_away)?;
        let transfer = found.ok_or(Code::TransferNotFound)?;
        debug_assert_eq!(transfer.intent.req_id, req_id, "the transfer that was asked for");
        Ok(Wanted { note, transfer })
    }

    /// Writes the audit row of an action before the action: none may be without its author.
    async fn audit(&self, admin: &Admin, action: &str) -> Result<(), Refusal> {
        let (subject, state) = (self.transfer.intent.req_id.to_string(), self.transfer.state);
        let AuditNote { actor, reason, .. } = &self.note;
        let audit = admin.audit(actor, action, &subject, state.name(), reason);
        audit.await.map_err(postgres_away)
    }

    /// Ends the wait for a decision, and answers the transfer.
    async fn resolve(self, transfers: &Transfers) -> Outcome {
        let mut transfer = self.transfer.clone();
        if transfer.state.awaits_decision() {
            self.audit(&transfers.admin, "transfer resolve").await?;
            let (user, req_id) = (transfer.intent.user, transfer.intent.req_id);
            let progress = transfers.coordinator.resolve(user, req_id).await;
            let mut progress = progress.map_err(|rejection| attended(&transfer, rejection))?;
            tokio::select! {
                // An error: the worker has stopped. The next start continues the transfer.
                _ = progress.wait_for(|transfer| transfer.state.is_terminal()) => {}
                () = transfers.clock.sleep(transfers.limits.transfer_wait) => {}
            }
            transfer = progress.borrow().clone();
        }
        if transfer.code != Some(Code::ResolvedByOperator) {
            // No step back behind an earlier answer: PostgreSQL may not have the end yet.
            let (transfer, _) = settle(&transfers.coordinator, transfer).await?;
            let state = transfer.state;
            let message = format!("The transfer is {}: there is nothing to resolve.", state.name());
            let transfer = Some((transfer.intent.req_id, Some(state)));
            return Err(Refusal { transfer, ..Refusal::because(Code::NotResolvable, message) });
        }
        self.answer(transfers, transfer).await
    }

    /// The transfer's body.
    async fn answer(&self, transfers: &Transfers, transfer: Transfer) -> Outcome {
        let (transfer, funds_at) = settle_or_leave(transfers, transfer).await;
        let body = OperatorBody::new(&transfer, funds_at, &transfers.reads.catalog());
        Ok(json(StatusCode::OK, &body, &self.note.request_id))
    }
}

/// `POST …/retry`: the transfer is due now, with the first back-off.
pub(super) async fn retry(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    let Service { intake, transfers, .. } = &*service;
    let (_, wanted) = Wanted::read(intake, transfers, &parameters[0], call).await?;
    let state = wanted.transfer.state;
    if state.is_terminal() {
        let message = format!("The transfer is {}: there is nothing to retry.", state.name());
        let transfer = Some((wanted.transfer.intent.req_id, Some(state)));
        return Err(Refusal { transfer, ..Refusal::because(Code::NotResolvable, message) });
    }
    wanted.audit(&transfers.admin, "transfer retry").await?;
    let intent = &wanted.transfer.intent;
    let progress = transfers.coordinator.retry(intent.user, intent.req_id).await;
    let progress = progress.map_err(|rejection| attended(&wanted.transfer, rejection))?;
    let transfer = progress.borrow().clone();
    wanted.answer(transfers, transfer).await
}

/// `POST …/resolve`: the awaited decision becomes a refusal, unless one is recorded by now. The
/// answer is the transfer, so a repeat has the same answer.
pub(super) async fn resolve(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    let Service { intake, transfers, .. } = &*service;
    let (caller, mut wanted) = Wanted::read(intake, transfers, &parameters[0], call).await?;
    if service.approvals.need(Action::Resolve) {
        // If it has ended, and PostgreSQL does not have that yet, there is nothing to approve.
        wanted.transfer = settle_or_leave(transfers, wanted.transfer).await.0;
        if wanted.transfer.state.awaits_decision() {
            let wish = approvals::Wanted {
                action: Action::Resolve,
                subject: &wanted.transfer.intent.req_id.to_string(),
                request: "{}".to_owned(),
                caller,
                reason: &wanted.note.reason,
                request_id: &wanted.note.request_id,
            };
            return approvals::ask(&service, wish).await;
        }
    }
    wanted.resolve(transfers).await
}

/// Resolves a transfer in the name of both operators.
pub(super) async fn resolve_now(transfers: &Transfers, req_id: &str, note: AuditNote) -> Outcome {
    Wanted::find(transfers, req_id, note).await?.resolve(transfers).await
}

/// The refusal if a worker rejected an operator's action.
fn attended(transfer: &Transfer, rejection: Rejection) -> Refusal {
    Refusal { transfer: Some((transfer.intent.req_id, None)), ..rejected(rejection) }
}
