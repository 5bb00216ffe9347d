//! What operators do about transfers: find those that do not end, see where their money is and who has not answered, have
//! one tried at once, and end the wait for a decision.

use futures_util::future::join_all;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use super::{Decree, actor, approvals, check_reason, refuse};
use crate::approval::Action;
use crate::coordinator::Rejection;
use crate::http::api::{away, settle};
use crate::http::auth;
use crate::http::service::{Call, Caller, Outcome, Service, invalid, number, parameters, query};
use crate::http::wire::{
    FundsAt, ListedBody, OperationBody, OperatorBody, PassedBody, Refusal, ShownBody, json,
};
use crate::postgres::reads::lists::{Dossier, Filter, Listed, Stands};
use crate::postgres::store::{Sought, Transfer};
use domain::account::UserId;
use domain::code::Code;
use domain::transfer::{Cid, Op, ReqId, State};

/// The transfers of a page, where nobody says.
const LIMIT_DEFAULT: u32 = 100;
/// The most transfers of a page.
const LIMIT_MAX: u32 = 1_000;

/// A transfer as UBSCore's record has it where UBSCore answers, and otherwise as it is stored: an operator who looks for what is
/// stuck must see it all the more then.
async fn settle_or_leave(service: &Service, transfer: Transfer) -> (Transfer, FundsAt) {
    let stored = transfer.clone();
    let funds_at = FundsAt::of(stored.state, false);
    settle(service, transfer).await.unwrap_or((stored, funds_at))
}

/// `GET /admin/v1/transfers`: what is not terminal, what is in one state, what has a cid, or all that a user has.
pub(super) async fn list(service: &Service, call: Call) -> Outcome {
    service.intake.authenticate_viewer(&call)?;
    let filter =
        parse(call.request.uri().query().unwrap_or(""), service.transfers.limits.stuck_ms)?;
    let under_way = service.transfers.coordinator.under_way().await.map_err(refuse)?;
    let page = service.transfers.reads.list(&filter, &under_way).await.map_err(away)?;
    let catalog = &*service.transfers.reads.catalog();
    let settled = page.transfers.into_iter().map(|listed| async move {
        let (transfer, funds_at) = settle_or_leave(service, listed.transfer).await;
        let last_error = service.transfers.coordinator.last_error(&transfer.intent);
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

/// What a query asks for.
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

/// `GET /admin/v1/transfers/{req_id}`: everything that is known of it, on both sides.
pub(super) async fn show(service: &Service, req_id: &str, call: Call) -> Outcome {
    service.intake.authenticate_viewer(&call)?;
    query(&call, "")?;
    let req_id = ReqId::parse(req_id).ok_or(Code::TransferNotFound)?;
    let dossier = service.transfers.reads.dossier(req_id).await.map_err(away)?;
    let Dossier { listed, history, operations } = dossier.ok_or(Code::TransferNotFound)?;
    let catalog = service.transfers.reads.catalog();
    let intent = listed.transfer.intent.clone();
    let asset = catalog.by_id(intent.asset).expect("read with this catalog or an older one");
    let ops = Op::OF_TRANSFER;
    let recorded = service.spot.recorded(&ops.map(|op| (req_id, op))).await.ok();
    let (transfer, funds_at) = settle_or_leave(service, listed.transfer).await;
    let mut bodies: Vec<(Op, OperationBody)> =
        operations.into_iter().map(|posted| (posted.op, OperationBody::funding(posted))).collect();
    let spot_answered = recorded.is_some();
    let (found, watermark) = recorded.unwrap_or_default();
    let of_spot = ops.into_iter().zip(&found).filter_map(|(op, found)| {
        Some((op, OperationBody::spot(op, found.as_ref()?, asset.precision)))
    });
    bodies.extend(of_spot);
    // As they were decided, whatever the two clocks say: each waits for the one before it.
    bodies.sort_by_key(|(op, _)| *op);
    let last_error = service.transfers.coordinator.last_error(&intent);
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

/// What an operator wants to attend to.
struct Wanted {
    decree: Decree,
    transfer: Transfer,
}

impl Wanted {
    /// Reads the request, and finds the transfer.
    async fn read(
        service: &Service,
        req_id: &str,
        call: Call,
    ) -> Result<(Caller, Wanted), Refusal> {
        let request_id = call.request_id.clone();
        let caller = service.intake.authenticate_admin(&call)?;
        query(&call, "")?;
        ReqId::parse(req_id).ok_or(Code::TransferNotFound)?;
        let AttendDraft { reason } = service.intake.json_body(call).await?;
        check_reason(&reason)?;
        let decree = Decree { actor: actor(caller), reason, request_id };
        Ok((caller, Wanted::find(service, req_id, decree).await?))
    }

    async fn find(service: &Service, req_id: &str, decree: Decree) -> Result<Wanted, Refusal> {
        let req_id = ReqId::parse(req_id).ok_or(Code::TransferNotFound)?;
        if service.transfers.halt.is_halted() {
            return Err(Code::ServiceHalted.into());
        }
        let found = service.transfers.reads.transfer(&Sought::ReqId(req_id)).await.map_err(away)?;
        let transfer = found.ok_or(Code::TransferNotFound)?;
        Ok(Wanted { decree, transfer })
    }

    /// Writes down what will be done, before it is: no action must be without its author.
    async fn audit(&self, service: &Service, action: &str) -> Result<(), Refusal> {
        let (subject, state) = (self.transfer.intent.req_id.to_string(), self.transfer.state);
        let Decree { actor, reason, .. } = &self.decree;
        let audit = service.transfers.reads.audit(actor, action, &subject, state.name(), reason);
        audit.await.map_err(away)
    }

    /// Ends the wait for a decision, and answers what the transfer is then.
    async fn resolve(self, service: &Service) -> Outcome {
        let mut transfer = self.transfer.clone();
        if transfer.state.awaits_decision() {
            self.audit(service, "transfer resolve").await?;
            let (user, req_id) = (transfer.intent.user, transfer.intent.req_id);
            let progress = service.transfers.coordinator.resolve(user, req_id).await;
            let mut progress = progress.map_err(|rejection| attended(&transfer, rejection))?;
            tokio::select! {
                // An error is a worker that has stopped; a start goes on with it.
                _ = progress.wait_for(|transfer| transfer.state.is_terminal()) => {}
                () = service.transfers.clock.sleep(service.transfers.limits.transfer_wait) => {}
            }
            transfer = progress.borrow().clone();
        }
        if transfer.code != Some(Code::ResolvedByOperator) {
            // What was told before must not be taken back, though PostgreSQL may not have it yet.
            let (transfer, _) = settle(service, transfer).await?;
            let state = transfer.state;
            let message = format!("The transfer is {}: there is nothing to resolve.", state.name());
            let transfer = Some((transfer.intent.req_id, Some(state)));
            return Err(Refusal { transfer, ..Refusal::because(Code::NotResolvable, message) });
        }
        self.answer(service, transfer).await
    }

    /// The transfer's body.
    async fn answer(&self, service: &Service, transfer: Transfer) -> Outcome {
        let (transfer, funds_at) = settle_or_leave(service, transfer).await;
        let body = OperatorBody::new(&transfer, funds_at, &service.transfers.reads.catalog());
        Ok(json(StatusCode::OK, &body, &self.decree.request_id))
    }
}

/// `POST …/retry`: it is due now, and as if for the first time.
pub(super) async fn retry(service: &Service, req_id: &str, call: Call) -> Outcome {
    let (_, wanted) = Wanted::read(service, req_id, call).await?;
    let state = wanted.transfer.state;
    if state.is_terminal() {
        let message = format!("The transfer is {}: there is nothing to retry.", state.name());
        let transfer = Some((wanted.transfer.intent.req_id, Some(state)));
        return Err(Refusal { transfer, ..Refusal::because(Code::NotResolvable, message) });
    }
    wanted.audit(service, "transfer retry").await?;
    let intent = &wanted.transfer.intent;
    let progress = service.transfers.coordinator.retry(intent.user, intent.req_id).await;
    let progress = progress.map_err(|rejection| attended(&wanted.transfer, rejection))?;
    let transfer = progress.borrow().clone();
    wanted.answer(service, transfer).await
}

/// `POST …/resolve`: the decision that it waits for is refused, unless it is recorded by now. Answered by what the transfer is
/// then, so that the same again is answered the same.
pub(super) async fn resolve(service: &Service, req_id: &str, call: Call) -> Outcome {
    let (caller, mut wanted) = Wanted::read(service, req_id, call).await?;
    if service.approvals.need(Action::Resolve) {
        // PostgreSQL may not have its end yet: then there is nothing to approve.
        wanted.transfer = settle_or_leave(service, wanted.transfer).await.0;
        if wanted.transfer.state.awaits_decision() {
            let wish = approvals::Wanted {
                action: Action::Resolve,
                subject: &wanted.transfer.intent.req_id.to_string(),
                request: "{}".to_owned(),
                caller,
                reason: &wanted.decree.reason,
                request_id: &wanted.decree.request_id,
            };
            return approvals::ask(service, wish).await;
        }
    }
    wanted.resolve(service).await
}

/// The same, in the name of those who have asked for it and approved it.
pub(super) async fn resolve_now(service: &Service, req_id: &str, decree: Decree) -> Outcome {
    Wanted::find(service, req_id, decree).await?.resolve(service).await
}
/// Why a transfer was not attended to.
fn attended(transfer: &Transfer, rejection: Rejection) -> Refusal {
    Refusal { transfer: Some((transfer.intent.req_id, None)), ..refuse(rejection) }
}
