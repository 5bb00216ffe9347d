//! Chain transactions of clients: made, read, cancelled.

use std::time::Duration;

use alloy_primitives::Address;
use chain::state::TxState;
use chain::tx::TxId;
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};
use serde_json::json;
use txm::refusal::TxRefusal;
use txm::store::{CommandWish, Created, OtherOwner, Suspension};
use uuid::Uuid;

use super::body::{QueryDraft, RequestDraft, TxDraft, address, key};
use super::shown::{TxBody, TxDetailBody, TxListBody, TxQueryBody};
use super::token::TxCaller;
use super::{TxmService, store_away};
use crate::http::answer::{Answer, json, mark_replayed};
use crate::http::public::list::moment;
use crate::http::refusal::{Outcome, Refusal, invalid};
use crate::http::request::{Call, number, parameters, parse, query};
use crate::postgres::txm::details::{CancelByRequest, Deed, NewCommand, TxDetails, TxListFilter};
use domain::code::Code;

/// The header that names the owner's listener.
const X_SIGNER_OWNER: HeaderName = HeaderName::from_static("x-signer-owner");
/// The longest wait that a client can ask for, ms; it is cut to the node's own bound.
pub(super) const WAIT_MS_MAX: u32 = 30_000;
/// The most rows of a page, and the usual number.
pub(super) const LIMIT_MAX: u32 = 1_000;
pub(super) const LIMIT_DEFAULT: u32 = 100;
/// The reason of a cancel by a client.
const BY_CLIENT: &str = "cancelled by its client";

/// `POST /api/v1/tx`.
pub(super) async fn create(service: &TxmService, call: Call) -> Outcome {
    let caller = TxCaller::of(&service.intake, &call)?;
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let draft: TxDraft = parse(&service.intake.body(call).await?)?;
    let (request, later) = draft.read(service.gas_max)?;
    let keys = [Some(request.request_id.as_str()), request.business_key.as_deref()];
    caller.may_use(request.signer, &keys.into_iter().flatten().collect::<Vec<_>>())?;
    match service.desk.create(request, later).await {
        Ok(Created::New(tx)) => Ok(json(StatusCode::ACCEPTED, &TxBody::new(&tx), &request_id)),
        Ok(Created::Known(tx)) => {
            let mut answer = json(StatusCode::OK, &TxBody::new(&tx), &request_id);
            mark_replayed(&mut answer);
            Ok(answer)
        }
        Ok(Created::Conflict(fields)) => Err(duplicate(&fields)),
        Err(TxRefusal::NotLeader(owner)) => Ok(not_leader(&owner, &request_id)),
        Err(refusal) => Err(refused(refusal)),
    }
}

/// The same request was made with other fields.
fn duplicate(fields: &[String]) -> Refusal {
    let fields = fields.join(", ");
    let message = format!("This requestId or businessKey was used with another body: {fields}.");
    Refusal::because(Code::DuplicateRequest, message)
}

/// The answer of a node that does not own the signer.
fn not_leader(owner: &OtherOwner, request_id: &str) -> Answer {
    let body = json!({
        "code": Code::NotLeader.name(),
        "message": Code::NotLeader.message(),
        "retryable": true,
        "request_id": request_id,
        "owner_node": owner.node,
        "owner_url": owner.url,
    });
    let mut answer = json(StatusCode::CONFLICT, &body, request_id);
    let headers = answer.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from(1));
    if let Ok(url) = HeaderValue::from_str(&owner.url) {
        headers.insert(X_SIGNER_OWNER, url);
    }
    answer
}

/// The refusal of a request by the desk.
fn refused(refusal: TxRefusal) -> Refusal {
    let code = match &refusal {
        TxRefusal::NotLeader(_) => Code::NotLeader,
        TxRefusal::Duplicate(fields) => return duplicate(fields),
        TxRefusal::WouldRevert(_) => Code::TxWouldRevert,
        TxRefusal::SignerUnknown => Code::SignerUnknown,
        TxRefusal::SignerSuspended(suspensions) => return suspended(suspensions),
        TxRefusal::SignerPolicy(_) => Code::SignerPolicy,
        TxRefusal::Overloaded => Code::Overloaded,
        TxRefusal::Unfunded => Code::SystemError,
        TxRefusal::Away(_) => {
            let message = "The store or the chain does not answer. Send the same request again.";
            let away = Refusal::because(Code::SystemError, message);
            return Refusal { unknown: true, ..away };
        }
    };
    Refusal::because(code, sentence(&refusal.to_string()))
}

/// The words of an error as a sentence.
fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

/// The refusal of a suspended signer.
fn suspended(suspensions: &[Suspension]) -> Refusal {
    let names: Vec<&str> = suspensions.iter().map(|it| it.reason.as_str()).collect();
    let message = format!("The signer is suspended: {}.", names.join(", "));
    Refusal::because(Code::SignerSuspended, message)
}

/// `GET /api/v1/tx/{tx_id}`. With `waitMs`, waits that long until it is final.
pub(super) async fn get(service: &TxmService, tx_id: &str, call: &Call) -> Outcome {
    let caller = TxCaller::of(&service.intake, call)?;
    let wait = wait(query(call, "waitMs")?.as_deref())?;
    let id = id(tx_id)?;
    let details = until_final(service, wait, &Named::Id(id)).await?;
    let details = details.filter(|it| caller.sees(it.tx.new.signer));
    let details = details.ok_or(Code::TxNotFound)?;
    Ok(json(StatusCode::OK, &TxDetailBody::new(details), &call.request_id))
}

/// `GET /api/v1/tx/by-request`.
pub(super) async fn by_request(service: &TxmService, call: &Call) -> Outcome {
    let caller = TxCaller::of(&service.intake, call)?;
    let text = call.request.uri().query().unwrap_or("");
    let [signer, id, wait_ms] = parameters(text, ["signer", "requestId", "waitMs"])?;
    let wait = wait(wait_ms.as_deref())?;
    let signer = address("signer", &signer.ok_or_else(|| invalid("signer is missing."))?)?;
    let id = id.ok_or_else(|| invalid("requestId is missing."))?.into_owned();
    // The program's own rows may be read.
    let id = key("requestId", id)?;
    caller.may_see(signer)?;
    let named = Named::Request(signer, id);
    let details = until_final(service, wait, &named).await?.ok_or(Code::TxNotFound)?;
    Ok(json(StatusCode::OK, &TxDetailBody::new(details), &call.request_id))
}

/// `POST /api/v1/tx/query`.
pub(super) async fn query_many(service: &TxmService, call: Call) -> Outcome {
    let caller = TxCaller::of(&service.intake, &call)?;
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let draft: QueryDraft = parse(&service.intake.body(call).await?)?;
    let requests = draft.read()?;
    requests.iter().try_for_each(|(signer, _)| caller.may_see(*signer))?;
    let found = service.reads.query(&requests).await.map_err(store_away)?;
    debug_assert_eq!(found.len(), requests.len(), "an answer for each request");
    let transactions = found.into_iter().map(|one| one.map(TxDetailBody::new)).collect();
    Ok(json(StatusCode::OK, &TxQueryBody { transactions }, &request_id))
}

/// `GET /api/v1/tx`.
pub(super) async fn list(service: &TxmService, call: &Call) -> Outcome {
    let caller = TxCaller::of(&service.intake, call)?;
    let names = ["signer", "state", "since", "limit", "cursor"];
    let text = call.request.uri().query().unwrap_or("");
    let [signer, state, since, limit, cursor] = parameters(text, names)?;
    let signer = signer.map(|text| address("signer", &text)).transpose()?;
    match signer {
        Some(signer) => caller.may_see(signer)?,
        None if matches!(caller, TxCaller::Service { .. }) => {
            return Err(invalid("signer is missing."));
        }
        None => {}
    }
    let state = state.map(|name| {
        let state = TxState::ALL.into_iter().find(|state| state.name() == name);
        state.ok_or_else(|| invalid("state must be the name of a state, such as TRACKING."))
    });
    let since = since.map(|text| moment("since", &text)).transpose()?;
    let limit = limit.map_or(Ok(LIMIT_DEFAULT), |text| number("limit", &text, 1..=LIMIT_MAX))?;
    let below = cursor.map(|text| {
        Uuid::try_parse(&text).map(TxId).map_err(|_| invalid("cursor is not one of an answer."))
    });
    let filter = TxListFilter {
        signer,
        state: state.transpose()?,
        since_ms: since.map(jiff::Timestamp::as_millisecond),
        below: below.transpose()?,
        limit,
    };
    let page = service.reads.list(&filter).await.map_err(store_away)?;
    let body = TxListBody {
        transactions: page.txs.into_iter().map(TxDetailBody::new).collect(),
        next_cursor: page.next.map(|id| id.to_string()),
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// `POST /api/v1/tx/{tx_id}/cancel`. The body is not read.
pub(super) async fn cancel(service: &TxmService, tx_id: &str, call: &Call) -> Outcome {
    let caller = TxCaller::of(&service.intake, call)?;
    query(call, "")?;
    let id = id(tx_id)?;
    let details = service.reads.get(id).await.map_err(store_away)?;
    let details = details.filter(|it| caller.sees(it.tx.new.signer)).ok_or(Code::TxNotFound)?;
    let (tx, actor) = (&details.tx, caller.actor());
    caller.may_use(tx.new.signer, &[&tx.new.request_id])?;
    if tx.state.is_terminal() {
        return Err(Code::NotCancellable.into());
    }
    refuse_of_suspended(service, tx.new.signer, tx.nonce).await?;
    let command = NewCommand {
        signer: tx.new.signer,
        tx: Some(id),
        wish: CommandWish::Cancel,
        deed: Deed { actor: &actor, reason: BY_CLIENT },
    };
    service.reads.command(&command).await.map_err(store_away)?;
    service.desk.wake(tx.new.signer);
    Ok(json(StatusCode::ACCEPTED, &TxBody::new(tx), &call.request_id))
}

/// `POST /api/v1/tx/cancel`. An unknown request is stored as refused, so that a late POST of it
/// finds that.
pub(super) async fn cancel_by_request(service: &TxmService, call: Call) -> Outcome {
    let caller = TxCaller::of(&service.intake, &call)?;
    query(&call, "")?;
    let answered = call.request_id.clone();
    let draft: RequestDraft = parse(&service.intake.body(call).await?)?;
    let (signer, request_id) = draft.read()?;
    caller.may_use(signer, &[&request_id])?;
    let known = service.reads.by_request(signer, &request_id).await.map_err(store_away)?;
    match known {
        Some(details) if !details.tx.state.is_terminal() => {
            refuse_of_suspended(service, signer, details.tx.nonce).await?;
        }
        Some(_) => {}
        None => {
            refuse_of_suspended(service, signer, None).await?;
            is_compared(service, signer).await?;
        }
    }
    let actor = caller.actor();
    let deed = Deed { actor: &actor, reason: BY_CLIENT };
    let done = service.reads.cancel_by_request(signer, &request_id, &deed).await;
    let (status, details) = match done.map_err(store_away)? {
        CancelByRequest::Refused(details) => (StatusCode::OK, details),
        CancelByRequest::Asked { details, .. } => {
            service.desk.wake(signer);
            (StatusCode::ACCEPTED, details)
        }
        CancelByRequest::Ended(details) if details.tx.nonce.is_none() => (StatusCode::OK, details),
        CancelByRequest::Ended(_) => return Err(Code::NotCancellable.into()),
    };
    Ok(json(status, &TxBody::new(&details.tx), &answered))
}

/// Only operators cancel a numbered transaction of a suspended signer. Of a signer with rows that
/// may be older than the chain, one without a nonce here may be paid, so it is not ended either.
async fn refuse_of_suspended(
    service: &TxmService,
    signer: Address,
    nonce: Option<u64>,
) -> Result<(), Refusal> {
    let row = service.reads.signer(signer).await.map_err(store_away)?;
    let Some(row) = row else { return Ok(()) };
    let is_refused = match nonce {
        Some(_) => !row.suspensions.is_empty(),
        None => row.suspensions.iter().any(Suspension::may_lack_rows),
    };
    if is_refused { Err(suspended(&row.suspensions)) } else { Ok(()) }
}

/// Checks that the store knows a signer, and that the chain and its pools have no nonce beyond its
/// rows: such rows may be an older copy, and the request may be paid.
async fn is_compared(service: &TxmService, signer: Address) -> Result<(), Refusal> {
    // Before the rows, which may get further nonces meanwhile.
    let counts = service.desk.counts(signer).await;
    let Some(row) = service.reads.signer(signer).await.map_err(store_away)? else {
        return Err(Code::SignerUnknown.into());
    };
    if service.desk.shares_keys() {
        return Ok(());
    }
    let chain = counts.iter().map(|it| it.latest.max(it.pending)).max();
    if chain.ok_or_else(|| Refusal::away("The chain"))? <= row.cursor {
        return Ok(());
    }
    let message =
        "The chain has nonces of this signer that no row has. Ask again once that is settled.";
    Err(Refusal::because(Code::SystemError, message))
}

/// The id in a path. Every other text names nothing.
pub(super) fn id(text: &str) -> Result<TxId, Refusal> {
    Uuid::try_parse(text).map(TxId).map_err(|_| Code::TxNotFound.into())
}

/// The wait of `waitMs`.
pub(super) fn wait(text: Option<&str>) -> Result<Duration, Refusal> {
    let ms = text.map(|text| number("waitMs", text, 0..=WAIT_MS_MAX)).transpose()?;
    Ok(Duration::from_millis(ms.unwrap_or(0).into()))
}

/// The name of a row in a request.
enum Named {
    Id(TxId),
    Request(Address, String),
}

/// Reads a row until it is final, the wait is over, or the node stops.
async fn until_final(
    service: &TxmService,
    wait: Duration,
    named: &Named,
) -> Result<Option<TxDetails>, Refusal> {
    let begun = service.clock.monotonic_ns();
    let wait = wait.min(service.wait_max);
    loop {
        let read = match named {
            Named::Id(id) => service.reads.get(*id).await,
            Named::Request(signer, id) => service.reads.by_request(*signer, id).await,
        };
        let details = read.map_err(store_away)?;
        let is_final = details.as_ref().is_none_or(|details| details.tx.state.is_terminal());
        let passed = Duration::from_nanos(service.clock.monotonic_ns() - begun);
        if is_final || passed >= wait || !service.pause().await {
            return Ok(details);
        }
    }
}
